"""The loop: one optimizer step at a time, and whatever you like between them.

A step is atomic: what a signal interrupts has not happened. Its micro-batches share one count, so that accumulation
is exact. What is asked of a batch is counted before it goes to the device, and nothing is read back from there:
`step.loss` is a tensor until somebody asks for its number.
"""

import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from regard.data import chance
from regard.recurrent.space import Space
from regard.tasks.objective import Part, shared, total, whole
from regard.train.capture import Captured
from regard.train.chance import chances, drawing, repeatable, restore
from regard.train.compile_cache import use_cache_folder
from regard.train.evaluate import moved
from regard.train.parallel.models import blocks, idle, replicated
from regard.train.parallel.ranks import FIRST, taken
from regard.train.reading import sizes
from regard.train.run import Run, inner

WORTH = 200  # steps from which compiling pays; it takes about as long as a hundred of them
SLOWER = 1.5  # times: 1.1 to 1.4 on CPUs (bench/results/cpus.csv)
LONG = 10.0  # minutes from which the fastest code pays
Parts = Sequence[Mapping[str, Part]]  # of each micro-batch: how often each thing is asked in the whole step
Way = Callable[[list[Any], Parts], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Step:
    """What happened: `loss` over the step's tokens, the gradients' `norm` before clipping, the learning rate; and
    whether the step was `taken`, which the guard may refuse."""

    number: int
    loss: Tensor
    norm: Tensor
    lr: float
    tokens: int
    seconds: float
    taken: Tensor


def train(run: Run, notice: Callable[[str], object] = warnings.warn) -> Iterator[Step]:
    """Advance the run by one step at a time until it is over; the clock stands still between them."""
    advance = Advance(run, notice)
    try:
        while not run.over:
            begun, compiling = time.perf_counter(), not advance.settled
            factor = run.schedule(run.step + 1, run.progress)
            run.optimizer.rate(factor)
            with drawing(run.chance, run.device), repeatable(run.device, run.settings.deterministic):
                if run.ranks.size > 1:  # each drops its own; by the step, so that any number of ranks may go on
                    torch.manual_seed(chance(run.settings.seed, "rank", run.ranks.rank, run.step).initial_seed())
                loss, norm, taken, tokens = advance()
            advance.keep_pace()
            run.step += 1
            run.seconds = clock(run, run.seconds + advance.count(time.perf_counter() - begun, compiling))
            yield Step(run.step, loss, norm, run.optimizer.base[-1] * factor, tokens, run.seconds, taken)
    finally:
        advance.count(0.0, compiling=False)
        advance.as_written()


under_way: "weakref.WeakSet[Advance]" = weakref.WeakSet()  # those that have compiled something


class Advance:
    """One optimizer step; compiled if the settings say so, and then on a GPU captured as one graph."""

    def __init__(self, run: Run, notice: Callable[[str], object]) -> None:
        self.run, self.notice = run, notice
        self.sums: Callable[[nn.Module, Any], dict[str, Tensor]] = run.objective.sums
        self.way: Way = self.step
        self.settled = not compiled(run)  # nothing is compiled, or it has been seen to work
        self.flag: torch.cuda.Event | None = None
        self.owed: list[float] = []  # seconds of the steps that compiled
        self.replicas = self.replicate() if run.ranks.way == "ddp" else None
        if not self.settled:
            self.compile()

    def replicate(self) -> DistributedDataParallel:
        """The model as one of many that learn the same; the first row tells whether all of its weights learn."""
        run, before = self.run, chances(self.run.device)
        row = taken(inner(run.data).batch(run.step * run.settings.accumulate), FIRST)
        found = idle(run.model, run.objective.sums(run.model, moved(row, run.device)))
        restore(before, run.device)
        return replicated(run.model, lambda model, batch: self.sums(model, batch), found)

    def compile(self) -> None:
        """The whole forward; on a CPU, for a run of minutes, one block for all: a tenth slower, compiled in half."""
        c, cuda = self.run.settings, self.run.device.type == "cuda"
        if not under_way:  # torch compiles a function eight times and no more, for whichever models
            torch.compiler.reset()
        under_way.add(self)
        use_cache_folder()
        if c.compile == "auto" and opaque(self.run.model):
            pass  # a captured step is what there is to gain
        elif not cuda and c.minutes is not None and c.minutes < LONG:
            for block in blocks(self.run.model):
                block.compile(dynamic=False)
        else:
            self.sums = torch.compile(self.run.objective.sums, dynamic=False if self.run.steady else None)
        # what is recomputed draws its random numbers a second time, which a graph has no place for
        whole = self.run.constant and self.run.ranks.size == 1 and not c.recompute
        self.way = Captured(self.step) if cuda and whole else self.step

    def __call__(self) -> tuple[Tensor, Tensor, Tensor, int]:
        run, count = self.run, self.run.settings.accumulate
        if run.carry is not None and inner(run.data).begins(run.step):  # type: ignore[attr-defined]
            run.carry.forget()
        batches = [run.data.batch(run.step * count + i) for i in range(count)]
        parts = total([run.objective.parts(batch) for batch in batches])
        tokens = sum(sizes(batch) for batch in batches)
        shares = [run.ranks.share(batch, parts) for batch in batches]
        batches = [moved(batch, run.device) for batch, _ in shares]
        with shared(run.ranks.size):
            return *(self.way if self.settled else self.careful)(batches, [counts for _, counts in shares]), tokens

    def careful(self, batches: list[Any], parts: Parts) -> tuple[Tensor, Tensor, Tensor]:
        """Compiling may fail where there is no compiler, and capturing: the run goes on without, and says so."""
        before, past = chances(self.run.device), None if self.run.carry is None else self.run.carry.copied()
        try:
            done = self.way(batches, parts)
            self.settled = not isinstance(self.way, Captured) or self.way.graph is not None
            return done
        except Exception as problem:
            if self.run.settings.compile != "auto":
                raise
            self.run.optimizer.zero_grad()
            restore(before, self.run.device)
            if self.run.carry is not None and past is not None:
                self.run.carry.load(past)
            self.fall_back(reason(problem))
            return self.step(batches, parts)

    def fall_back(self, why: str) -> None:
        if isinstance(self.way, Captured) and self.way.calls > 1:
            self.notice(f"not captured as one graph, and slower without: {why}")
        else:
            self.notice(f"not compiled, so a step of a small model takes up to {SLOWER} times as long: {why}")
            self.as_written()
        self.way, self.settled = self.step, True

    def as_written(self) -> None:
        """Nothing compiled any more: a text of another length would only be compiled anew."""
        self.sums, self.way = self.run.objective.sums, self.step  # no graph outlives its run in a circle of references
        under_way.discard(self)
        for block in blocks(self.run.model):
            block._compiled_call_impl = None

    def step(self, batches: list[Any], parts: Parts) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, the norm of its gradients, and whether the weights moved."""
        run, losses = self.run, []
        for place, (batch, part) in enumerate(zip(batches, parts, strict=True), 1):
            share = whole(self.ask(batch, place, last=place == len(batches)), part)
            share.backward()
            losses.append(share.detach())
        loss = run.ranks.mean(torch.stack(losses).sum())
        norm, taken = run.optimizer.step(run.settings.clip, lambda norm: run.guard.judge(loss, norm))
        if run.average is not None:
            run.average.update(taken)
        if run.carry is not None:
            run.carry.mend()
        run.optimizer.zero_grad()
        return loss, norm, taken

    def ask(self, batch: Any, place: int, last: bool) -> dict[str, Tensor]:
        """Replicas average their gradients while those of the last micro-batch are made."""
        if self.run.carry is not None:
            return self.sums(self.run.carry.models[place - 1], batch)
        if self.replicas is None:
            return self.sums(self.run.model, batch)
        with nullcontext() if last else self.replicas.no_sync():
            sums: dict[str, Tensor] = self.replicas(batch)
            return sums

    def count(self, seconds: float, compiling: bool) -> float:
        """The seconds of a step that the clock counts; one that compiled is counted as long as the one after it."""
        if compiling:
            self.owed.append(seconds)
            return 0.0
        self.run.compile_seconds += max(0.0, sum(self.owed) - len(self.owed) * seconds)
        seconds, self.owed = seconds * (1 + len(self.owed)), []
        return seconds

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
    bits = c.deterministic and run.device.type == "cuda"
    pays = run.device.type == "cuda" or not opaque(run.model)
    able = run.steady and run.device.type != "mps" and not run.ranks.sharded and not bits and pays
    return long and able if c.compile == "auto" else bool(c.compile)


def opaque(model: nn.Module) -> bool:
    """Whether compilers would leave most of a model as it is: recurrent layers are one kernel, and Fourier's too."""
    return any(isinstance(part, nn.RNNBase | Space) for part in model.modules())


def clock(run: Run, seconds: float) -> float:
    """The first rank's, where time decides anything: all must decide alike."""
    timed = run.settings.minutes is not None or run.settings.eval_minutes is not None
    return run.ranks.leader(seconds) if timed else seconds


def reason(problem: BaseException) -> str:
    """The first line of what went wrong at the bottom: compilers wrap it several times."""
    while (inner := getattr(problem, "inner_exception", None) or problem.__cause__) is not None:
        problem = inner
    if "C++ compiler" in str(problem):
        return "there is no C++ compiler; install g++ or clang++ (on macOS: xcode-select --install)"
    return next((line.strip()[:160] for line in str(problem).splitlines() if line.strip()), type(problem).__name__)
