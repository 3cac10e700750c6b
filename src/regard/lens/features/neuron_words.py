"""Words of a neuron: which tokens its output row promotes and suppresses, and which embeddings excite it.

    embeddings ── up, activation ──► unit ── its column of down ── gain of the final norm ── head ──► words

Values in vocabulary space (Geva et al. 2022). The path is the direct one alone: what later layers make of the unit's
output is left out, and so are the final norm's division and, on the input side, context and positions. A unit without
clear words may well matter.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.errors import ConfigError
from regard.core.layers import ACTIVATIONS, MLP, Norm
from regard.core.model import Trunk
from regard.inputs.text import TextEmbedding
from regard.lens.attention_maps import unwrap_model
from regard.lens.features.neurons import NeuronExamples
from regard.lens.residual import find_trunk
from regard.lens.result import LensResult, Table
from regard.lens.stream.predictions import prediction_id
from regard.models.heads import LMHead, PoolingHead, PretrainingHead, TokenHead
from regard.models.lora import merged_weight
from regard.models.reversible import sublayer_names

FEED_FORWARD = r"trunk\.(\d+)\.mlp\.hidden"
ROWS = 4096  # tokens of the vocabulary at a time


@dataclass(frozen=True)
class WordScore:
    """A token, or a class, and its score."""

    token: str
    id: int
    score: float


@dataclass(frozen=True, eq=False)
class NeuronWords(LensResult):
    """The tokens nearest to a unit on its output side and on its input side, strongest first."""

    layer: int
    unit: int
    promotes: tuple[WordScore, ...]
    suppresses: tuple[WordScore, ...]
    excited_by: tuple[WordScore, ...]  # none where the model reads no words

    def table(self) -> Table:
        sides = (("promotes", self.promotes), ("suppresses", self.suppresses), ("excited by", self.excited_by))
        rows = tuple((side, word.token, word.score) for side, words in sides for word in words)
        return Table(f"Which words belong to unit {self.unit} of layer {self.layer}?", ("side", "token", "score"), rows,
                     "The direct path only: neither context, nor what later layers make of it.")  # fmt: skip


@dataclass(frozen=True, eq=False)
class NeuronMatch:
    """A unit that has to do with a word: what it adds to the word's logit, and how many of its examples have it."""

    layer: int
    unit: int
    score: float  # of the word, for an activation of 1
    rank: int  # of the word among all that the unit promotes, 1 the first
    examples: int  # of its top examples, those in which the word stands


@dataclass(frozen=True, eq=False)
class NeuronMatches(LensResult):
    """Units by what they have to do with a word; `searched` says how many there are."""

    word: str
    matches: tuple[NeuronMatch, ...]
    searched: int

    def table(self) -> Table:
        rows = tuple((each.layer, each.unit, each.score, each.rank, each.examples) for each in self.matches)
        return Table(f"Which units have to do with {self.word!r}?", ("layer", "unit", "score", "rank", "examples"),
                     rows, f"{len(rows)} of {self.searched:,} units. Score and rank are of the direct path to the "
                     "logits; what later layers make of a unit is left out.")  # fmt: skip


@torch.no_grad()
def neuron_words(model: Any, layer: int, unit: int, *, top_k: int = 10) -> NeuronWords:  #: S154
    """The words of a feed-forward unit: the tokens that its row of the output matrix promotes and suppresses through
    the final norm's gain and the head, and those whose embeddings excite it most."""
    model = unwrap_model(model)
    check_count(top_k)
    mlp = find_mlp(model, layer)
    column = weight_of(mlp.down)[:, check_unit(mlp, layer, unit)]
    vectors, weight = map_to_head(model, column[None])
    scores = (weight @ vectors[0]).cpu()
    near = excitation(model, layer, unit).cpu() if isinstance(model.embed, TextEmbedding) else None
    classes = not isinstance(head_of(model), LMHead)
    return NeuronWords(
        layer, unit, top_words(model, scores, top_k, classes), top_words(model, -scores, top_k, classes, -1),
        () if near is None else top_words(model, near, top_k),
    )  # fmt: skip


