"""Step guard: skips a step whose loss or gradient norm is not finite, or far above its running mean.

"Far" is measured in standard deviations of the logarithm, after the first fifty steps:

    log(10 + loss)    a loss near zero may rise by a nat or two for a rare example, however small its variance was
    log(norm)         and over four times the norms of the first fifty steps, for the same reason

Thresholds were chosen on healthy language models, classifiers and regressions (warm-up, sudden drops, small batches,
memorised labels, rare examples), where no batch of eight or more may be skipped, and on batches of noise, which should
be. With log(loss) and log(norm) alone up to one step in thirty was skipped once losses came near zero.
"""

import torch
from torch import Tensor

from regard import config
from regard.training.state_dict import load_state_tensors

WARMUP_STEPS = 50  # steps before which only non-finite values are refused
DECAY = 0.98  # decay of running means and variances: about the last fifty steps
SOFT = 10.0, 1e-30  # added to loss and norm before the logarithm
FLOORS = 0.03, 0.25  # smallest standard deviations of loss and norm
ABOVE = 4.0  # multiple of the first norms that a norm must exceed


class StepGuard:
    """Decides whether a step is taken, from running statistics of the steps taken before.

    Its state is one small tensor on the model's device, so that a captured step needs no host. With several ranks loss
    and norm are global, so all ranks decide alike.
    """

    def __init__(self, c: config.StepGuard, device: torch.device | str = "cpu") -> None:
        self.c = c
        self.soft, self.floors = (torch.tensor(pair, device=device) for pair in (SOFT, FLOORS))
        self.known = torch.zeros(7, device=device)
        self.steps, self.row, self.first = self.known[:3].unbind()  # taken; skipped in a row; mean of first norms
        self.mean, self.variance = self.known[3:].split(2)  # of log loss and log norm

    @torch.no_grad()
    def check(self, loss: Tensor, norm: Tensor) -> Tensor:
        """Whether the step may be taken, as a boolean tensor on the device."""
        seen = torch.stack([loss, norm]).float()
        far = (seen.clamp(min=0) + self.soft).log() - self.mean
        taken = seen.isfinite().all()
        if self.c.spike_sigmas is not None:
            loss_is, norm_is = (far > self.c.spike_sigmas * self.variance.sqrt().maximum(self.floors)).unbind()
            spike = loss_is | (norm_is & (norm > ABOVE * self.first))
            taken = taken & ~(spike & (self.steps >= WARMUP_STEPS))
        self.update(far, norm, taken)
        return taken

    def update(self, far: Tensor, norm: Tensor, taken: Tensor) -> None:
        """Update the statistics; a skipped step only increases the count of skipped steps."""
        keep = (self.steps / (self.steps + 9)).clamp(max=DECAY)  # the first step alone sets the mean
        new, far = (1 - keep) * taken, far.where(taken, 0.0)  # 0 · NaN would be NaN
        self.variance.add_(new * far.square()).mul_(1 - new)  # exponentially weighted, with the mean before this step
        self.mean.add_(new * far)
        begins = taken & (self.steps < WARMUP_STEPS)
        self.first.add_(((norm - self.first) / (self.steps + 1)).where(begins, 0.0))
        self.steps.add_(taken)
        self.row.add_(1).mul_(~taken)

    def retry_mask(self) -> None:
        """Reset the count of consecutive skipped steps."""
        self.row.zero_()

    def state(self) -> dict[str, Tensor]:
        return {"known": self.known}

    def load(self, held: dict[str, Tensor]) -> None:
        load_state_tensors(self.state(), held, "guard")
