"""The next token, at every place at once: p(x) = p(x_1) p(x_2 | x_1) ... (teacher forcing)."""

import torch.nn.functional as F
from torch import Tensor, nn

from regard.tasks.objective import Part


class NextToken:
    """A batch is ids (B, N + 1): the first N are read, the last N are predicted."""

    def parts(self, batch: Tensor) -> dict[str, Part]:
        return {"loss": Part(batch.shape[0] * (batch.shape[1] - 1))}

    def sums(self, model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        logits = model(batch[:, :-1])
        return {"loss": F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten(), reduction="sum")}  #: S085
