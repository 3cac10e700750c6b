"""Translation with an encoder-decoder, and its alignment to the source by cross-attention. #: S157

    The cat sat.  ──►  The cat sat . </s>  ── encoder ──┐
                       <s> ── beam search ── decoder ◄──┘ ──►  Le chat s'est assis . </s>  ──►  Le chat s'est assis.

Texts are encoded as in training and translated in batches of similar length; the result for a text does not depend on
its batch.

              The   cat   sat  </s>
    Le        .71   .12   .05   .12        a row for each target token, and it sums to one: the softmax of
    chat      .06   .83   .09   .02        cross-attention, averaged over the heads of one layer

The layer is the last but one by default: there the averaged heads agree best with alignments made by people (Garg et
al. 2019, "Jointly learning to align and translate with Transformer models").
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard import config
from regard.config.generation import BeamSearchParams
from regard.core.hooks import looking
from regard.generation.beam_search import beam_search
from regard.generation.limits import context_window, trunk_context
from regard.generation.params import beam_search_params
from regard.generation.session import inference_mode
from regard.generation.text_stream import Completion, completion_from_beams
from regard.inference.batching import BATCH_TOKENS, length_batches, run_batched
from regard.inference.text_inputs import check_text
from regard.tasks.task import build_task
from regard.tasks.translation import Translation

if TYPE_CHECKING:
    from regard.inference.model import Model

BEAMS = 4
TIMES, MORE = 2, 20  # default limit: twice the tokens of the source, plus twenty


class Translator:
    """Translation with an encoder-decoder, its tokenizers, and the objective that adds the special tokens."""

    def __init__(self, model: "Model") -> None:
        if model.c.encoder is None:
            raise config.ConfigError("this model has no encoder; for a decoder "
                                     "use generate")  # fmt: skip
        if model.tokenizer is None or model.output_tokenizer is None:
            raise config.DataError("this model has no tokenizer; set model.tokenizer, or put a "
                                   "tokenizer.json beside it")  # fmt: skip
        task = build_task(config.Translation(), model.tokenizer, target=model.target_tokenizer)
        assert isinstance(task, Translation)
        self.model, self.reads, self.speaks, self.task = model, model.tokenizer, model.output_tokenizer, task
        self.vocab = (model.c.encoder.embed or model.c.embed).vocab
        self.longest = trunk_context(model.c.encoder.trunk, model.generation_limits)

    def __call__(
        self, texts: Sequence[str], settings: dict[str, Any], new: int | None = None,
        names: Sequence[str] | None = None, refuse: Callable[[int, config.DataError], object] | None = None,
        cut: Callable[[int], object] | None = None, *, check: Callable[[], None] | None = None,
    ) -> list[Any]:  # fmt: skip
        """Translate texts: the best translation of each, with the others in it, as Completions. `names` stand in error
        messages.

        A text that cannot be encoded raises, or is None where `refuse` handles the error; one that is too long is
        truncated where `cut` is called for it. `check` is called at each step of the search, which stops if it raises.
        """
        c = beam_search_params(
            self.usual(settings, new) | settings | ({} if new is None else {"max_new_tokens": new}), self.speaks
        )
        names = names or (["text"] if len(texts) == 1 else [f"text {place}" for place in range(1, len(texts) + 1)])
        sources: dict[int, list[int]] = {}
        for place, (text, name) in enumerate(zip(texts, names, strict=True)):
            try:
                sources[place] = self.source(text, name, None if cut is None else partial(cut, place))
            except config.DataError as problem:
                if refuse is None:
                    raise
                refuse(place, problem)
        lengths = [len(sources[row]) if row in sources else None for row in range(len(texts))]

        def run(rows: list[int]) -> list[Completion]:
            return self.batch([texts[row] for row in rows], [sources[row] for row in rows], c, new, check)

        batches = length_batches(lengths, BATCH_TOKENS, copies=c.num_beams)
        return run_batched(self.model, range(len(texts)), batches, run)

    def usual(self, settings: dict[str, Any], new: int | None) -> dict[str, Any]:
        """The default settings of the search, from the generation defaults of the folder."""
        manner = self.model.generation_defaults
        manner.warn()
        usual = {"num_beams": BEAMS} | manner.beam_search
        if (least := manner.min_new_tokens(1)) and "min_new_tokens" not in settings:
            usual["min_new_tokens"] = least if new is None else min(least, new - 1)
        if settings.get("num_return_sequences", 1) > usual["num_beams"]:
            usual["num_beams"] = settings["num_return_sequences"]
        return usual

    def source(self, text: str, name: str = "text", cut: Callable[[], object] | None = None) -> list[int]:
        """A source text in ids, with its special tokens; `cut` is called if it is truncated."""
        ids = self.ids(text, name)
        whole = [*self.task.opening, *ids, *self.task.closing]
        if cut is not None and self.longest is not None and (over := len(whole) - self.longest) > 0:
            cut()
            whole = [*self.task.opening, *ids[:-over], *self.task.closing]
        if self.longest is not None and len(whole) > self.longest:
            room = self.longest - (len(whole) - len(ids))
            raise config.DataError(f"{name}: {len(ids)} tokens are more than the {room} that this model reads at once; "
                                   "give it in shorter pieces, a sentence at a time")  # fmt: skip
        if (largest := max(whole)) >= self.vocab:
            raise config.DataError(f"{name}: id {largest} is outside the model's vocabulary of {self.vocab}; use the "
                                   "tokenizer of its training")  # fmt: skip
        return whole

    def ids(self, text: str, name: str, target: bool = False) -> list[int]:
        check_text(text, name)
        try:
            ids = (self.speaks if target else self.reads).encode(text)
        except config.DataError as problem:
            raise config.DataError(f"{name}: {problem}") from None
        if not ids or not text.strip():
            raise config.DataError(f"{name}: {text!r} is empty; give it some words")
        return ids

    @property
    def begin(self) -> int:
        """The start token of a target."""
        known = (self.model.decoder_start_id, self.model.generation_defaults.begin, self.task.target.begin())
        begin = next(id for id in known if id is not None)
        if begin < 0:
            raise config.DataError("target_tokenizer: it has no start, pad or end token for a target to begin with; "
                                   "use the tokenizer of the model's training")  # fmt: skip
        return begin

    def max_target_tokens(self, length: int, c: BeamSearchParams) -> int:
        """The default token limit of a translation, from the length of its source."""
        usual = self.model.generation_defaults.max_new_tokens(1) or TIMES * length + MORE
        wanted, room = max(usual, c.min_new_tokens + 1), context_window(self.model, self.model.generation_limits)
        return wanted if room is None else min(wanted, room)

    def batch(
        self, texts: list[str], sources: list[list[int]], c: BeamSearchParams, new: int | None,
        check: Callable[[], None] | None = None,
    ) -> list[Completion]:  # fmt: skip
        began, device = time.perf_counter(), next(self.model.parameters()).device
        longest = max(map(len, sources))
        ids = torch.tensor([source + [0] * (longest - len(source)) for source in sources], device=device)
        real = torch.tensor([[place < len(source) for place in range(longest)] for source in sources], device=device)
        most = [self.max_target_tokens(len(source), c) if new is None else new for source in sources]
        limits = self.model.generation_limits
        found = beam_search(self.model, [[self.begin]] * len(texts), c, limits, max_new_tokens=most, source=ids,
                            source_real=real, look=None if check is None else lambda grown: check())  # fmt: skip
        seconds = time.perf_counter() - began
        return [completion_from_beams(text, [self.begin], each, self.speaks, limits.ends, seconds)
                for text, each in zip(texts, found, strict=True)]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Alignment:
    """Alignment weights (target, source), with the tokens of both sides as text, special tokens included."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: Tensor
    layer: int

    def likeliest(self) -> list[tuple[str, str]]:
        """Each target token with the source token that it attends to most."""
        return [(told, self.source[place])
                for told, place in zip(self.target, self.weights.argmax(-1).tolist(), strict=True)]  # fmt: skip


