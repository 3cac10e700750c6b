"""Masked language modelling, and pairs for next-sentence prediction (BERT: Devlin et al. 2019).

    the cat sat on the mat      chosen: 15 %
    the cat [MASK] on the mat   80 % of them are masked, 10 % become any other token, 10 % stay: a model that meets no
    the cat sat on owl mat      [MASK] later must have learned to doubt every token

A pair is a part of a document, and what follows it, or a part of another document.

    document   s1 s2 s3 s4 s5 s6 s7            one pair: s1 s2 │ s3 s4              it follows: 0
               └─ a ──┘└─ b ┘                            s5 s6 │ another's t8 t9    it does not: 1

Sentences are gathered until they fill a row, and cut in two at a random place. Half of the pairs then exchange their
second part for one of another document, and what they gave away begins the next pair. One row in ten is shorter, so
that short texts are learned too. A sentence that is left over alone makes no pair.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config.errors import DataError
from regard.core.masks import mask
from regard.data.packing import IGNORE_INDEX
from regard.tasks import columns
from regard.tasks.collate import TaskBatch, TaskExample, TaskSpecialTokens, WordBoundaries, truncate_pair
from regard.tasks.columns import RecordLike
from regard.tasks.losses import count_labels, cross_entropy_sum, model_outputs
from regard.tasks.metrics import accuracy
from regard.tasks.task import LossPart, Task, TaskOutputs, labelled_entries, register_task, split_evenly
from regard.text.tokenizer import Tokenizer


@register_task("masked_lm")
@dataclass(frozen=True, eq=False)
class MaskedLM(Task):
    """Each word or token is chosen with the same chance; loss on the chosen ones alone.

    With `next_sentence` an example is a document, and `pairs` makes of documents the examples that batches are made of.
    """

    c: config.MaskedLM
    joints: WordBoundaries | None = None
    heads = ("lm", "pretraining")

    @classmethod
    def special_tokens_needed(cls, c: config.MaskedLM, specials: TaskSpecialTokens) -> tuple[str, ...]:
        return (*missing_separators(specials, c.next_sentence), *(() if "mask" in specials.roles else ("mask",)))

    @classmethod
    def build(cls, c: config.MaskedLM, tokenizer: Tokenizer, **options: Any) -> Self:
        return super().build(c, tokenizer, joints=WordBoundaries.of(tokenizer) if c.whole_words else None, **options)

    def check(self, model: config.Transformer) -> None:
        super().check(model)
        if not any(mask(text).ahead for text in model.trunk.masks):
            raise config.ConfigError(f"model.trunk.mask: under {model.trunk.masks[0]!r} no token attends to what "
                                     "comes after a masked one; set it to full, or ask for the next one")  # fmt: skip
        if self.c.next_sentence and (not isinstance(model.head, config.PretrainingHead) or model.head.pooling.out != 2):
            raise config.ConfigError(
                "model.head.kind: next_sentence needs pretraining, with model.head.pooling.out = 2"
            )
        if not self.c.next_sentence and isinstance(model.head, config.PretrainingHead):
            raise config.ConfigError("model.head.kind: 'pretraining' is for task.next_sentence; set it to lm")

    def example(self, record: RecordLike, tokenizer: Tokenizer) -> TaskExample:
        """A text in a row of its own; or, for pairs, a document: its ids, and how many are in each sentence."""
        if self.c.next_sentence:
            lines = columns.get_texts(record, self.c.input, split="\n")
            sentences = [columns.encode_column(record, self.c.input, line, tokenizer) for line in lines]
            return {"ids": [id for ids in sentences for id in ids], "sentences": list(map(len, sentences)), "cut": 0}
        ids = columns.get_ids(record, self.c.input, tokenizer)
        return self.around(ids[: self.room]) | {"cut": max(0, len(ids) - self.room)}

    def examples(self, record: RecordLike, tokenizer: Tokenizer) -> list[TaskExample]:
        if self.c.next_sentence:
            return [self.example(record, tokenizer)]
        ids = columns.get_ids(record, self.c.input, tokenizer)
        return [self.around(piece) | {"cut": 0} for piece in split_evenly(ids, self.room)]

    def around(self, ids: Sequence[int]) -> TaskExample:
        """A piece of text with the special tokens that stand around one."""
        return {"ids": self.specials.single(ids)}

    @property
    def room(self) -> int:
        """Tokens of a text that fit in a row."""
        return self.rows.length - len(self.specials.pair if self.c.next_sentence else self.specials.single)

    def pairs(self, documents: Sequence[TaskExample], place: int, chance: torch.Generator) -> list[TaskExample]:
        """The examples that begin in one document; half of them end in another."""
        made = make_pairs(documents, place, self.room, chance)
        around = self.specials.pair
        return [
            {"ids": around(a, b), "segment": around.segments(a, b), "next": follows, "cut": cut}
            for a, b, follows, cut in made
        ]

    def collate(self, examples: Sequence[TaskExample], chance: torch.Generator) -> TaskBatch:
        rows = [example["ids"] for example in examples]
        ids, real = self.rows.pad(rows, self.specials.fill), self.rows.real(rows)
        ids, labels = self.hide_tokens(ids, real.get("real"), chance)
        batch = {"ids": ids, "labels": labels} | real
        if self.c.next_sentence:
            batch["next"] = torch.tensor([example["next"] for example in examples])
        if self.segments and "segment" in examples[0]:
            batch["segment"] = self.rows.pad([example["segment"] for example in examples], 0)
        return batch

    def hide_tokens(self, ids: Tensor, real: Tensor | None, chance: torch.Generator) -> tuple[Tensor, Tensor]:
        """What the model is shown, and the labels: the chosen tokens."""
        c, may = self.c, ~self.specials.special[ids]
        may = may if real is None else may & real
        luck = torch.rand(ids.shape, generator=chance)
        if self.joints is not None:
            luck = luck.gather(1, self.joints.words(ids))  # the pieces of a word share their luck
        chosen = may & (luck < c.rate)
        fate, ordinary = torch.rand(ids.shape, generator=chance), self.specials.ordinary
        other = ordinary[torch.randint(len(ordinary), ids.shape, generator=chance)]
        shown = ids.masked_fill(chosen & (fate < c.mask_replace_prob), self.specials["mask"])  #: S087
        shown = torch.where(
            chosen & (c.mask_replace_prob <= fate) & (fate < c.mask_replace_prob + c.random_replace_prob), other, shown
        )
        return shown, ids.where(chosen, IGNORE_INDEX)

    def count_parts(self, batch: TaskBatch) -> dict[str, LossPart]:
        if not self.c.next_sentence:
            return super().count_parts(batch)
        return {
            "masked": LossPart(count_labels(batch["labels"])),
            "next": LossPart(count_labels(batch["next"])),
        }  #: S088

    def loss_sums(self, model: nn.Module, batch: TaskBatch) -> dict[str, Tensor]:
        said, rows = model_outputs(model, batch, deferred=self.chunk is not None), self.chunk or 1
        if not self.c.next_sentence:
            return {"loss": cross_entropy_sum(said, batch["labels"], rows=rows)}
        words, follows = said
        follow = F.cross_entropy(follows.float(), batch["next"], reduction="sum")
        return {"masked": cross_entropy_sum(words, batch["labels"], rows=rows), "next": follow}

    def answers(self, model: nn.Module, batch: TaskBatch) -> TaskOutputs:
        said = model_outputs(model, batch)
        if not self.c.next_sentence:
            return {"loss": labelled_entries(said.argmax(-1), batch["labels"])}
        return {"masked": labelled_entries(said[0].argmax(-1), batch["labels"]), "next": said[1].argmax(-1).tolist()}

    def expected_answers(self, batch: TaskBatch) -> TaskOutputs:
        if not self.c.next_sentence:
            return super().expected_answers(batch)
        return {"masked": labelled_entries(batch["labels"], batch["labels"]), "next": batch["next"].tolist()}

    def score(self, predictions: TaskOutputs, labels: TaskOutputs) -> dict[str, float]:
        if not self.c.next_sentence:
            return super().score(predictions, labels)
        return {f"{name} accuracy": accuracy(predictions[name], labels[name]) for name in ("masked", "next")}


SHORT = 0.1  # of the rows
NEXT_SENTENCE_LABELS = ("follows", "does not follow")  # the answers 0 and 1
Pair = tuple[list[int], list[int], int, int]  # first, second, 0 if it follows, tokens cut


def make_pairs(documents: Sequence[TaskExample], place: int, room: int, chance: torch.Generator) -> list[Pair]:
    """The pairs that begin in the document at `place`, each with room for so many tokens."""
    return list(iterate_pairs(documents, place, room, chance))


def iterate_pairs(documents: Sequence[TaskExample], place: int, room: int, chance: torch.Generator) -> Iterator[Pair]:
    if len(documents) < 2:
        raise DataError("task.next_sentence: there is one document, and a second part that does not follow must come "
                        "from another; name more text, or set it to false")  # fmt: skip
    left = document_sentences(documents[place])
    while len(left) > 1:
        goal = random_length(2, room, chance) if float(torch.rand((), generator=chance)) < SHORT else room
        some = take_sentences(left, goal)
        cut = random_length(1, len(some) - 1, chance)
        first, follows = flatten_sentences(some[:cut]), int(torch.randint(2, (), generator=chance))  #: S088
        if follows == 0:
            second, left = flatten_sentences(some[cut:]), left[len(some) :]
        else:
            second = random_sentences(documents, place, max(1, goal - len(first)), chance)
            left = left[cut:]
        a, b = truncate_pair(first[::-1], second, room)  # from the front of the first: the two still meet in the middle
        yield a[::-1], b, follows, len(first) + len(second) - len(a) - len(b)


def take_sentences(left: list[list[int]], goal: int) -> list[list[int]]:
    """Two sentences or more, until they reach the goal."""
    count = total = 0
    while count < len(left) and (total < goal or count < 2):
        total, count = total + len(left[count]), count + 1
    return left[:count]


def random_sentences(documents: Sequence[TaskExample], place: int, goal: int, chance: torch.Generator) -> list[int]:
    """Sentences from a random place of another document, until they reach the goal or it ends."""
    other = random_length(0, len(documents) - 2, chance)
    document = documents[other + (other >= place)]
    sizes = document["sentences"]
    first = random_length(0, len(sizes) - 1, chance)
    stop = first
    while stop < len(sizes) and sum(sizes[first:stop]) < goal:
        stop += 1
    begin = sum(sizes[:first])
    return list(document["ids"][begin : begin + sum(sizes[first:stop])])


def document_sentences(document: TaskExample) -> list[list[int]]:
    ids = list(document["ids"])
    ends = torch.tensor([0, *document["sentences"]]).cumsum(0).tolist()
    return [ids[start:end] for start, end in zip(ends[:-1], ends[1:], strict=True)]


def flatten_sentences(some: Sequence[Sequence[int]]) -> list[int]:
    return [id for ids in some for id in ids]


def random_length(least: int, most: int, chance: torch.Generator) -> int:
    return int(torch.randint(least, most + 1, (), generator=chance))


def missing_separators(specials: TaskSpecialTokens, two: bool) -> tuple[str, ...]:
    """The roles that are missing for two texts in one row."""
    return ("cls", "sep") if two and not specials.pair.between else ()
