"""The loop: one optimizer step at a time, and whatever you like between them.

A step is atomic: what a signal interrupts has not happened. Its micro-batches share one count, so that accumulation
is exact. Nothing is read back from the device here: `step.loss` is a tensor until somebody asks for its number.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.core.model import Trunk
from regard.tasks.objective import total, whole
from regard.train.capture import Captured
from regard.train.chance import chances, drawing, repeatable, restore
from regard.train.run import Run

WORTH = 200  # steps from which compiling pays; it takes about as long as a hundred of them
LONG = 10.0  # minutes from which the fastest code pays


@dataclass(frozen=True)
class Step:
    """What happened: `loss` over the step's tokens, the gradients' `norm` before clipping, the learning rate."""

    number: int
    loss: Tensor
    norm: Tensor
    lr: float
    tokens: int
    seconds: float


def train(run: Run, notice: Callable[[str], object] = warnings.warn) -> Iterator[Step]:
    """Advance the run by one step at a time until it is over; the clock stands still between them."""
    advance = Advance(run, notice)
    try:
        while not run.over:
            begun = time.perf_counter()
            factor = run.schedule(run.step + 1, run.progress)
            run.optimizer.rate(factor)
            with drawing(run.chance, run.device), repeatable(run.device):
                loss, norm, tokens = advance()
            advance.keep_pace()
            run.step += 1
            run.seconds += time.perf_counter() - begun
            yield Step(run.step, loss, norm, run.optimizer.base[-1] * factor, tokens, run.seconds)
    finally:
        advance.as_written()


class Advance:
    """One optimizer step; compiled if the settings say so, and then on a GPU captured as one graph."""

    def __init__(self, run: Run, notice: Callable[[str], object]) -> None:
        self.run, self.notice = run, notice
        self.sums: Callable[[nn.Module, Tensor], dict[str, Tensor]] = run.objective.sums
        self.way: Callable[[list[Tensor]], tuple[Tensor, Tensor]] = self.step
        self.settled = not compiled(run)  # nothing is compiled, or it has been seen to work
        self.flag: torch.cuda.Event | None = None
        if not self.settled:
            self.compile()

    def compile(self) -> None:
        """The whole forward; on a CPU, for a run of minutes, one block for all: a tenth slower, compiled in half."""
        c, cuda = self.run.settings, self.run.device.type == "cuda"
        if not cuda and c.minutes is not None and c.minutes < LONG:
            for block in blocks(self.run.model):
                block.compile(dynamic=False)
        else:
            self.sums = torch.compile(self.run.objective.sums, dynamic=False)
        self.way = Captured(self.step) if cuda else self.step

    def __call__(self) -> tuple[Tensor, Tensor, int]:
        run, count = self.run, self.run.settings.accumulate
        batches = [run.data.batch(run.step * count + i) for i in range(count)]
        tokens = sum(batch.numel() - batch.shape[0] for batch in batches)
        if run.device.type == "cuda":
            batches = [batch.pin_memory() for batch in batches]
        batches = [batch.to(run.device, non_blocking=True) for batch in batches]
        return *(self.way if self.settled else self.careful)(batches), tokens

    def careful(self, batches: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Compiling may fail where there is no compiler, and capturing: the run goes on without, and says so."""
        chance = chances(self.run.device)
        try:
            done = self.way(batches)
            self.settled = not isinstance(self.way, Captured) or self.way.graph is not None
            return done
        except Exception as problem:
            if self.run.settings.compile != "auto":
                raise
            self.run.optimizer.zero_grad()
            restore(chance, self.run.device)
            self.fall_back(reason(problem))
            return self.step(batches)

    def fall_back(self, why: str) -> None:
        if isinstance(self.way, Captured) and self.way.calls > 1:
            self.notice(f"not captured as one graph, and slower without: {why}")
        else:
            self.notice(f"not compiled, and slower without: {why}")
            self.as_written()
        self.way, self.settled = self.step, True

    def as_written(self) -> None:
        """Nothing compiled any more: a text of another length would only be compiled anew."""
        self.sums = self.run.objective.sums
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

    def keep_pace(self) -> None:
        """On a GPU, wait for the step before this one: the device is never idle, and the clock tells its time."""
        if self.run.device.type == "cuda":
            before, self.flag = self.flag, torch.cuda.Event()
            self.flag.record()
            if before is not None:
                before.synchronize()


def compiled(run: Run) -> bool:
    """Whether the steps of a run are to be compiled."""
    c = run.settings
    long = (c.steps is None or c.steps >= WORTH) and (c.minutes is None or c.minutes >= 0.5)
    # never by what is left of the run: it must go on with the same bits after a resume
    return long and run.device.type != "mps" if c.compile == "auto" else bool(c.compile)


def blocks(model: nn.Module) -> list[nn.Module]:
    return [block for part in model.modules() if isinstance(part, Trunk) for block in part.blocks]


def reason(problem: BaseException) -> str:
    """The first line of what went wrong at the bottom: compilers wrap it several times."""
    while (inner := getattr(problem, "inner_exception", None) or problem.__cause__) is not None:
        problem = inner
    return next((line.strip()[:160] for line in str(problem).splitlines() if line.strip()), type(problem).__name__)
