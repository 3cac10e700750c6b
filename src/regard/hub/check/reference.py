"""One question in two languages: what both models are given, of the kind that they read, with padding where it can be.

Row 0 is full, the others end early: equal answers to full rows alone would say nothing about who looks at padding.
"""

import inspect
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from regard import config

SENTENCE = "One small transformer reads this sentence, word by word, and another one reads it too: do they agree? "
ROWS = 3
LACKS = (0, 3, 5)  # tokens that the rows end early
LONGER = 4  # tokens that a source has more than its target: no two lengths alike


@dataclass(frozen=True)
class Question:
    """`theirs` by name; `ours` in order and by name; `reals` are the tokens whose answers count, (B, N) each."""

    theirs: dict[str, Tensor]
    ours: tuple[Any, ...]
    named: dict[str, Tensor] = field(default_factory=dict)
    reals: tuple[Tensor, ...] = ()

    def counted(self, x: Tensor) -> Tensor:
        """Only what stands at real tokens, if the vectors are of tokens at all."""
        real = next((real for real in self.reals if x.dim() == 3 and x.shape[:2] == real.shape), None)
        return x if real is None else x[real]

    def asked_of(self, model: Any) -> Any:
        return model(*self.ours, **self.named)


def question(ours: Any, theirs: Any, tokens: int = 32, dtype: torch.dtype = torch.float32) -> Question:
    """What to ask a model of ours and one of theirs; always the same for the same folder."""
    chance = torch.Generator().manual_seed(0)
    found = made(ours, theirs, tokens, chance)
    return moved(found, next(ours.parameters()).device, dtype)


def made(ours: Any, theirs: Any, tokens: int, chance: torch.Generator) -> Question:
    c = ours.c
    if isinstance(c, config.Towers):
        pictures, text = pixels(c.towers[0].embed, chance), reading(ours, c.text, theirs, tokens, chance)
        given = {"ids": text.ours[0], **text.named}
        return Question({**text.theirs, "pixel_values": pictures}, (pictures, given), {}, text.reals)
    if isinstance(c.embed, config.Pixels):
        ids = torch.randint(c.embed.palette, (ROWS, c.embed.count), generator=chance)
        ids[:, 0] = c.embed.palette  # the start token is the id after the last colour
        return Question({"input_ids": ids}, (ids,))
    if hasattr(c.embed, "channels") or isinstance(c.embed, config.Stages):
        pictures = pixels(c.embed, chance)
        return Question({"pixel_values": pictures}, (pictures,))
    text = reading(ours, c, theirs, tokens, chance)
    return text if c.encoder is None else translated(text, ours, theirs, tokens, chance)