def align_translation(
    model: "Model", source: str, target: str | Sequence[int] | None = None, layer: int | None = None
) -> Alignment:
    """The alignment of a source and a target, by default the model's translation, from one layer's cross-attention."""
    translator, depth = Translator(model), model.c.trunk.depth
    known = set(model.addresses())
    looks = [place for place in range(depth) if f"trunk.{place}.cross.pattern" in known]
    if not looks:
        raise config.ConfigError(f"trunk.cross: {model.c.trunk.cross!r} passes the source as one vector, "
                                 "so there is no cross-attention to align with")  # fmt: skip
    layer = looks[max(len(looks) - 2, 0)] if layer is None else layer
    if not -depth <= layer < depth or layer % depth not in looks:
        raise config.ConfigError(f"layer: {layer} is none of the decoder's layers, {looks[0]} to {looks[-1]}")
    read = translator.source(source, "source")
    if target is None:
        [best] = translator([source], {})
        target = best.ids
    if isinstance(target, str):
        target = [*translator.ids(target, "target", target=True), translator.task.target["eos"]]
    weights = cross_attention_weights(translator, read, list(target), layer % depth)
    tokens = tuple(map(translator.reads.token_text, read)), tuple(map(translator.speaks.token_text, target))
    return Alignment(*tokens, weights=weights, layer=layer % depth)


def encode_pair(model: "Model", source: str, target: str | None) -> dict[str, Tensor]:
    """Encoder and decoder ids of a source and a target: the decoder reads its start token and the target."""
    translator = Translator(model)
    read = translator.source(source, "source")
    if target is None:
        [best] = translator([source], {})
        target_ids = [id for id in best.ids if id not in model.generation_limits.ends]
    else:
        target_ids = translator.ids(target, "prompt", target=True) if target else []
    device = next(model.parameters()).device
    heard = torch.tensor([[translator.begin, *target_ids]], device=device)
    real = torch.ones_like(heard, dtype=torch.bool)  # the start token may be the pad token
    return {"ids": heard, "real": real, "source": torch.tensor([read], device=device)}


def cross_attention_weights(
    translator: Translator, source: list[int], target: list[int], layer: int
) -> Tensor:  # (T, S)
    """Cross-attention weights (T, S) of one layer under teacher forcing, averaged over the heads."""
    model, ids = translator.model, [translator.begin, *target[:-1]]
    most, vocab = context_window(model, model.generation_limits), model.c.embed.vocab
    if not target or (most is not None and len(ids) > most):
        raise config.DataError(f"target: {len(target)} tokens, and this model reads 1 to {most or 'any number'} at "
                               "once; give both texts in shorter pieces, a sentence at a time")  # fmt: skip
    if (largest := max(target)) >= vocab or min(target) < 0:
        raise config.DataError(f"target: id {largest} is outside the model's vocabulary of {vocab}; use the tokenizer "
                               "of its training")  # fmt: skip
    where = f"trunk.{layer}.cross.pattern"
    heard, read = (torch.tensor([row], device=next(model.parameters()).device) for row in (ids, source))
    real = torch.ones_like(heard, dtype=torch.bool)  # the start token may be the pad token
    with inference_mode(list(model.modules())), looking(model, where) as seen:
        model(heard, source=read, real=real)
    weights: Tensor = seen[where][0].float().mean(0)  # averaged over the heads
    return weights.clone().cpu()
