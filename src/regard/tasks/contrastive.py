"""Contrastive image-text training (InfoNCE): each image is matched with its text among those of the batch, and vice
versa.

               text 0  text 1  text 2
    image 0      ▓▓      ░       ░         loss = 1/2 · cross-entropy of the rows    (the text of this image)
    image 1      ░       ▓▓      ░              + 1/2 · cross-entropy of the columns (the image of this text)
    image 2      ░       ░       ▓▓        logits = scale · cosine, the scale trained (CLIP: Radford et al. 2021)

A larger batch makes the task harder, so micro-batches cannot replace it; ranks exchange their vectors and compute
exactly one batch. Evaluation searches the partner of each item among all (recall), and classifies images by the names
of classes (zero-shot).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError, DataError
from regard.inputs.processors import TensorExample
from regard.models.dual_encoder import DualEncoder
from regard.tasks import columns
from regard.tasks.collate import TaskBatch
from regard.tasks.columns import RecordLike, raise_problem
from regard.tasks.image_text import ImageTextTask, rename_tensors
from regard.tasks.metrics import accuracy
from regard.tasks.task import LossPart, TaskOutputs, register_task
from regard.text.tokenizer import Tokenizer

BEST = (1, 5)  # k of recall@k
SEEN, CLASS = "seen_", "class"


@register_task("contrastive")
@dataclass(frozen=True, eq=False)
class Contrastive(ImageTextTask):
    """Contrastive task over image-text pairs. `prompts` are the token ids of class names."""

    c: config.Contrastive = config.Contrastive()
    prompts: tuple[tuple[int, ...], ...] = ()
    heads = ("pooling",)

    @classmethod
    def build(cls, c: config.Contrastive, tokenizer: Tokenizer | None, **options: Any) -> Self:
        made = super().build(c, tokenizer, **options)
        if tokenizer is None or c.label is None:
            return made
        texts = [made.read(c.prompt.replace("{}", name)) for name in c.classes]
        prompts = tuple(tuple(tokenizer.encode(text)) for text in texts)
        if long := [text for text, ids in zip(texts, prompts, strict=True) if not 0 < len(ids) <= made.room]:
            raise ConfigError(f"task.prompt: {long[0]!r:.60} is no text of 1 to {made.room} tokens; make it shorter, "
                              "or train.context larger")  # fmt: skip
        return replace(made, prompts=prompts)

    @property
    def room(self) -> int:
        return self.rows.length - len(self.specials.single)

    def check(self, model: config.Model) -> None:
        if not isinstance(model, config.DualEncoder) or len(model.towers) != 2:
            raise ConfigError("model.kind: task 'contrastive' needs two towers; set it to dual_encoder, with "
                              "one tower for text and one for other inputs")  # fmt: skip
        if [isinstance(tower.embed, config.TextEmbedding) for tower in model.towers] != [False, True]:
            raise ConfigError("model.towers: the first takes images or other inputs and the second text; embed.kind is "
                              f"{' and '.join(repr(tower.embed.kind) for tower in model.towers)}")  # fmt: skip
        widths = [getattr(tower.head, "out", None) or tower.trunk.dim for tower in model.towers]
        if other := [tower.head.kind for tower in model.towers if tower.head.kind != "pooling"]:
            raise ConfigError(f"model.towers: a head of kind {other[0]!r}, and towers are compared by one vector per "
                              "input; set head.kind of both to pooling")  # fmt: skip
        if len({*widths}) > 1:
            raise ConfigError(f"model.towers: their vectors are {widths[0]} and {widths[1]} wide; set head.out of both "
                              "to one width")  # fmt: skip
        if model.embed.vocab < self.specials.size:
            raise ConfigError(f"model.towers[1].embed.vocab: {model.embed.vocab:,}, and the tokenizer has "
                              f"{self.specials.size:,} tokens; leave it out, or make it larger")  # fmt: skip

    def example(self, record: RecordLike, tokenizer: Tokenizer) -> TensorExample:
        made = super().example(record, tokenizer)
        if self.c.label is None:
            return made
        label = columns.get_column(record, self.c.label)
        return made | {CLASS: torch.tensor(columns.label_index(record, self.c.label, label, self.c.classes))}

    def build_batch(self, examples: Sequence[TensorExample], chance: torch.Generator | None) -> TaskBatch:
        seen, count = self.sense.collate(examples, chance), len(examples)
        batch = (
            rename_tensors(seen, "seen", SEEN) | self.texts(self.words(examples, chance)) | self.token_counts(examples)
        )
        batch["match"] = torch.eye(count, dtype=torch.bool)  # (B, B): row i matches i, on every rank
        if CLASS in examples[0]:
            batch[CLASS] = torch.stack([example[CLASS] for example in examples])
        return batch

    def texts(self, rows: Sequence[Sequence[int]]) -> TaskBatch:
        """Texts with their special tokens, padded."""
        whole = [self.specials.single(row) for row in rows]
        return {"ids": self.rows.pad(whole, self.specials.fill)} | self.rows.real(whole)

    def count_parts(self, batch: TaskBatch) -> dict[str, LossPart]:
        return {"loss": LossPart(len(batch["match"]))}

    def loss_sums(self, model: nn.Module, batch: TaskBatch, ranks: int = 1) -> dict[str, Tensor]:
        assert isinstance(model, DualEncoder)
        if torch.is_grad_enabled():
            model.clamp_scale()
        seen, told, factor = model(*tower_inputs(batch), compare=False)
        match = batch["match"]
        all_seen, all_told = (gather_in_batch(side, match, ranks) for side in (seen, told))
        absent, partner = missing_pairs(match, ranks), match.int().argmax(-1)
        by_row = F.cross_entropy(factor * seen @ all_told.mT + absent, partner, reduction="sum")
        by_column = F.cross_entropy(factor * told @ all_seen.mT + absent, partner, reduction="sum")
        return {"loss": (by_row + by_column) / 2}  #: S091

    # ---------------------------------------------------------------- evaluation

    def answers(self, model: nn.Module, batch: TaskBatch) -> TaskOutputs:
        """The vectors of images and texts, and the class of each image if there are classes."""
        assert isinstance(model, DualEncoder)
        seen, told, _ = model(*tower_inputs(batch), compare=False)
        said: TaskOutputs = {"image": seen.tolist(), "text": told.tolist()}
        if self.prompts:
            names = {name: table.to(seen.device) for name, table in self.texts(self.prompts).items()}
            said[CLASS] = (seen @ model.encode(1, names).mT).argmax(-1).tolist()
        return said

    def expected_answers(self, batch: TaskBatch) -> TaskOutputs:
        return {CLASS: batch[CLASS].tolist()} if self.prompts else {"image": [], "text": []}

    def score(self, predictions: TaskOutputs, labels: TaskOutputs) -> dict[str, float]:
        seen, told = (torch.tensor(predictions[name]) for name in ("image", "text"))
        found = {f"image to text R@{k}": recall_at(seen, told, k) for k in BEST}
        found |= {f"text to image R@{k}": recall_at(told, seen, k) for k in BEST}
        return found | ({"zero-shot": accuracy(predictions[CLASS], labels[CLASS])} if self.prompts else {})


def tower_inputs(batch: TaskBatch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The inputs of each tower."""
    seen = {name.removeprefix(SEEN): table for name, table in batch.items() if name.startswith(SEEN)}
    return {"ids": batch["seen"], **seen}, {name: batch[name] for name in ("ids", "real") if name in batch}


