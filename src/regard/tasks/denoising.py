"""Denoising tasks: span corruption (T5), text infilling (BART) and prefix LM.

Span corruption replaces each span by a sentinel; the target lists the spans (Raffel et al. 2020).

    text     Thank you for inviting me to your party last week
    source   Thank you    <X>       me to your party  <Y> week
    target                <X> for inviting            <Y> last <Z>      <Z> ends the list

Text infilling replaces each span by one mask, whatever its length; the target is the whole text (Lewis et al. 2020).

    text     the cat sat on the mat
    source   the [M] on [M] the mat         a span of two, and one of none: the length must be predicted too
    target   the cat sat on the mat

Prefix LM cuts a text at a random place: the encoder reads the first part, the decoder predicts the second.

    text     the cat sat on the mat
    source   the cat sat                target   on the mat
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from regard import config
from regard.tasks import columns
from regard.tasks.collate import TaskBatch, TaskExample, TaskSpecialTokens
from regard.tasks.columns import RecordLike
from regard.tasks.task import register_task, split_evenly
from regard.tasks.translation import Seq2SeqTask
from regard.text.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class DenoisingTask(Seq2SeqTask):
    """Objectives that make source and target of one text, anew each time it is read."""

    def example(self, record: RecordLike, tokenizer: Tokenizer) -> TaskExample:
        ids = columns.get_ids(record, self.c.input, tokenizer)
        if len(ids) < 2:
            raise columns.column_error(record, self.c.input, record[self.c.input], "a text of two tokens or more")
        return self.around(ids[: self.room]) | {"cut": max(0, len(ids) - self.room)}

    def examples(self, record: RecordLike, tokenizer: Tokenizer) -> list[TaskExample]:
        if len(ids := columns.get_ids(record, self.c.input, tokenizer)) < 2:
            raise columns.column_error(record, self.c.input, record[self.c.input], "a text of two tokens or more")
        return [self.around(piece) | {"cut": 0} for piece in split_evenly(ids, self.room)]

    def around(self, ids: Sequence[int]) -> TaskExample:
        """A piece of text as it is: special tokens come with the corruption."""
        return {"ids": list(ids)}

    def collate(self, examples: Sequence[TaskExample], chance: torch.Generator) -> TaskBatch:
        made = [self.corrupt(list(example["ids"]), chance) for example in examples]
        return self.batch([source for source, _ in made], [target for _, target in made])

    def corrupt(self, ids: list[int], chance: torch.Generator) -> tuple[list[int], list[int]]:
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


@register_task("span_corruption")
@dataclass(frozen=True, eq=False)
class SpanCorruption(DenoisingTask):
    """As many tokens go as the rate says, in as many spans as their mean length says: the same number for each row."""

    c: config.SpanCorruption = config.SpanCorruption()

    @classmethod
    def build(cls, c: config.SpanCorruption, tokenizer: Tokenizer, **options: Any) -> Self:
        made = super().build(c, tokenizer, **options)
        marks, need = len(made.specials.sentinels), made.spans(made.room) + 1
        if not marks:
            raise config.ConfigError("tokenizer: it has no sentinels; add them with regard.tasks.add_task_tokens")
        if need > marks:
            raise config.ConfigError(f"task.sentinels: {marks} are too few for rows of {made.rows.length:,} tokens, "
                                     f"which ask for {need}; set more, or a larger task.mean_span_length")  # fmt: skip
        return made

    def corrupt(self, ids: list[int], chance: torch.Generator) -> tuple[list[int], list[int]]:
        noise = self.noise(len(ids))
        lengths = random_composition(noise, self.spans(len(ids)), 1, chance)
        return cut_spans(ids, place_spans(len(ids) - noise, lengths, 1, chance), self.specials.sentinels)

    def noise(self, count: int) -> int:
        """How many of so many tokens go: at least one, and at most all but one."""
        return min(max(round(count * self.c.rate), 1), count - 1)

    def spans(self, count: int) -> int:
        """In how many spans they go; a token stays between two of them."""
        noise = self.noise(count)
        return min(max(1, round(noise / self.c.mean_span_length)), count - noise + 1)

    def fits(self, count: int) -> bool:
        noise, spans = self.noise(count), self.spans(count)
        source = count - noise + spans + len(self.opening) + len(self.closing)
        return max(source, noise + spans + 2) <= self.rows.length  # a target has a last sentinel, and start or end


def cut_spans(
    ids: Sequence[int], holes: Sequence[tuple[int, int]], marks: Sequence[int]
) -> tuple[list[int], list[int]]:
    """The text without its holes (start, stop), and what was in them; a mark for each, and one more at the end."""
    source, target, last = [], [], 0
    for (start, stop), mark in zip(holes, marks[: len(holes)], strict=True):
        source += [*ids[last:start], mark]
        target += [mark, *ids[start:stop]]
        last = stop
    return [*source, *ids[last:]], [*target, marks[len(holes)]]


def place_spans(kept: int, lengths: Sequence[int], apart: int, chance: torch.Generator) -> list[tuple[int, int]]:
    """Holes of these lengths among so many kept tokens, anywhere; at least `apart` of them between two holes."""
    inner = apart * (len(lengths) - 1)
    gaps = random_composition(kept - inner, len(lengths) + 1, 0, chance)
    holes, at = [], -apart
    for gap, length in zip(gaps[:-1], lengths, strict=True):
        at += apart + gap
        holes.append((at, at + length))
        at += length
    return holes


def random_composition(total: int, count: int, least: int, chance: torch.Generator) -> list[int]:
    """A total as a sum of `count` numbers of at least `least`, every such sum equally likely (stars and bars)."""
    free = total - count * least
    bars = torch.randperm(free + count - 1, generator=chance)[: count - 1].sort().values.tolist()
    return [after - before - 1 + least for before, after in zip([-1, *bars], [*bars, free + count - 1], strict=True)]


@register_task("text_infilling")
@dataclass(frozen=True, eq=False)
class TextInfilling(DenoisingTask):
    c: config.TextInfilling = config.TextInfilling()

    @classmethod
    def special_tokens_needed(cls, c: config.TextInfilling, specials: TaskSpecialTokens) -> tuple[str, ...]:
        return (*super().special_tokens_needed(c, specials), *(() if "mask" in specials.roles else ("mask",)))

    def corrupt(self, ids: list[int], chance: torch.Generator) -> tuple[list[int], list[int]]:
        noise = math.floor(len(ids) * self.c.rate + float(torch.rand((), generator=chance)))  # the rate on average
        return self.fill_holes(ids, place_spans(len(ids) - noise, self.lengths(noise, chance), 0, chance)), ids

    def lengths(self, noise: int, chance: torch.Generator) -> list[int]:
        """Of spans, drawn until they hold so many tokens; the last one is cut to fit."""
        found: list[int] = []
        while (left := noise - sum(found)) > 0:
            found.append(min(left, int(torch.poisson(torch.tensor(self.c.mean_span_length), generator=chance))))
        while len(found) > noise:  # so many empty ones that the source would be longer than the text
            found.remove(0)
        return found

    def fill_holes(self, ids: list[int], holes: list[tuple[int, int]]) -> list[int]:
        source, last = [], 0
        for start, stop in holes:
            source += [*ids[last:start], self.specials["mask"]]
            last = stop
        return [*source, *ids[last:]]


@register_task("prefix_lm")
@dataclass(frozen=True, eq=False)
class PrefixLM(DenoisingTask):
    c: config.PrefixLM = config.PrefixLM()

    def corrupt(self, ids: list[int], chance: torch.Generator) -> tuple[list[int], list[int]]:
        place = int(torch.randint(1, len(ids), (), generator=chance))  # something on either side
        return ids[:place], ids[place:]
