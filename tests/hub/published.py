"""Small random models made by `transformers`, saved by it, opened here; and the same question to both.

A case is a function that makes one of theirs. Families say theirs in `CASES` of encoder_cases, decoder_cases,
encoder_decoder_cases and image_cases: odd settings, sizes that differ from each other, biases and gains moved away from
0 and 1.
"""

import copy
import inspect
import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from parity.tolerance import randomise
from safetensors.torch import load_file
from torch import Tensor, nn

import regard
from regard import config as C
from regard.hub import name_table
from regard.hub.families.registry import FAMILIES

V, D, H, F, LENGTH = 53, 36, 4, 60, 80  # words, width, heads, hidden, places: no two alike
B, N, S = 3, 9, 13  # rows, tokens, tokens of a source
Case = Callable[[], nn.Module]


@dataclass
class Pair:
    """Theirs, ours, and the folder that theirs wrote."""

    theirs: Any
    ours: Any
    folder: Path

    @property
    def architecture(self) -> str:
        return json.loads((self.folder / "config.json").read_text())["architectures"][0]

    def rows(self) -> list[name_table.NameRow]:
        found = self.ours.source_folder
        return FAMILIES[found.family].rows(found.architecture, found.config)


def pair(case: Case, folder: Path, dtype: torch.dtype = torch.float32) -> Pair:
    torch.manual_seed(7)
    theirs = case()
    randomise(theirs)
    theirs.eval().save_pretrained(folder)
    ours = regard.load(folder, device="cpu")
    return Pair(theirs.to(dtype), ours.to(dtype), folder)


# ---------------------------------------------------------------- one question, in their words and in ours


@dataclass
class Question:
    theirs: dict[str, Tensor]
    ours: tuple[Any, ...]
    named: dict[str, Tensor]
    real: Tensor | None = None  # (B, N) the tokens whose answers count


def question(of: Pair, padding: str = "none", dtype: torch.dtype = torch.float32) -> Question:
    torch.manual_seed(11)
    c = of.ours.c
    if isinstance(c, C.DualEncoder):
        pictures, read = picture(c.towers[0].embed, dtype), reading(of, padding)
        given = dict(ids=read.ours[0], **read.named)
        return Question(dict(read.theirs, pixel_values=pictures), (pictures, given), {})
    if isinstance(c.embed, C.PatchEmbedding | C.StageEmbedding):
        pictures = picture(c.embed, dtype)
        return Question(dict(pixel_values=pictures), (pictures,), {})
    if isinstance(c.embed, C.PixelEmbedding):
        ids = torch.randint(c.embed.palette, (B, c.embed.count))
        ids[:, 0] = c.embed.palette
        return Question(dict(input_ids=ids), (ids,), {})
    return reading(of, padding) if c.encoder is None else telling(of, padding, dtype)


def reading(of: Pair, padding: str) -> Question:
    """A text."""
    c, real = of.ours.c, keep(N, padding)
    pad = getattr(of.theirs.config, "text_config", of.theirs.config).pad_token_id
    ids = words(c.embed.vocab, N, pad).masked_fill(~real, 0 if pad is None else pad)
    if c.embed.eos_id is not None:  # the last real token
        ids.scatter_(1, (real * torch.arange(N)).argmax(-1, keepdim=True), c.embed.eos_id)
    asked, named = dict(input_ids=ids), {}
    masks, ours = dict(attention_mask=real.long()), dict(real=real)
    takes = inspect.signature(of.theirs.forward).parameters
    if c.embed.segments and "token_type_ids" in takes:
        segment = torch.randint(c.embed.segments, (B, N))
        asked, named = asked | dict(token_type_ids=segment), named | dict(segment=segment)
    offset = getattr(c.trunk.position, "offset", 0)
    if "position_ids" in takes and not offset:  # learned positions of theirs count padding unless told not to
        masks["position_ids"] = (real.cumsum(-1) - 1).clamp(min=0)
    if padding != "none":
        asked, named = asked | masks, named | ours
    return Question(asked, (ids,), named, real)


def telling(of: Pair, padding: str, dtype: torch.dtype) -> Question:
    """A source and a target. Of a sound nothing is padding."""
    c, kept, real = of.ours.c, keep(S, padding), keep(N, padding)
    pad, own = of.theirs.config.pad_token_id, c.encoder.embed
    ids = words(c.embed.vocab, N, pad).masked_fill(~real, pad)
    if isinstance(own, C.AudioEmbedding):
        source = torch.randn(B, own.features.n_mels, own.features.windows(own.limit)).to(dtype)
        asked, masks, ours = dict(input_features=source), {}, {}
    else:
        source = words((own or c.embed).vocab, S, pad).masked_fill(~kept, pad)
        asked, masks, ours = dict(input_ids=source), dict(attention_mask=kept.long()), dict(source_real=kept)
    if isinstance(c.head, C.PoolingHead):
        return once_more(of, source, kept)
    asked, named = asked | dict(decoder_input_ids=ids), dict(source=source)
    if padding != "none":
        asked, named = asked | masks | dict(decoder_attention_mask=real.long()), named | ours | dict(real=real)
    return Question(asked, (ids,), named, real)


