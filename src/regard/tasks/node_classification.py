"""Node classification: a class for each node of one graph, read as a whole; some nodes have labels for training.

cora     2,708 papers with citations            140 train, 500 validation, 1,000 test
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError, DataError
from regard.data.packing import IGNORE_INDEX
from regard.data.records import Record
from regard.tasks.classification import classification_scores, classify_batch
from regard.tasks.collate import TaskBatch
from regard.tasks.losses import cross_entropy_sum
from regard.tasks.task import Task, TaskOutputs, labelled_entries, register_task

PARTS = ("train", "validation", "test")
SHORT = {"val": "validation", "valid": "validation"}


@register_task("node_classification")
@dataclass(frozen=True, eq=False)
class NodeClassification(Task):
    """Node classification task: the most likely class of every node with a label in the batch."""

    c: config.NodeClassification = config.NodeClassification()
    heads = ("token",)

    def check(self, model: config.Transformer) -> None:
        super().check(model)
        head = model.head
        if not isinstance(model.embed, config.GraphEmbedding):
            raise ConfigError(f"model.embed.kind: {model.embed.kind!r}, and task 'node_classification' needs "
                              "graphs; set it to graph")  # fmt: skip
        if isinstance(head, config.TokenHead) and head.out != len(self.c.classes):
            raise ConfigError(f"model.head.out: {head.out}, and there are {len(self.c.classes)} classes; set it so")

    def vocabularies(self, model: config.Transformer) -> list[tuple[str, int, int]]:
        return []

    def loss_sums(self, model: nn.Module, batch: TaskBatch) -> dict[str, Tensor]:
        return {"loss": cross_entropy_sum(self.node_logits(model, batch), batch["labels"])}

    def answers(self, model: nn.Module, batch: TaskBatch) -> TaskOutputs:
        return {"loss": labelled_entries(self.node_logits(model, batch).argmax(-1), batch["labels"])}

    def node_logits(self, model: nn.Module, batch: TaskBatch) -> Any:  # (1, N, classes)
        return classify_batch(model, {name: table for name, table in batch.items() if name != "labels"})

    def score(self, predictions: TaskOutputs, labels: TaskOutputs) -> dict[str, float]:
        return classification_scores(predictions["loss"], labels["loss"], len(self.c.classes))


# ---------------------------------------------------------------- labels and splits of a graph


def node_labels(record: Record, count: int) -> list[str]:
    """The class name of each node; "" if unknown."""
    found = record.get("labels")
    if not isinstance(found, list) or len(found) != count:
        many = f"{len(found)} labels" if isinstance(found, list) else "no list of labels"
        raise DataError(f"{record.where}: {many} for {count:,} nodes; expected one for each in the column labels, null "
                        "where none is known")  # fmt: skip
    return ["" if label is None else str(label) for label in found]


def fill_node_classes(c: config.NodeClassification, record: Record, labels: Sequence[str]) -> config.NodeClassification:
    """The task with its classes filled in: numbers in order, names alphabetically."""
    if c.classes:
        return c
    names = {label for label in labels if label}
    if len(names) < 2:
        raise DataError(f"{record.where}: labels of {len(names)} class{'es' * (len(names) != 1)}; expected two or more")
    numbers = all(name.isdecimal() for name in names)
    return replace(c, classes=tuple(sorted(names, key=int) if numbers else sorted(names)))


def node_splits(record: Record, labels: Sequence[str], share: float, seed: int = 0) -> list[str]:
    """The split of each node; without one in the graph, a share of the labelled nodes validates."""
    found = record.get("parts")
    if found is None:
        known = [node for node, label in enumerate(labels) if label]
        order = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed)).tolist()
        back = {known[place] for place in order[: round(share * len(known))]}
        return ["" if not label else "validation" if node in back else "train" for node, label in enumerate(labels)]
    if not isinstance(found, list) or len(found) != len(labels):
        raise DataError(f"{record.where}: parts do not go with {len(labels):,} nodes; expected one for each")
    parts = ["" if part is None else SHORT.get(str(part), str(part)) for part in found]
    for node, (part, label) in enumerate(zip(parts, labels, strict=True)):
        if part not in ("", *PARTS):
            raise DataError(f"{record.where}: node {node} is in part {part!r}; expected {', '.join(PARTS)} or nothing")
        if part and not label:
            raise DataError(f"{record.where}: node {node} is in part {part!r} and has no label; give it one, or no "
                            "part")  # fmt: skip
    return parts


def node_targets(
    record: Record, c: config.NodeClassification, labels: Sequence[str], parts: Sequence[str], part: str
) -> Tensor:
    """(1, N) the class indices of a split's nodes, -100 for all others."""
    known = {name: place for place, name in enumerate(c.classes)}
    if lost := [label for label, mine in zip(labels, parts, strict=True) if mine == part and label not in known]:
        raise DataError(f"{record.where}: label {lost[0]!r} is none of the {len(known)} classes ({', '.join(known)})")
    asked = [known[label] if mine == part else IGNORE_INDEX for label, mine in zip(labels, parts, strict=True)]
    if not any(mine == part for mine in parts):
        raise DataError(f"{record.where}: no nodes in part {part!r}; give some nodes that part")
    return torch.tensor([asked])
