"""Time series forecasting: the next rows of a series, all channels at once, with squared or absolute error.

(prediction - target) / standard deviation of the training rows       so channels of all units count alike
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError
from regard.tasks.collate import TaskBatch
from regard.tasks.metrics import safe_ratio
from regard.tasks.task import LossPart, Task, TaskOutputs, register_task


@register_task("forecasting")
@dataclass(frozen=True, eq=False)
class Forecasting(Task):
    """Forecasting task; `scale` are the channels' standard deviations in the training rows."""

    c: config.Forecasting = config.Forecasting()
    scale: tuple[float, ...] = ()

    heads = ("forecast",)

    def check(self, model: config.Transformer) -> None:
        if not isinstance(model.embed, config.SeriesEmbedding):
            raise ConfigError(f"model.embed.kind: {model.embed.kind!r}, and task 'forecasting' needs time series; set "
                              "it to series")  # fmt: skip
        super().check(model)

    def vocabularies(self, model: config.Transformer) -> list[tuple[str, int, int]]:
        return []

    def count_parts(self, batch: TaskBatch) -> dict[str, LossPart]:
        return {"loss": LossPart(batch["target"].numel())}

    def deviations(self, model: nn.Module, batch: TaskBatch) -> Tensor:  # (B, horizon, C)
        """The error of each value in standard deviations."""
        far: Tensor = model(batch["ids"]).float() - batch["target"]
        return far / torch.tensor(self.scale).to(far.device, non_blocking=True) if self.scale else far

    def loss_sums(self, model: nn.Module, batch: TaskBatch) -> dict[str, Tensor]:
        far = self.deviations(model, batch)
        if self.c.loss == "mse":
            return {"loss": far.square().sum()}
        if self.c.loss == "mae":
            return {"loss": far.abs().sum()}
        return {"loss": 2 * F.huber_loss(far, torch.zeros_like(far), reduction="sum")}

    def answers(self, model: nn.Module, batch: TaskBatch) -> TaskOutputs:
        """The mean squared and mean absolute error of each window, rather than all predictions, which would be
        large."""
        far = self.deviations(model, batch)
        marks: list[list[float]] = torch.stack([far.square().mean((1, 2)), far.abs().mean((1, 2))], 1).tolist()
        return {"loss": marks}

    def expected_answers(self, batch: TaskBatch) -> TaskOutputs:
        return {"loss": [[0.0, 0.0] for _ in batch["ids"]]}

    def score(self, predictions: TaskOutputs, labels: TaskOutputs) -> dict[str, float]:
        """The mean over windows, which equals that over all values, since windows have one size."""
        squares, sizes = zip(*predictions["loss"], strict=True) if predictions["loss"] else ((), ())
        return {"mse": safe_ratio(math.fsum(squares), len(squares)), "mae": safe_ratio(math.fsum(sizes), len(sizes))}