@torch.no_grad()
def search_neurons(
    model: Any, word: str | int, *, examples: NeuronExamples | None = None, top_k: int = 10
) -> NeuronMatches:
    """Search by word: the units whose output promotes it most, or, with `examples`, those in whose top examples it
    stands most often. A word of several tokens can be searched in examples alone."""
    model = unwrap_model(model)
    check_count(top_k)
    layers = range(find_trunk(model).c.depth)
    scores: Tensor | None = None
    try:
        id = prediction_id(model, word, "word")
    except ConfigError:
        if examples is None:
            raise
    else:
        direction = pull_to_stream(model, id)
        columns = (weight_of(find_mlp(model, layer).down) for layer in layers)
        scores = torch.stack([direction @ each for each in columns]).cpu()  # (L, F)
    if examples is None:
        assert scores is not None
        best = scores.flatten().topk(min(top_k, scores.numel())).indices.tolist()
        places = [(each // scores.shape[1], each % scores.shape[1], 0) for each in best]
        count = scores.numel()
    else:
        places, count = places_in_examples(model, word, examples, top_k), len(examples.units)
    wanted = None if scores is None else id
    return NeuronMatches(str(word), tuple(build_match(model, place, wanted) for place in places), count)


def build_match(model: Any, place: tuple[int, int, int], id: int | None) -> NeuronMatch:
    layer, unit, seen = place
    if id is None:
        return NeuronMatch(layer, unit, float("nan"), 0, seen)
    vectors, weight = map_to_head(model, weight_of(find_mlp(model, layer).down)[:, unit][None])
    scores = weight @ vectors[0]
    return NeuronMatch(layer, unit, float(scores[id]), 1 + int((scores > scores[id]).sum()), seen)


def places_in_examples(model: Any, word: str | int, found: NeuronExamples, top_k: int) -> list[tuple[int, int, int]]:
    """(layer, unit, how many examples) of the units in whose examples the word stands, most first."""
    layers = [int(match[1]) for each in found.addresses if (match := re.fullmatch(FEED_FORWARD, each))]
    if len(layers) < len(found.addresses):
        raise ConfigError("examples: expected those of feed-forward units, where='trunk.*.mlp.hidden'")
    count = torch.zeros(len(found.units), dtype=torch.long)
    for ids in spellings(model, word):
        if len(ids) <= found.contexts.shape[2]:
            there = (found.contexts.unfold(2, len(ids), 1) == torch.tensor(ids)).all(-1).any(-1).sum(1)
            count = torch.maximum(count, there)
    best = count.sort(descending=True, stable=True).indices[:top_k].tolist()
    rows = [row for row in best if count[row]]
    return [(layers[row], found.units[row], int(count[row])) for row in rows]


def spellings(model: Any, word: str | int) -> list[list[int]]:
    """A word's ids as it stands at the beginning and after a space."""
    if isinstance(word, int):
        return [[word]]
    tokenizer = model.output_tokenizer
    found = [tokenizer.encode(text) for text in dict.fromkeys((word, f" {word}"))]
    return [ids for ids in found if ids]


# ---------------------------------------------------------------- output side


def find_mlp(model: Any, layer: int) -> MLP:
    trunk = find_trunk(model)
    if not 0 <= layer < trunk.c.depth:
        raise ConfigError(f"layer {layer}: this model has layers 0 to {trunk.c.depth - 1}")
    block: Any = trunk.blocks[layer % len(trunk.blocks)]
    if block.mlp is None:
        raise ConfigError(f"layer {layer}: trunk.mlp.kind is none, so it has no feed-forward, and no units")
    mlp: MLP = block.mlp
    return mlp


def check_count(top_k: int) -> None:
    if top_k < 1:
        raise ConfigError(f"top_k: {top_k}; give 1 or more to name")


def check_unit(mlp: MLP, layer: int, unit: int) -> int:
    if not 0 <= unit < mlp.down.in_features:
        raise ConfigError(f"unit {unit}: layer {layer} has units 0 to {mlp.down.in_features - 1}")
    return unit


def weight_of(linear: Any) -> Tensor:
    """A linear layer's weight (out, in) in fp32, with adapters in it and nothing packed."""
    return (merged_weight(linear) if hasattr(linear, "lora") else linear.weight.detach()).float()


def head_of(model: Any) -> Any:
    head = model.head.lm if isinstance(model.head, PretrainingHead) else model.head
    if not isinstance(head, LMHead | TokenHead | PoolingHead) or getattr(head, "out", True) is None:
        raise ConfigError("head: this model answers with vectors, neither with words nor with classes, so its neurons "
                          "promote none")  # fmt: skip
    return head


def map_to_head(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Directions of the residual stream (K, D) as the last matrix of the head gets them, and that matrix (V, D').

    Linear: of norms the centering and the gain, of a head's transform its matrix.
    """
    trunk, head = find_trunk(model), head_of(model)
    last: Any = trunk.blocks[-1]
    *_, sublayer = sublayer_names(last)
    x = through_norm(trunk.final_norm or (getattr(last, f"{sublayer}_norm") if last.post_norm else None), x)
    if head.dense is not None:
        x = x @ weight_of(head.dense).mT
    if isinstance(head, LMHead):
        return through_norm(head.norm, x) * head.scale, weight_of(head)
    return x, weight_of(head.out)


def through_norm(norm: Norm | None, x: Tensor) -> Tensor:
    if norm is None:
        return x
    x = x - x.mean(-1, keepdim=True) if norm.c.kind == "layer" else x
    return x if norm.weight is None else x * (norm.weight.detach().float() + norm.c.offset)


def pull_to_stream(model: Any, id: int) -> Tensor:  # (D,)
    """The direction of the residual stream whose product with a vector is that vector's score for a token."""
    eye = torch.eye(find_trunk(model).c.dim, device=next(model.parameters()).device)
    vectors, weight = map_to_head(model, eye)
    return vectors @ weight[id]


# ---------------------------------------------------------------- input side


def excitation(model: Any, layer: int, unit: int) -> Tensor:  # (V,)
    """What a unit gets where a token's embedding alone stands in the stream: the number that its activation function is
    given, or the activation of a gated one."""
    trunk, mlp = find_trunk(model), find_mlp(model, layer)
    block: Any = trunk.blocks[layer % len(trunk.blocks)]
    bias, hidden, act, found = mlp.up.full_bias(), mlp.down.in_features, ACTIVATIONS[mlp.activation], []
    rows = [unit, hidden + unit] if mlp.gated else [unit]
    w, b = weight_of(mlp.up)[rows], 0 if bias is None else bias.detach().float()[rows]
    for part in model.embed.tokens.weight.detach().split(ROWS):
        x = embedding_stream(trunk, part.float() * model.embed.c.scale)
        x = x if block.post_norm and block.residual else block.mlp_norm(x)
        pre = x.float() @ w.mT + b  # (V, 1), or (V, 2): gate and up
        found.append(act(pre[:, 0]) * pre[:, 1] if mlp.gated else pre[:, 0])
    return torch.cat(found)


def embedding_stream(trunk: Trunk, x: Tensor) -> Tensor:
    """Embeddings as the trunk's stem lets them in, without positions."""
    extra = (trunk.project.in_features if trunk.project is not None else trunk.c.dim) - x.shape[1]
    x = F.pad(x, (0, extra)) if extra > 0 else x
    x = x if trunk.embed_norm is None else trunk.embed_norm(x)
    return x if trunk.project is None else trunk.project(x)


def top_words(model: Any, scores: Tensor, top_k: int, classes: bool = False, sign: int = 1) -> tuple[WordScore, ...]:
    """The best of the scores (V,), the likeliest first; `sign` gives back what was turned for the search."""
    best = scores.sort(descending=True, stable=True)
    ids, values = best.indices[:top_k].tolist(), best.values[:top_k].tolist()
    tokenizer = None if classes else getattr(model, "output_tokenizer", None)
    names = label_ids(tokenizer, ids, classes)
    return tuple(WordScore(name, id, sign * value) for name, id, value in zip(names, ids, values, strict=True))


def label_ids(tokenizer: Any, ids: Sequence[int], classes: bool) -> list[str]:
    known = 0 if tokenizer is None else len(tokenizer)
    return [f"class {id}" if classes else tokenizer.token_text(id) if id < known else str(id) for id in ids]
