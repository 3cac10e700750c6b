"""How does a series go on? The next rows of all channels at once, each number marked by how far it is off.

    (said - came) / deviation of the training rows       squared, or its size; so channels of all units count alike
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config import ConfigError
from regard.tasks.metrics import ratio
from regard.tasks.objective import Part
from regard.tasks.rows import Batch
from regard.tasks.task import Answers, Task, enter


@enter("forecast")
@dataclass(frozen=True, eq=False)
class Forecast(Task):
    """The rows that come next; `scale` are the deviations of the channels in the training rows."""

    c: config.Forecast = config.Forecast()
    scale: tuple[float, ...] = ()

    heads = ("forecast",)

    def check(self, model: config.Transformer) -> None:
        if not isinstance(model.embed, config.Series):
            raise ConfigError(f"model.embed.kind: {model.embed.kind!r}, and task 'forecast' is asked of series; set it "
                              "to series")  # fmt: skip
        super().check(model)

    def vocabularies(self, model: config.Transformer) -> list[tuple[str, int, int]]:
        return []

    def parts(self, batch: Batch) -> dict[str, Part]:
        return {"loss": Part(batch["target"].numel())}

    def missed(self, model: nn.Module, batch: Batch) -> Tensor:  # (B, horizon, C)
        """How far off each number is, in deviations."""
        far: Tensor = model(batch["ids"]).float() - batch["target"]
        return far / torch.tensor(self.scale).to(far.device, non_blocking=True) if self.scale else far

    def sums(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        far = self.missed(model, batch)
        if self.c.loss == "mse":
            return {"loss": far.square().sum()}
        if self.c.loss == "mae":
            return {"loss": far.abs().sum()}
        return {"loss": 2 * F.huber_loss(far, torch.zeros_like(far), reduction="sum")}

    def answers(self, model: nn.Module, batch: Batch) -> Answers:
        """How far off each window was: the mean square and the mean size. All that was said would be a long list."""
        far = self.missed(model, batch)
        marks: list[list[float]] = torch.stack([far.square().mean((1, 2)), far.abs().mean((1, 2))], 1).tolist()
        return {"loss": marks}

    def expected(self, batch: Batch) -> Answers:
        return {"loss": [[0.0, 0.0] for _ in batch["ids"]]}

    def score(self, said: Answers, meant: Answers) -> dict[str, float]:
        """Windows are of one size, so the mean over windows is that over all numbers."""
        squares, sizes = zip(*said["loss"], strict=True) if said["loss"] else ((), ())
        return {"mse": ratio(math.fsum(squares), len(squares)), "mae": ratio(math.fsum(sizes), len(sizes))}