def reading(ours: Any, c: config.Transformer, theirs: Any, tokens: int, chance: torch.Generator) -> Question:
    """A text: ids, which of them are real, and segments where the model knows them."""
    ids, real = words(ours, c, theirs, tokens, chance)
    asked, named = {"input_ids": ids}, dict[str, Tensor]()
    if not real.all():
        asked["attention_mask"], named["real"] = real.long(), real
    if isinstance(c.embed, config.Embed) and c.embed.segments and "token_type_ids" in takes(theirs):
        segment = (torch.arange(ids.shape[1]) >= ids.shape[1] // 2).long().expand_as(ids)
        asked["token_type_ids"] = named["segment"] = segment.clamp(max=c.embed.segments - 1)
    return Question(asked, (ids,), named, (real,))


def translated(target: Question, ours: Any, theirs: Any, tokens: int, chance: torch.Generator) -> Question:
    """A source for the encoder beside the target."""
    c, ids, real = ours.c, target.ours[0], target.reals[0]
    asked = {"decoder_input_ids": ids, "decoder_attention_mask": real.long()}
    if isinstance(c.encoder.embed, config.Sound):
        heard = sound(c.encoder.embed, chance)
        return Question({"input_features": heard, **asked}, (ids,), {"source": heard, "real": real}, (real,))
    reads = c if c.encoder.embed is None else replace(c, embed=replace(c.encoder.embed, end=c.embed.end))
    source, kept = words(ours, reads, theirs, tokens, chance, LONGER)
    asked |= {"input_ids": source, "attention_mask": kept.long()}
    if isinstance(c.head, config.Pooled):  # a source that is classified is read once more, one place later
        first = torch.full_like(source[:, :1], theirs.config.decoder_start_token_id)
        ids, real = torch.cat([first, source[:, :-1]], 1), kept
        asked = {"input_ids": source, "attention_mask": kept.long(), "decoder_input_ids": ids}
    named = {"source": source, "source_real": kept, "real": real}
    return Question(asked, (ids,), named, (real, kept))


# ---------------------------------------------------------------- what is in it


def words(
    ours: Any, c: config.Transformer, theirs: Any, tokens: int, chance: torch.Generator, more: int = 0
) -> tuple[Tensor, Tensor]:
    """Ids (B, N) and which of them are real: a sentence in the model's own words, random ones where it has none."""
    vocab, pad = c.embed.vocab, padding(theirs)
    count = min(tokens, longest(ours, c)) + more
    ids = spoken(ours.tokenizer, vocab) or torch.randint(vocab, (97,), generator=chance).tolist()
    ids = [id for id in ids if id not in (pad, c.embed.end)] or [0]
    rows = ROWS if pad is not None or not last(c) else 1  # who asks for the last token must know which are not there
    table = torch.tensor([[ids[(row * 5 + n) % len(ids)] for n in range(count)] for row in range(rows)])
    lacks = torch.tensor(LACKS[:rows]).clamp(max=count - 1) * (getattr(c.trunk.position, "scaling", "") != "dynamic")
    real = torch.arange(count) < count - lacks[:, None]  # dynamic scaling goes by the length of the input
    table = table.masked_fill(~real, 0 if pad is None else pad)
    if c.embed.end is not None:
        table[torch.arange(rows), real.sum(-1) - 1] = c.embed.end
    return table, real


def spoken(tokenizer: Any, vocab: int) -> list[int]:
    """The sentence in ids; none where the tokenizer cannot say it."""
    try:
        return [] if tokenizer is None else [id for id in tokenizer.encode(SENTENCE) if id < vocab]
    except config.DataError:
        return []


def padding(theirs: Any) -> int | None:
    """Their id of what is not there."""
    said = getattr(theirs.config, "text_config", theirs.config)
    pad = getattr(said, "pad_token_id", None)
    return pad if isinstance(pad, int) and pad >= 0 else None


def last(c: config.Transformer) -> bool:
    return isinstance(c.head, config.Pooled) and c.head.place == "last"


def longest(ours: Any, c: config.Transformer) -> int:
    """As many tokens as the model has places for; where it reads another text, a few are left over for that."""
    reads = c.encoder is not None and not isinstance(c.encoder.embed, config.Sound)
    stacks = [c.trunk, c.encoder.trunk] if reads and c.encoder is not None else [c.trunk]
    lengths = [getattr(stack.position, "length", None) for stack in stacks if isinstance(stack, config.Trunk)]
    known = [each for each in (*lengths, ours.context) if isinstance(each, int)]
    return max(1, min(known, default=1 << 20) - LONGER * reads)


def pixels(c: Any, chance: torch.Generator) -> Tensor:  # (B, channels, rows, columns)
    c = c.patches if isinstance(c, config.Stages) else c
    return torch.randn(ROWS, c.channels, c.image, c.image, generator=chance)


def sound(c: config.Sound, chance: torch.Generator) -> Tensor:  # (B, mels, windows)
    """A spectrogram of noise, as long as can be."""
    assert isinstance(c.way, config.Convolved)  # the families that hear do so
    return torch.randn(ROWS, c.way.mels, c.way.windows(c.limit), generator=chance)


def takes(theirs: Any) -> Any:
    return inspect.signature(theirs.forward).parameters


def moved(asked: Question, device: torch.device, dtype: torch.dtype) -> Question:
    """On the models' device, and numbers in their type."""

    def put(x: Any) -> Any:
        if isinstance(x, dict):
            return {name: put(each) for name, each in x.items()}
        return x.to(device, dtype if x.is_floating_point() else None)

    return Question(put(asked.theirs), tuple(put(x) for x in asked.ours), put(asked.named),
                    tuple(put(x) for x in asked.reals))  # fmt: skip


# ---------------------------------------------------------------- on its way to another process


def packed(asked: Question, side: str) -> dict[str, Tensor]:
    """What one side is given, as a flat table: places by number, what stands inside a place behind a dot."""
    if side == "theirs":
        return dict(asked.theirs)
    table = dict(asked.named)
    for place, given in enumerate(asked.ours):
        inner = given if isinstance(given, dict) else {"": given}
        table |= {f"{place}.{name}".rstrip("."): x for name, x in inner.items()}
    return table


def unpacked(table: dict[str, Tensor]) -> tuple[list[Any], dict[str, Tensor]]:
    """The same again: in order, and by name."""
    named = {name: x for name, x in table.items() if not name[0].isdigit()}
    places: dict[str, Any] = {}
    for name, x in sorted(table.items()):
        place, _, inner = name.partition(".")
        if inner:
            places.setdefault(place, {})[inner] = x
        elif place.isdigit():
            places[place] = x
    return list(places.values()), named