def once_more(of: Pair, source: Tensor, kept: Tensor) -> Question:
    """A source that ends with its end token, and as a target the same one place later."""
    source = source.scatter(1, kept.sum(-1, keepdim=True) - 1, of.theirs.config.eos_token_id)
    first = torch.full((B, 1), of.theirs.config.decoder_start_token_id)
    target = torch.cat([first, source[:, :-1]], 1)
    named = dict(source=source, source_real=kept, real=kept)
    asked = dict(input_ids=source, attention_mask=kept.long(), decoder_input_ids=target)
    return Question(asked, (target,), named)


def begun(of: Pair, dtype: torch.dtype) -> Question:
    """A question that has an answer after it: a text with padding before it, or a target with a padded source."""
    if isinstance(of.ours.c.embed, C.PixelEmbedding):
        ids = question(of, "none", dtype).ours[0][:, :N]
        return Question(dict(input_ids=ids), (ids,), {})
    if of.ours.c.encoder is None:
        return question(of, "left" if "left" in sides(of) else "none", dtype)
    asked = question(of, "none", dtype)
    asked.ours[0][:, 0] = of.theirs.config.decoder_start_token_id
    if "input_ids" in asked.theirs:
        kept = keep(S, "right")
        asked.theirs["attention_mask"], asked.named["source_real"] = kept.long(), kept
    return asked


def sides(of: Pair) -> tuple[str, ...]:
    """Where theirs can bear padding: on the left only if its places do not count it."""
    c = of.ours.c
    if isinstance(c, C.DualEncoder):
        return ("right", "left")
    if not isinstance(c.embed, C.TextEmbedding):
        return ()
    if getattr(c.trunk.position, "scaling", "") == "dynamic":  # goes by the length of the input
        return ()
    takes = inspect.signature(of.theirs.forward).parameters
    own = getattr(c.trunk.position, "offset", 0) and c.encoder is None  # counted from the ids that are not padding
    free = c.trunk.position.kind in ("t5", "none")
    first = c.head.pooling if isinstance(c.head, C.PretrainingHead) else c.head
    if isinstance(first, C.PoolingHead) and first.pooling == "cls":
        return ("right",)  # theirs takes the first token, real or not
    return ("right", "left") if "position_ids" in takes or own or free else ("right",)


def words(vocab: int, count: int, pad: int | None = None) -> Tensor:
    """Ids (B, count), none of them padding, whose vector `transformers` never trains."""
    ids = torch.randint(3, vocab - 1, (B, count))
    return ids if pad is None else torch.where(ids == pad, 3 if pad != 3 else 4, ids)


def keep(count: int, padding: str) -> Tensor:  # (B, count): rows lack 0, 3 and 5 tokens on the side that is said
    lacks = torch.tensor([[0], [3], [5]]) * (padding != "none")
    right = torch.arange(count) < count - lacks
    return right.flip(-1) if padding == "left" else right


def picture(c: Any, dtype: torch.dtype) -> Tensor:
    c = c.patches if isinstance(c, C.StageEmbedding) else c
    return torch.randn(B, c.channels, c.image_size, c.image_size).to(dtype)


# ---------------------------------------------------------------- both answers


ANSWERS = (
    ("prediction_logits", "seq_relationship_logits", "sop_logits"), ("start_logits", "end_logits"),
    ("logits_per_image",), ("text_embeds",), ("image_embeds",), ("logits",), ("last_hidden_state", "pooler_output"),
)  # fmt: skip


def answers(of: Pair, asked: Question) -> tuple[list[Tensor], list[Tensor]]:
    """What both say, tensor by tensor; of tokens that are not real nothing."""
    told = of.theirs(**asked.theirs)
    names = next(names for names in ANSWERS if all(getattr(told, name, None) is not None for name in names[:1]))
    theirs = [getattr(told, name) for name in names if getattr(told, name, None) is not None]
    mine = of.ours(*asked.ours, **asked.named)
    ours = list(mine) if isinstance(mine, tuple) else [mine]
    if names[0] == "last_hidden_state" and isinstance(mine, Tensor) and mine.dim() == 2:
        theirs = theirs[1:]  # one vector for the whole, and nothing else
    if names[0] == "start_logits":
        theirs = [torch.stack(theirs, -1)]
    if names[0] == "logits" and theirs[0].dim() == ours[0].dim() - 1:
        theirs = [theirs[0][..., None]]
    return [each_real(one, asked.real) for one in theirs], [each_real(one, asked.real) for one in ours]


def each_real(x: Tensor, real: Tensor | None) -> Tensor:
    return x[real] if real is not None and x.dim() == 3 and x.shape[:2] == real.shape else x


# ---------------------------------------------------------------- files


def stored(model: Any, folder: Path) -> dict[str, Tensor]:
    """What `save_pretrained` writes."""
    shutil.rmtree(folder, ignore_errors=True)
    with quiet():
        model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def slopes(of: Pair, folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The gradients of both under the names of files: those that theirs has."""
    theirs, ours = copy.deepcopy(of.theirs), copy.deepcopy(of.ours).requires_grad_(False)
    with torch.no_grad():
        for tensor in theirs.state_dict().values():
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))
        for place, weight in zip(theirs.parameters(), of.theirs.parameters(), strict=True):
            if weight.grad is not None:
                place.copy_(weight.grad)
        for place, weight in zip(ours.parameters(), of.ours.parameters(), strict=True):
            place.copy_(torch.zeros_like(weight) if weight.grad is None else weight.grad)
    want = {name: x for name, x in stored(theirs, folder).items() if x.is_floating_point() and not x.isnan().any()}
    return want, name_table.export_tensors(ours, of.rows())
