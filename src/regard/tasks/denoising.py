"""Denoising tasks: span corruption (T5), text infilling (BART) and prefix LM.

Span corruption replaces each span by a sentinel; the target lists the spans (Raffel et al. 2020).

    text     Thank you for inviting me to your party last week
    source   Thank you    <X>       me to your party  <Y> week
    target                <X> for inviting            <Y> last <Z>      <Z> ends the list

Text infilling replaces each span by one mask, whatever its length; the target is the whole text (Lewis et al. 2020).

    text     the cat sat on the mat
    source   the [M] on [M] the mat         spans of two tokens and of none: the length must be predicted too
    target   the cat sat on the mat

Prefix LM splits a text at a random position: the encoder reads the first part, the decoder predicts the second.

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
    """Tasks that derive source and target from one text, anew in every epoch."""

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
        """A text without special tokens, which are added with the corruption."""
        return {"ids": list(ids)}

    def collate(self, examples: Sequence[TaskExample], chance: torch.Generator) -> TaskBatch:
        made = [self.corrupt(list(example["ids"]), chance) for example in examples]
        return self.batch([source for source, _ in made], [target for _, target in made])

    def corrupt(self, ids: list[int], chance: torch.Generator) -> tuple[list[int], list[int]]:
        """Corrupt a text into source and target."""
        raise NotImplementedError

    def fits(self, count: int) -> bool:
        """Whether `count` text tokens fit, as a source and as a target."""
        return count <= self.rows.length - len(self.opening) - len(self.closing) and count < self.rows.length

    @property
    def room(self) -> int:
        """The maximum number of text tokens that fit."""
        count = self.rows.length
        while self.fits(count + 1):  # removed spans leave room for more
            count += 1
        while not self.fits(count):
            count -= 1
        return count


@register_task("span_corruption")
@dataclass(frozen=True, eq=False)
class SpanCorruption(DenoisingTask):
    """Span corruption: `rate` and mean span length fix the number of masked tokens and spans, the same for each row."""

    c: config.SpanCorruption = config.SpanCorruption()

    @classmethod
    def build(cls, c: config.SpanCorruption, tokenizer: Tokenizer, **options: Any) -> Self:
        made = super().build(c, tokenizer, **options)
        marks, need = len(made.specials.sentinels), made.spans(made.room) + 1
        if not marks:
            raise config.ConfigError("tokenizer: it has no sentinels; add them with regard.tasks.add_task_tokens")
        if need > marks:
            raise config.ConfigError(f"task.sentinels: {marks} are too few for rows of {made.rows.length:,} tokens, "
                                     f"which need {need}; set more, or a larger task.mean_span_length")  # fmt: skip
        return made

    def corrupt(self, ids: list[int], chance: torch.Generator) -> tuple[list[int], list[int]]:
        noise = self.noise(len(ids))
        lengths = random_composition(noise, self.spans(len(ids)), 1, chance)
        return cut_spans(ids, place_spans(len(ids) - noise, lengths, 1, chance), self.specials.sentinels)

    def noise(self, count: int) -> int:
        """The number of masked tokens: at least one, at most all but one."""
        return min(max(round(count * self.c.rate), 1), count - 1)

    def spans(self, count: int) -> int:
        """The number of spans; at least one token remains between two."""
        noise = self.noise(count)
        return min(max(1, round(noise / self.c.mean_span_length)), count - noise + 1)

    def fits(self, count: int) -> bool:
        noise, spans = self.noise(count), self.spans(count)
        source = count - noise + spans + len(self.opening) + len(self.closing)
        return max(source, noise + spans + 2) <= self.rows.length  # a target has a final sentinel, and start or end


def cut_spans(
    ids: Sequence[int], holes: Sequence[tuple[int, int]], marks: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Split a text into the rest, and its masked spans behind sentinels, with one sentinel more at the end."""
    source, target, last = [], [], 0
    for (start, stop), mark in zip(holes, marks[: len(holes)], strict=True):
        source += [*ids[last:start], mark]
        target += [mark, *ids[start:stop]]
        last = stop
    return [*source, *ids[last:]], [*target, marks[len(holes)]]


def place_spans(kept: int, lengths: Sequence[int], apart: int, chance: torch.Generator) -> list[tuple[int, int]]:
    """Random positions of spans of these lengths among `kept` tokens; at least `apart` tokens between two spans."""
    inner = apart * (len(lengths) - 1)
    gaps = random_composition(kept - inner, len(lengths) + 1, 0, chance)
    holes, at = [], -apart
    for gap, length in zip(gaps[:-1], lengths, strict=True):
        at += apart + gap
        holes.append((at, at + length))
        at += length
    return holes


def random_composition(total: int, count: int, least: int, chance: torch.Generator) -> list[int]:
    """Random composition of a total into `count` numbers of at least `least`, all equally likely (stars and bars)."""
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
        noise = math.floor(len(ids) * self.c.rate + float(torch.rand((), generator=chance)))  # rounded at random
        return self.fill_holes(ids, place_spans(len(ids) - noise, self.lengths(noise, chance), 0, chance)), ids

    def lengths(self, noise: int, chance: torch.Generator) -> list[int]:
        """Span lengths, drawn until they cover `noise` tokens; the last one is shortened to fit."""
        found: list[int] = []
        while (left := noise - sum(found)) > 0:
            found.append(min(left, int(torch.poisson(torch.tensor(self.c.mean_span_length), generator=chance))))
        while len(found) > noise:  # so many empty spans that the source would be longer than the text
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
        place = int(torch.randint(1, len(ids), (), generator=chance))  # at least one token on either side
        return ids[:place], ids[place:]
