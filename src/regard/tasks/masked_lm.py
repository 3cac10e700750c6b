"""Masked language modelling, and pairs for next-sentence prediction (BERT: Devlin et al. 2019).

    the cat sat on the mat      chosen: 15 %
    the cat [MASK] on the mat   80 % of them are masked, 10 % become any other token, 10 % stay: later inputs have no
    the cat sat on owl mat      [MASK], so the model must learn to predict at every token

A pair is a part of a document, and its continuation or a part of another document.

    document   s1 s2 s3 s4 s5 s6 s7            one pair: s1 s2 │ s3 s4              is next: 0
               └─ a ──┘└─ b ┘                            s5 s6 │ another's t8 t9    is not: 1

Sentences are collected until they fill a row, and split at a random position. Half of the pairs then replace their
second part by one of another document, and the replaced part starts the next pair. One row in ten is shorter, so that
short texts occur in training too. A single remaining sentence makes no pair.
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
    """Masked LM: each word or token is selected with equal probability; the loss counts selected ones only.

    With `next_sentence` an example is a document, and `pairs` turns documents into the examples of batches.
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
                                     "comes after a masked one; set it to full, or use task next_token")  # fmt: skip
        if self.c.next_sentence and (not isinstance(model.head, config.PretrainingHead) or model.head.pooling.out != 2):
            raise config.ConfigError(
                "model.head.kind: next_sentence needs pretraining, with model.head.pooling.out = 2"
            )
        if not self.c.next_sentence and isinstance(model.head, config.PretrainingHead):
            raise config.ConfigError("model.head.kind: 'pretraining' is for task.next_sentence; set it to lm")

    def example(self, record: RecordLike, tokenizer: Tokenizer) -> TaskExample:
        """A text as one row; or for pairs a document: its ids, and the length of each sentence."""
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
        """A text with its special tokens."""
        return {"ids": self.specials.single(ids)}

    @property
    def room(self) -> int:
        """Text tokens that fit in a row."""
        return self.rows.length - len(self.specials.pair if self.c.next_sentence else self.specials.single)

    def pairs(self, documents: Sequence[TaskExample], place: int, chance: torch.Generator) -> list[TaskExample]:
        """The pairs that start in one document; half of them end in another."""
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
        """Masked input ids, and labels at the selected tokens."""
        c, may = self.c, ~self.specials.special[ids]
        may = may if real is None else may & real
        luck = torch.rand(ids.shape, generator=chance)
        if self.joints is not None:
            luck = luck.gather(1, self.joints.words(ids))  # tokens of a word share one number
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


SHORT = 0.1  # fraction of shorter rows
NEXT_SENTENCE_LABELS = ("follows", "does not follow")  # classes 0 and 1
Pair = tuple[list[int], list[int], int, int]  # first, second, 0 if next, tokens truncated


def make_pairs(documents: Sequence[TaskExample], place: int, room: int, chance: torch.Generator) -> list[Pair]:
    """The pairs that start in the document at `place`, each of at most `room` tokens."""
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
        a, b = truncate_pair(first[::-1], second, room)  # the first text is cut at its start: the two still meet
        yield a[::-1], b, follows, len(first) + len(second) - len(a) - len(b)


def take_sentences(left: list[list[int]], goal: int) -> list[list[int]]:
    """Take two or more sentences, until they reach the goal."""
    count = total = 0
    while count < len(left) and (total < goal or count < 2):
        total, count = total + len(left[count]), count + 1
    return left[:count]


def random_sentences(documents: Sequence[TaskExample], place: int, goal: int, chance: torch.Generator) -> list[int]:
    """Sentences from a random position of another document, until they reach the goal or it ends."""
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
    """Special token roles that the tokenizer lacks, for one text or for two."""
    return ("cls", "sep") if two and not specials.pair.between else ()
