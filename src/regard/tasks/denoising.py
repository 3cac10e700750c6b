"""Spans are cut out of a text, a sentinel for each; and told one after the other (T5: Raffel et al. 2020).

    text     Thank you for inviting me to your party last week
    source   Thank you    <X>       me to your party  <Y> week
    target                <X> for inviting            <Y> last <Z>

Source and target together give back the text: each sentinel says where its span stood, and the last one that all is
told.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from regard import config
from regard.tasks import records
from regard.tasks.records import Record
from regard.tasks.rows import Batch, Example
from regard.tasks.task import enter, pieces
from regard.tasks.translate import Paired
from regard.text import Tokenizer


@dataclass(frozen=True, eq=False)
class Corrupted(Paired):
    """Objectives that make source and target of one text, anew each time it is read."""

    def example(self, record: Record, tokenizer: Tokenizer) -> Example:
        ids = records.ids(record, self.c.text, tokenizer)
        if len(ids) < 2:
            raise records.wrong(record, self.c.text, record[self.c.text], "a text of two tokens or more")
        return self.around(ids[: self.room]) | {"cut": max(0, len(ids) - self.room)}

    def examples(self, record: Record, tokenizer: Tokenizer) -> list[Example]:
        if len(ids := records.ids(record, self.c.text, tokenizer)) < 2:
            raise records.wrong(record, self.c.text, record[self.c.text], "a text of two tokens or more")
        return [self.around(piece) | {"cut": 0} for piece in pieces(ids, self.room)]

    def around(self, ids: Sequence[int]) -> Example:
        """A piece of text as it is: special tokens come with the corruption."""
        return {"ids": list(ids)}

    def collate(self, examples: Sequence[Example], chance: torch.Generator) -> Batch:
        made = [self.corrupted(list(example["ids"]), chance) for example in examples]
        return self.batch([source for source, _ in made], [target for _, target in made])

    def corrupted(self, ids: list[int], chance: torch.Generator) -> tuple[list[int], list[int]]:
        """Source and target of a text."""
        raise NotImplementedError

    def fits(self, count: int) -> bool:
        """Do so many tokens of text fit, as a source and as a target?"""
        return count <= self.rows.length - len(self.opening) - len(self.closing) and count < self.rows.length

    @property
    def room(self) -> int:
        """The most tokens of text that surely fit."""
        count = self.rows.length
        while self.fits(count + 1):  # what is cut out leaves room for more
            count += 1
        while not self.fits(count):
            count -= 1
        return count


@enter("spans")
@dataclass(frozen=True, eq=False)
class Spans(Corrupted):
    """As many tokens go as the rate says, in as many spans as their mean length says: the same number for each row."""

    c: config.Spans = config.Spans()

    @classmethod
    def of(cls, c: config.Spans, tokenizer: Tokenizer, **how: Any) -> Self:
        made = super().of(c, tokenizer, **how)
        marks, need = len(made.specials.sentinels), made.spans(made.room) + 1
        if not marks:
            raise config.ConfigError("text: this tokenizer has no sentinels; add them with regard.tasks.equip")
        if need > marks:
            raise config.ConfigError(f"task.sentinels: {marks} are too few for rows of {made.rows.length:,} tokens, "
                                     f"which ask for {need}; set more, or a larger task.mean")  # fmt: skip
        return made

    def corrupted(self, ids: list[int], chance: torch.Generator) -> tuple[list[int], list[int]]:
        noise = self.noise(len(ids))
        lengths = composed(noise, self.spans(len(ids)), 1, chance)
        return cut(ids, spread(len(ids) - noise, lengths, 1, chance), self.specials.sentinels)

    def noise(self, count: int) -> int:
        """How many of so many tokens go: at least one, and at most all but one."""
        return min(max(round(count * self.c.rate), 1), count - 1)

    def spans(self, count: int) -> int:
        """In how many spans they go; a token stays between two of them."""
        noise = self.noise(count)
        return min(max(1, round(noise / self.c.mean)), count - noise + 1)

    def fits(self, count: int) -> bool:
        noise, spans = self.noise(count), self.spans(count)
        source = count - noise + spans + len(self.opening) + len(self.closing)
        return max(source, noise + spans + 2) <= self.rows.length  # a target has a last sentinel, and start or end


def cut(ids: Sequence[int], holes: Sequence[tuple[int, int]], marks: Sequence[int]) -> tuple[list[int], list[int]]:
    """The text without its holes (start, stop), and what was in them; a mark for each, and one more at the end."""
    source, target, last = [], [], 0
    for (start, stop), mark in zip(holes, marks[: len(holes)], strict=True):
        source += [*ids[last:start], mark]
        target += [mark, *ids[start:stop]]
        last = stop
    return [*source, *ids[last:]], [*target, marks[len(holes)]]


def spread(kept: int, lengths: Sequence[int], apart: int, chance: torch.Generator) -> list[tuple[int, int]]:
    """Holes of these lengths among so many kept tokens, anywhere; at least `apart` of them between two holes."""
    inner = apart * (len(lengths) - 1)
    gaps = composed(kept - inner, len(lengths) + 1, 0, chance)
    holes, at = [], -apart
    for gap, length in zip(gaps[:-1], lengths, strict=True):
        at += apart + gap
        holes.append((at, at + length))
        at += length
    return holes


def composed(total: int, count: int, least: int, chance: torch.Generator) -> list[int]:
    """A total as a sum of `count` numbers of at least `least`, every such sum equally likely (stars and bars)."""
    free = total - count * least
    bars = torch.randperm(free + count - 1, generator=chance)[: count - 1].sort().values.tolist()
    return [after - before - 1 + least for before, after in zip([-1, *bars], [*bars, free + count - 1], strict=True)]