def recall_at(queries: Tensor, among: Tensor, best: int, rows: int = 1024) -> float:
    """Recall@best: the fraction of queries whose partner (same index) is among the nearest; ties count against it."""
    right = 0
    for start in range(0, len(queries), rows):
        near = queries[start : start + rows] @ among.mT
        own = near.diagonal(start)[:, None]
        right += int(((near >= own).sum(-1) <= best).sum())
    return right / max(1, len(queries))


# ---------------------------------------------------------------- several ranks


def gather_in_batch(mine: Tensor, match: Tensor, ranks: int = 1) -> Tensor:
    """All vectors (B, D) of a batch, of which this rank has `mine`; a row on two ranks counts half for each."""
    place = match.mT.to(mine.dtype)  # (B, rows)
    times = sum_over_ranks(place.sum(-1), match, ranks).clamp(min=1)
    return sum_over_ranks(place @ mine, match, ranks) / times[:, None]


def missing_pairs(match: Tensor, ranks: int = 1) -> Tensor:
    """(B,) bias of -inf for missing rows of a batch, so that they are no candidates."""
    times = sum_over_ranks(match.float().sum(0), match, ranks)
    return torch.zeros_like(times).masked_fill(times == 0, -torch.inf)


def sum_over_ranks(x: Tensor, match: Tensor, ranks: int) -> Tensor:
    """The sum over ranks if each has some of the rows; a rank with a whole batch needs no sum."""
    apart = ranks > 1 and match.shape[0] < match.shape[1]
    return AllReduceSum.apply(x) if apart else x  # type: ignore[no-untyped-call]


class AllReduceSum(torch.autograd.Function):
    """All-reduce with gradient: the sum over ranks on each rank; its backward sums the gradients of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return AllReduceSum.forward(ctx, grad)


def refuse_accumulation(accumulate: int) -> None:
    """Refuse gradient accumulation, which would silently train an easier task."""
    if accumulate > 1:
        raise ConfigError(f"train.gradient_accumulation: {accumulate}, and task 'contrastive' contrasts each pair with "
                          "all others of its batch, not of a micro-batch; set it to 1, and train.batch_size "
                          "larger")  # fmt: skip


def fill_contrastive_classes(
    c: config.Contrastive, training: Iterable[RecordLike], bad: Callable[[DataError], object] = raise_problem
) -> config.Contrastive:  # fmt: skip
    """The task with its classes from the training data, if it has a label column and names no classes."""
    if c.label is None or c.classes:
        return c
    found = set()
    for record in training:
        try:
            found.add(columns.get_label(record, c.label))
        except DataError as problem:
            bad(problem)
    if len(found) < 2:
        raise DataError(f"column {c.label!r} names {len(found)} class{'es' * (not found)}; expected two or more, so "
                        "name another column in task.label, or the classes in task.classes")  # fmt: skip
    return replace(c, classes=tuple(sorted(found)))
