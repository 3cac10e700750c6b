"""What is each node of one graph? The whole graph is read at once, and nodes whose class is known teach the others.

    cora     2,708 papers that cite each other      140 teach, 500 validate, 1,000 are the test
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.config import ConfigError, DataError
from regard.data import Record
from regard.tasks.chunks import NOTHING
from regard.tasks.classify import class_scores
from regard.tasks.losses import surprise
from regard.tasks.rows import Batch
from regard.tasks.sensed import answered
from regard.tasks.task import Answers, Task, enter, told

PARTS = ("train", "validation", "test")
SHORT = {"val": "validation", "valid": "validation"}


@enter("nodes")
@dataclass(frozen=True, eq=False)
class Nodes(Task):
    """The likeliest class of every node that has a label in the batch."""

    c: config.Nodes = config.Nodes()
    heads = ("each",)

    def check(self, model: config.Transformer) -> None:
        super().check(model)
        head = model.head
        if not isinstance(model.embed, config.Graph):
            raise ConfigError(f"model.embed.kind: {model.embed.kind!r}, and task 'nodes' is asked of graphs; set it to "
                              "graph")  # fmt: skip
        if isinstance(head, config.Each) and head.out != len(self.c.classes):
            raise ConfigError(f"model.head.out: {head.out}, and there are {len(self.c.classes)} classes; set it so")

    def vocabularies(self, model: config.Transformer) -> list[tuple[str, int, int]]:
        return []

    def sums(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"loss": surprise(self.said(model, batch), batch["labels"])}

    def answers(self, model: nn.Module, batch: Batch) -> Answers:
        return {"loss": told(self.said(model, batch).argmax(-1), batch["labels"])}

    def said(self, model: nn.Module, batch: Batch) -> Any:  # (1, N, classes)
        return answered(model, {name: table for name, table in batch.items() if name != "labels"})

    def score(self, said: Answers, meant: Answers) -> dict[str, float]:
        return class_scores(said["loss"], meant["loss"], len(self.c.classes))


# ---------------------------------------------------------------- what a graph says of its nodes


def labels_of(record: Record, count: int) -> list[str]:
    """The name of each node's class; empty where none is known."""
    found = record.get("labels")
    if not isinstance(found, list) or len(found) != count:
        many = f"{len(found)} labels" if isinstance(found, list) else "no list of labels"
        raise DataError(f"{record.where}: {many} for {count:,} nodes; expected one for each in the column labels, null "
                        "where none is known")  # fmt: skip
    return ["" if label is None else str(label) for label in found]


def discovered(c: config.Nodes, record: Record, labels: Sequence[str]) -> config.Nodes:
    """The setting with its classes filled in: numbers by size, names by letter."""
    if c.classes:
        return c
    names = {label for label in labels if label}
    if len(names) < 2:
        raise DataError(f"{record.where}: labels of {len(names)} class{'es' * (len(names) != 1)}; expected two or more")
    numbers = all(name.isdecimal() for name in names)
    return replace(c, classes=tuple(sorted(names, key=int) if numbers else sorted(names)))


def parts_of(record: Record, labels: Sequence[str], share: float, seed: int = 0) -> list[str]:
    """Which part each node is in; where the graph does not say, a share of those with a label validates."""
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


def targets(record: Record, c: config.Nodes, labels: Sequence[str], parts: Sequence[str], part: str) -> Tensor:
    """(1, N) the classes of the nodes of a part, and nothing for all others."""
    known = {name: place for place, name in enumerate(c.classes)}
    if lost := [label for label, mine in zip(labels, parts, strict=True) if mine == part and label not in known]:
        raise DataError(f"{record.where}: label {lost[0]!r} is none of the {len(known)} classes ({', '.join(known)})")
    asked = [known[label] if mine == part else NOTHING for label, mine in zip(labels, parts, strict=True)]
    if not any(mine == part for mine in parts):
        raise DataError(f"{record.where}: no nodes in part {part!r}; give some nodes that part")
    return torch.tensor([asked])
