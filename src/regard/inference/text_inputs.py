"""Texts as a model reads them: between the special tokens of its training, cut to its length, in batches.

    texts ── frames ──►  [CLS] how are you ? [SEP]  ── batches ──►  {"ids": (B, N), "real": (B, N), "segment": (B, N)}

A published model is given what its tokenizer.json puts around a text, one that was trained here what its training put
there. Texts of like length go together; their places say where the answers belong.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from regard import config
from regard.config import ConfigError, DataError
from regard.generate.limits import Limits, reach
from regard.generate.translate import batches
from regard.tasks.rows import Rows, trimmed
from regard.tasks.specials import Specials
from regard.tasks.words import pieces
from regard.text import Framed, Tokenizer

T = TypeVar("T")
Refuse = Callable[[int, DataError], object]  # is told which text has no answer, and why: then the others have theirs
ENDLESS = 1 << 20  # tokens: a card that says more means that nobody knows


@dataclass(frozen=True)
class Reader:
    """How one model reads; `longest` is the most tokens at once, and `trained` says that it was trained here."""

    c: config.Transformer
    tokenizer: Tokenizer
    device: torch.device
    longest: int | None = None
    trained: bool = False
    begin: int | None = None  # what a decoder reads before what the encoder reads

    @classmethod
    def of(cls, model: Any, longest: int | None = None) -> "Reader":
        c = model.c.text if isinstance(model.c, config.Towers) else model.c
        if not isinstance(front(c), config.Embed):
            raise ConfigError(f"embed.kind: this model reads {front(c).kind!r} and no text; name one that reads text")
        if model.tokenizer is None:
            raise DataError("this model has no tokenizer to read a text with; put a tokenizer.json beside it")
        card = model.tokenizer.card.get("model_max_length")
        known = [card if isinstance(card, int) and 0 < card < ENDLESS else None, longest, room(c, model.context)]
        most = min((each for each in known if each is not None), default=None)
        device = next(model.parameters()).device
        return cls(c, model.tokenizer, device, most, model.task is not None, model.begin)

    # ---------------------------------------------------------------- from texts to ids

    def frames(
        self, texts: Sequence[str], others: Sequence[str] | None = None, names: Sequence[str] | None = None,
        refuse: Refuse | None = None,
    ) -> list[Framed | None]:  # fmt: skip
        """Each text, or each pair, with what stands around it; `names` are what errors call them.

        One that cannot be read raises, or is None where `refuse` is told of it.
        """
        names = names or named(len(texts))
        second: Sequence[str | None] = others or [None] * len(texts)
        found = attempts(zip(texts, second, names, strict=True), self.frame, refuse)
        cut = [place for place, frame in enumerate(found)
               if frame is not None and self.longest is not None and len(frame) > self.longest]  # fmt: skip
        for place in cut:
            found[place] = self.laid(texts[place], second[place], self.longest)
        if cut:
            many = "1 text has" if len(cut) == 1 else f"{len(cut):,} texts have"
            warnings.warn(f"{many} more than the {self.longest} tokens that this model reads at once, the first is "
                          f"{names[cut[0]]}; they are cut there", stacklevel=4)  # fmt: skip
        return found

    def frame(self, text: str, other: str | None = None, name: str = "text") -> Framed:
        """One of them, however long it is."""
        for part in (text, other):
            if part is not None and not part.strip():
                raise DataError(f"{name}: {part!r} is empty; give it some words")
        try:
            found = self.laid(text, other)
        except DataError as problem:
            raise DataError(f"{name}: {problem}") from None
        if all(owner is None for owner in found.owners):
            raise DataError(f"{name}: {text[:40]!r} became no token; give it some words")
        if (largest := max(found.ids)) >= (vocab := front(self.c).vocab):
            raise DataError(f"{name}: id {largest} is outside the model's vocabulary of {vocab}; use the tokenizer of "
                            "its training")  # fmt: skip
        return found

    def laid(self, text: str, other: str | None = None, longest: int | None = None) -> Framed:
        return (self.as_trained if self.trained else self.tokenizer.frame)(text, other, longest)

    def as_trained(self, text: str, other: str | None = None, longest: int | None = None) -> Framed:
        """Laid out as objectives lay out their rows."""
        around = self.specials.single if other is None else self.specials.pair
        with self.tokenizer.saying(text, other or ""):
            (first, spans), (second, more) = pieces(self.tokenizer, text), pieces(self.tokenizer, other or "")
        if longest is not None:
            first, second = trimmed(first, second, longest - len(around))
        before, after = len(around.before), len(around.after)
        between = 0 if other is None else len(around.between)
        pair = (first, None) if other is None else (first, second)
        none: list[tuple[int, int]] = [(0, 0)]
        return Framed(
            ids=around(*pair),
            segments=around.segments(*pair),
            owners=[None] * before + [0] * len(first) + [None] * between + [1] * len(second) + [None] * after,
            spans=none * before + spans[: len(first)] + none * between + more[: len(second)] + none * after,
        )

    @cached_property
    def specials(self) -> Specials:
        return Specials.of(self.tokenizer)

    def seeing(self, role: str) -> "Reader":
        """A reader that sees a special token where it is written."""
        return replace(self, tokenizer=self.tokenizer.seeing(role))

    # ---------------------------------------------------------------- from ids to batches

    def batches(self, rows: Sequence[Framed | None]) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
        """Places of texts, and what the model is given for them; None, a text that was refused, is passed over."""
        known = [(place, row) for place, row in enumerate(rows) if row is not None]
        for some in batches([len(row) for _, row in known], 1):
            yield [known[at][0] for at in some], self.batch([known[at][1] for at in some])

    def batch(self, rows: Sequence[Framed]) -> dict[str, Tensor]:
        """What forward takes by name. A decoder behind an encoder reads the same once more, one place later."""
        ids = [row.ids for row in rows]
        wide = Rows(max(4, *map(len, ids)))
        fill, real = self.specials.fill, wide.there(ids)
        given = {"ids": wide.padded(ids, fill), "real": real}
        if front(self.c).segments > 1:
            given["segment"] = wide.padded([row.segments for row in rows], 0)
        if self.c.encoder is not None:
            begin = self.specials.begin() if self.begin is None else self.begin
            later = wide.padded([[begin, *row[:-1]] for row in ids], fill)
            given = {"ids": later, "real": real, "source": given["ids"], "source_real": real}
        return {name: table.to(self.device) for name, table in given.items()}


def attempts(given: Iterable[tuple[Any, ...]], make: Callable[..., T], refuse: Refuse | None) -> list[T | None]:
    """What is made of each; where that is a DataError, `refuse` is told and it is None."""
    made: list[T | None] = []
    for place, each in enumerate(given):
        try:
            made.append(make(*each))
        except DataError as problem:
            if refuse is None:
                raise
            refuse(place, problem)
            made.append(None)
    return made


def called(model: Any, ending: str) -> bool:
    """Whether the class of a published model ends so: several classes have one kind of head."""
    found = getattr(getattr(model, "origin", None), "architecture", None)
    return found is not None and found.endswith(ending)


def front(c: config.Transformer) -> Any:
    """The front end of the side that reads."""
    return c.embed if c.encoder is None or c.encoder.embed is None else c.encoder.embed


def room(c: config.Transformer, context: int | None) -> int | None:
    """The most tokens that the side that reads can read at once."""
    return reach(c.trunk if c.encoder is None else c.encoder.trunk, Limits(context=context))


def named(count: int) -> list[str]:
    return ["text"] if count == 1 else [f"text {place}" for place in range(1, count + 1)]
