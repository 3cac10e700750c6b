"""How surprised a model is by words: the whole table of logits, or some rows of it at a time."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from regard.heads import Hidden, hidden
from regard.tasks.chunks import NOTHING, chunked
from regard.tasks.rows import Batch

INPUTS = ("source", "real", "source_real", "document", "segment")  # what a model's forward takes besides ids


def asked(model: nn.Module, batch: Batch, held: bool = False) -> Any:
    """What the model answers to a batch; `held` asks for vectors in place of logits."""
    rest = {name: batch[name] for name in INPUTS if name in batch}
    if not held:
        return model(batch["ids"], **rest)
    with hidden(model):
        return model(batch["ids"], **rest)


def surprise(said: Tensor | Hidden, labels: Tensor, smoothing: float = 0.0, rows: int = 1024) -> Tensor:
    """The sum of -log p(label) in fp32, smoothed; nothing is asked where a label is -100."""
    if isinstance(said, Hidden):
        return chunked(said, labels, smoothing, rows)
    logits = said.flatten(0, -2).float()
    return F.cross_entropy(logits, labels.flatten(), ignore_index=NOTHING, label_smoothing=smoothing, reduction="sum")


def count(labels: Tensor) -> int:
    """How many labels there are: how often something is asked."""
    return int((labels != NOTHING).sum())
