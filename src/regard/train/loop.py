"""The loop: one optimizer step at a time, and whatever you like between them.

A step is atomic: what a signal interrupts has not happened. Its micro-batches share one count, so that accumulation
is exact. Nothing is read back from the device here: `step.loss` is a tensor until somebody asks for its number.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.core.model import Trunk
from regard.tasks.objective import total, whole
from regard.train.capture import Captured
from regard.train.run import Run

WORTH = 200  # steps from which compiling pays; it takes about as long as a hundred of them


@dataclass(frozen=True)
class Step:
    """What happened: `loss` over the step's tokens, the gradients' `norm` before clipping, the learning rate."""

    number: int
    loss: Tensor
    norm: Tensor
    lr: float
    tokens: int
    seconds: float


def train(run: Run, notice: Callable[[str], object] = lambda text: None) -> Iterator[Step]:
    """Advance the run by one step at a time until it is over; the clock stands still between them."""
    advance = Advance(run, notice)
    while not run.over:
        begun = time.perf_counter()
        factor = run.schedule(run.step + 1, run.progress)
        run.optimizer.rate(factor)
        loss, norm, tokens = advance()
        run.step += 1
        run.seconds += time.perf_counter() - begun
        yield Step(run.step, loss, norm, run.optimizer.base[-1] * factor, tokens, run.seconds)


class Advance:
    """One optimizer step; compiled if the settings say so, and on a GPU captured as one graph."""

    def __init__(self, run: Run, notice: Callable[[str], object]) -> None:
        self.run, self.notice, self.calls = run, notice, 0
        self.sums: Callable[[nn.Module, Tensor], dict[str, Tensor]] = run.objective.sums
        self.compiled = self.wanted() and self.compile()
        self.captured: Captured | None = None

    def wanted(self) -> bool:
        c = self.run.settings
        long = (c.steps or WORTH) - self.run.step >= WORTH and (c.minutes is None or c.minutes >= 0.5)
        return long and self.run.device.type != "mps" if c.compile == "auto" else bool(c.compile)

    def compile(self) -> bool:
        """On a GPU the whole forward; on a CPU block by block, which compiles in half the time and runs as fast."""
        if self.run.device.type == "cuda":
            self.sums = torch.compile(self.run.objective.sums, dynamic=False)
        else:
            for block in blocks(self.run.model):
                block.compile(dynamic=False)
        return True

    def __call__(self) -> tuple[Tensor, Tensor, int]:
        run, device = self.run, self.run.device
        count = run.settings.accumulate
        batches = [run.data.batch(run.step * count + i) for i in range(count)]
        tokens = sum(batch.numel() - batch.shape[0] for batch in batches)
        if device.type == "cuda":
            batches = [batch.pin_memory().to(device, non_blocking=True) for batch in batches]
        self.calls += 1
        if self.captured is not None:
            return *self.captured(batches), tokens
        if device.type == "cuda" and self.compiled and self.calls == Captured.AFTER:
            self.captured = self.capture(batches)
            if self.captured is not None:
                return *self.captured(batches), tokens
        return *self.careful(batches), tokens

    def careful(self, batches: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The first compiled step may fail where there is no compiler: then the run goes on without, and says so."""
        if not self.compiled or self.calls > 1:
            return self.step(batches)
        chance = torch.get_rng_state()
        try:
            return self.step(batches)
        except Exception as problem:
            if self.run.settings.compile != "auto":
                raise
            self.uncompile()
            self.run.optimizer.zero_grad()
            torch.set_rng_state(chance)
            reason = str(problem).strip().splitlines()[0][:120] if str(problem).strip() else type(problem).__name__
            self.notice(f"not compiled, which is slower but the same: {reason}")
            return self.step(batches)

    def uncompile(self) -> None:
        self.compiled, self.sums = False, self.run.objective.sums
        for block in blocks(self.run.model):
            block._compiled_call_impl = None

    def step(self, batches: list[Tensor]) -> tuple[Tensor, Tensor]:
        run = self.run
        parts = total([run.objective.parts(batch) for batch in batches])
        losses = []
        for batch in batches:
            loss = whole(self.sums(run.model, batch), parts)
            loss.backward()
            losses.append(loss.detach())
        norm = run.optimizer.step(run.settings.clip)
        run.optimizer.zero_grad()
        return torch.stack(losses).sum(), norm

    def capture(self, batches: list[Tensor]) -> Captured | None:
        with suppress(RuntimeError):
            return Captured(self.step, batches)
        self.notice("the step could not be captured as one graph; it runs kernel by kernel")
        return None


def blocks(model: nn.Module) -> list[nn.Module]:
    return [block for part in model.modules() if isinstance(part, Trunk) for block in part.blocks]
