"""What is no text: a sense reads it, one answer for the whole, and rows that were mixed are asked for both."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from regard import config as C
from regard import tasks
from regard.config.errors import ConfigError, DataError
from regard.data.batching import seeded_generator
from regard.data.records import Record
from regard.inputs.processors import PROCESSORS, build_processor
from regard.tasks.task import combine_losses, total_counts
from regard.training.parallel.ranks import ProcessRanks

CLASSES = ("ant", "bee", "cow")


@dataclass
class Dots:
    """Five numbers a row; in training each is mixed with the row before, a third of it."""

    column = "dots"
    mixes: bool = False

    def example(self, record, name):
        return {"dots": torch.tensor(record[name], dtype=torch.float32)}

    def length(self, example):
        return len(example["dots"])

    def collate(self, examples, chance):
        rows = torch.stack([example["dots"] for example in examples])
        if chance is None or not self.mixes:
            return {"ids": rows}
        partner = torch.arange(len(rows)).roll(1)
        return {"ids": rows * 2 / 3 + rows[partner] / 3, "partner": partner, "share": torch.full((len(rows),), 2 / 3)}


class Linear(nn.Linear):
    """A model of one map, which also takes what else a batch has for it."""

    def forward(self, ids, shift=None):
        return super().forward(ids if shift is None else ids + shift)


def rows(count=7):
    return [Record({"dots": torch.randn(5).tolist(), "label": CLASSES[n % 3], "size": n / 3}, f"rows:{n + 1}")
            for n in range(count)]  # fmt: skip


def classify(mixes=False):
    return tasks.build_input_task(C.Classification(input="dots", classes=CLASSES), Dots(mixes))


def test_the_loss_is_that_of_torch_and_all_that_a_sense_makes_is_given_to_the_model():
    task, model = classify(), Linear(5, 3)
    batch = task.collate([task.example(record) for record in rows()], seeded_generator(0))
    logits = model(batch["ids"])

    assert_close(task.loss_sums(model, batch)["loss"], F.cross_entropy(logits, batch["label"], reduction="sum"))
    moved = task.loss_sums(model, batch | {"shift": torch.ones(7, 5)})["loss"]
    assert_close(moved, F.cross_entropy(model(batch["ids"] + 1), batch["label"], reduction="sum"))
    assert batch["tokens"].tolist() == [5] * 7 and task.count_parts(batch)["loss"].count == 7
    assert task.answers(model, batch)["loss"] == logits.argmax(-1).tolist()
    assert task.expected_answers(batch)["loss"] == [0, 1, 2, 0, 1, 2, 0]


def test_rows_that_were_mixed_are_asked_for_both_classes_by_their_shares():
    task, model = classify(mixes=True), Linear(5, 3)
    examples = [task.example(record) for record in rows()]
    batch, plain = task.collate(examples, seeded_generator(0)), task.collate_eval(examples, seeded_generator(0))
    logits, label = model(batch["ids"]), plain["label"]
    both = 2 / 3 * F.cross_entropy(logits, label, reduction="none") \
        + 1 / 3 * F.cross_entropy(logits, label.roll(1), reduction="none")  # fmt: skip

    assert_close(task.loss_sums(model, batch)["loss"], both.sum())
    assert "other" not in plain and torch.equal(plain["ids"], torch.stack([each["dots"] for each in examples]))


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_share_mixed_rows_have_the_loss_of_one(size):
    """A partner may be on another rank, so each row brings what it is asked for."""
    task, model = classify(mixes=True), Linear(5, 3)
    batch = task.collate([task.example(record) for record in rows()], seeded_generator(0))
    parts = total_counts([task.count_parts(batch)])
    alone = combine_losses(task.loss_sums(model, batch), parts)
    shares = [ProcessRanks(rank=rank, size=size).share(batch, parts) for rank in range(size)]

    assert_close(sum(combine_losses(task.loss_sums(model, mine), counts) for mine, counts in shares) / size, alone)


def test_numbers_are_regressed():
    task, model = tasks.build_input_task(C.Regression(input="dots", label="size"), Dots()), Linear(5, 1)
    batch = task.collate_eval([task.example(record) for record in rows()], seeded_generator(0))

    said = model(batch["ids"])[:, 0]

    assert_close(task.loss_sums(model, batch)["loss"], F.mse_loss(said, batch["label"], reduction="sum"))
    assert set(task.score(task.answers(model, batch), task.expected_answers(batch))) == {"pearson", "spearman"}


@pytest.mark.parametrize(("record", "message"), [
    ({"dots": [1.0] * 5, "label": "dog"}, r"rows:9: label 'dog' in column 'label' is none of the 3 classes"),
    ({"label": "ant"}, r"rows:9: no column 'dots'"),
    ({"dots": [1.0] * 5}, r"rows:9: no column 'label'"),
])  # fmt: skip
def test_a_bad_record_is_one_sentence_that_says_where(record, message):
    with pytest.raises(DataError, match=message):
        classify().example(Record(record, "rows:9"))


IMAGE = C.PatchEmbedding(patch_size=2, image_size=4, channels=1)


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        (
            C.Classification(classes=CLASSES),
            {"head": C.PoolingHead(out=2)},
            "model.head.out: 2, and the task has 3 outputs",
        ),
        (
            C.Classification(classes=CLASSES),
            {"head": C.NoHead()},
            "model.head.kind: 'none', and task 'classification' needs pooling",
        ),
        (
            C.Classification(classes=CLASSES),
            {"embed": C.PatchEmbedding(patch_size=2, image_size=4, channels=1, cls_tokens=False)},
            "set model.embed.cls_tokens",
        ),
        (C.Classification(classes=CLASSES), {"trunk": C.Trunk(mask="causal")}, "it attends only to itself"),
        (
            C.MaskedLM(),
            {},
            r"task.kind: 'masked_lm' needs text, and this front end takes none; set it to classification or",
        ),
    ],
)
def test_a_model_that_cannot_be_asked_this_is_refused_by_the_path_of_its_setting(task, changes, message):
    model = C.Transformer(**{"embed": IMAGE, "head": C.PoolingHead(out=3), **changes})
    with pytest.raises(ConfigError, match=message):
        tasks.build_input_task(task, build_processor(IMAGE), model)


def test_a_front_end_without_a_sense_is_one_sentence(monkeypatch):
    monkeypatch.delitem(PROCESSORS, "patches")
    with pytest.raises(ConfigError, match="model.embed.kind: no processor for 'patches'"):
        build_processor(IMAGE)
