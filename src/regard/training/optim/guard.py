"""Step guard: skips a step whose loss or gradients are not finite, or far above what they were.

Far above is so many standard deviations above the running mean, in logarithms, after the first fifty steps:

    log(10 + loss)    a loss near zero may rise by a nat or two when a rare example comes, however calm it was
    log(norm)         and over four times the norms of the first fifty steps, for the same reason

Found on language models, classifiers and regressions that were healthy (warm-up, falls, small batches, labels learned
by heart, rare surprises), of which no batch of eight or more may be refused, and batches of noise, which should be.
With log(loss) and log(norm) alone up to one step in thirty was refused once losses came near zero.
"""

import torch
from torch import Tensor

from regard import config
from regard.training.state_dict import load_state_tensors

WARMUP_STEPS = 50  # steps before which nothing counts as far
DECAY = 0.98  # of running means and variances: about the last fifty steps
SOFT = 10.0, 1e-30  # added to loss and norm, so that nothing is the logarithm of zero
FLOORS = 0.03, 0.25  # no deviation is smaller, however calm the run
ABOVE = 4.0  # times the norms of the first steps


class StepGuard:
    """Judges steps, and learns from those that are taken what is usual.

    All it knows is one small tensor where the model is, so that a captured step can ask it without a host. With many
    processes loss and norm are those of all of them together, so all of them judge alike.
    """

    def __init__(self, c: config.StepGuard, device: torch.device | str = "cpu") -> None:
        self.c = c
        self.soft, self.floors = (torch.tensor(pair, device=device) for pair in (SOFT, FLOORS))
        self.known = torch.zeros(7, device=device)
        self.steps, self.row, self.first = self.known[:3].unbind()  # taken; refused in a row; the mean of first norms
        self.mean, self.variance = self.known[3:].split(2)  # of loss and norm, as logarithms

    @torch.no_grad()
    def check(self, loss: Tensor, norm: Tensor) -> Tensor:
        """Whether the step may be taken: True or False, on the device."""
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
        """Nothing from a step that was refused, but that it was."""
        keep = (self.steps / (self.steps + 9)).clamp(max=DECAY)  # the first step alone says all
        new, far = (1 - keep) * taken, far.where(taken, 0.0)
        self.variance.add_(new * far.square()).mul_(1 - new)
        self.mean.add_(new * far)
        begins = taken & (self.steps < WARMUP_STEPS)
        self.first.add_(((norm - self.first) / (self.steps + 1)).where(begins, 0.0))
        self.steps.add_(taken)
        self.row.add_(1).mul_(~taken)

    def retry_mask(self) -> None:
        """Count refusals from the beginning."""
        self.row.zero_()

    def state(self) -> dict[str, Tensor]:
        return {"known": self.known}

    def load(self, held: dict[str, Tensor]) -> None:
        load_state_tensors(self.state(), held, "guard")
