"""The training loop: train_steps runs one optimizer step at a time, eager, compiled or captured as a CUDA graph.

A step is atomic: what a signal interrupts has not happened. Its micro-batches share one count, so that gradient
accumulation is exact. Labels are counted before a batch goes to the device, and nothing is read back from there:
`step.loss` is a tensor until its number is asked for.

A captured step is thousands of small kernels for the price of one launch. Everything in it stays where it is: batches
are copied into the captured ones, learning rates are tensors, the guard against non-finite gradients acts on the
device. Random numbers move on with each replay. The counts of a step are captured too, so only steps whose counts are
all alike can be: those of windows over a text, and of rows that are all of one shape.
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

from regard.data.batching import batch_to_device, seeded_generator
from regard.models.state_space import StateSpaceMixer
from regard.tasks.task import LossPart, combine_losses, rank_arguments, total_counts
from regard.training.compile_cache import use_compile_cache
from regard.training.data.read import batch_tokens
from regard.training.parallel.ranks import FIRST_ROW, take_rows
from regard.training.parallel.wrap import has_unused_parameters, model_blocks, wrap_ddp
from regard.training.reproducibility import deterministic_sums, get_rng_states, set_rng_states, use_rng_states
from regard.training.run import Run, unwrap_prefetch

Results = tuple[Tensor, Tensor, Tensor]


class CapturedStep:
    """Replays a step on new batches; until it is captured the step runs as written, on the stream it will have."""

    AFTER = 3  # steps that run before: compilers have settled, and the optimizer has its state

    def __init__(self, step: Callable[[list[Any], Any], Results]) -> None:
        self.step, self.calls = step, 0
        self.stream = torch.cuda.Stream()
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batches: list[Any], parts: Any) -> Results:
        self.calls += 1
        if self.calls <= self.AFTER:
            return self.warm(batches, parts)
        if self.graph is None:
            self.capture(batches, parts)
        for mine, new in zip(self.batches, batches, strict=True):
            for held, table in zip(batch_tensors(mine), batch_tensors(new), strict=True):
                held.copy_(table)
        assert self.graph is not None
        self.graph.replay()
        loss, norm, taken = self.results
        return loss.clone(), norm.clone(), taken.clone()

    def warm(self, batches: list[Any], parts: Any) -> Results:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            results = self.step(batches, parts)
        torch.cuda.current_stream().wait_stream(self.stream)
        return results

    def capture(self, batches: list[Any], parts: Any) -> None:
        self.batches = [clone_batch(batch) for batch in batches]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self.results = self.step(self.batches, parts)
        self.graph = graph


def batch_tensors(batch: Any) -> list[Tensor]:
    """The tensors of a batch, always in the same order."""
    return [batch[name] for name in sorted(batch)] if isinstance(batch, dict) else [batch]


def clone_batch(batch: Any) -> Any:
    return {name: table.clone() for name, table in batch.items()} if isinstance(batch, dict) else batch.clone()


MIN_COMPILED_STEPS = 200  # steps from which compiling pays; it takes about as long as a hundred of them
SLOWER = 1.5  # times: 1.1 to 1.4 on CPUs (bench/results/cpus.csv)
LONG = 10.0  # minutes from which the fastest code pays
Parts = Sequence[Mapping[str, LossPart]]  # of each micro-batch: how often each thing is asked in the whole step
Way = Callable[[list[Any], Parts], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class TrainStep:
    """What happened: `loss` over the step's tokens, the gradients' `norm` before clipping, the learning rate; and
    whether the step was `taken`, which the guard may refuse."""

    number: int
    loss: Tensor
    norm: Tensor
    lr: float
    tokens: int
    seconds: float
    taken: Tensor


def train_steps(run: Run, notice: Callable[[str], object] = warnings.warn) -> Iterator[TrainStep]:
    """Advance the run by one step at a time until it is over; the clock stands still between them."""
    advance = StepRunner(run, notice)
    try:
        while not run.is_over:
            begun, compiling = time.perf_counter(), not advance.settled
            factor = run.schedule(run.step + 1, run.progress)
            run.optimizer.set_lr_factor(factor)
            with use_rng_states(run.rng_state, run.device), deterministic_sums(run.device, run.settings.deterministic):
                if run.ranks.size > 1:  # each drops its own; by the step, so that any number of ranks may go on
                    torch.manual_seed(
                        seeded_generator(run.settings.seed, "rank", run.ranks.rank, run.step).initial_seed()
                    )
                loss, norm, taken, tokens = advance()
            advance.throttle()
            run.step += 1
            run.seconds = synced_seconds(run, run.seconds + advance.count(time.perf_counter() - begun, compiling))
            yield TrainStep(run.step, loss, norm, run.optimizer.base[-1] * factor, tokens, run.seconds, taken)
    finally:
        advance.count(0.0, compiling=False)
        advance.uncompile()


# Those that have compiled something. It is the process's, as torch's compiler is: a reset by one run would throw away
# what another has compiled, so no run can know by itself when there may be one.
COMPILED_RUNNERS: "weakref.WeakSet[StepRunner]" = weakref.WeakSet()


class StepRunner:
    """One optimizer step; compiled if the settings say so, and then on a GPU captured as one graph."""

    def __init__(self, run: Run, notice: Callable[[str], object]) -> None:
        self.run, self.notice = run, notice
        self.sums: Callable[..., dict[str, Tensor]] = run.objective.loss_sums
        self.across = rank_arguments(run.objective, run.ranks.size)
        self.run_step: Way = self.step
        self.settled = not should_compile(run)  # nothing is compiled, or it has been seen to work
        self.flag: torch.cuda.Event | None = None
        self.owed: list[float] = []  # seconds of the steps that compiled
        self.replicas = self.replicate() if run.ranks.strategy == "ddp" else None
        if not self.settled:
            self.compile()

    def replicate(self) -> DistributedDataParallel:
        """The model as one of many that learn the same; the first row tells whether all of its weights learn."""
        run, before = self.run, get_rng_states(self.run.device)
        row = take_rows(unwrap_prefetch(run.data).batch(run.step * run.settings.gradient_accumulation), FIRST_ROW)
        found = has_unused_parameters(run.model, run.objective.loss_sums(run.model, batch_to_device(row, run.device)))
        set_rng_states(before, run.device)
        return wrap_ddp(run.model, lambda model, batch: self.sums(model, batch, **self.across), found)

    def compile(self) -> None:
        """The whole forward; on a CPU, for a run of minutes, one block for all: a tenth slower, compiled in half."""
        c, cuda = self.run.settings, self.run.device.type == "cuda"
        if not COMPILED_RUNNERS:  # torch compiles a function eight times and no more, for whichever models
            torch.compiler.reset()
        COMPILED_RUNNERS.add(self)
        use_compile_cache()
        if c.compile == "auto" and is_opaque(self.run.model):
            pass  # a captured step is what there is to gain
        elif not cuda and c.minutes is not None and c.minutes < LONG:
            for block in model_blocks(self.run.model):
                block.compile(dynamic=False)
        else:
            self.sums = torch.compile(
                self.run.objective.loss_sums, dynamic=False if self.run.has_fixed_shapes else None
            )
        # what is recomputed draws its random numbers a second time, which a graph has no place for
        whole = self.run.has_fixed_counts and self.run.ranks.size == 1 and not c.activation_checkpointing
        self.run_step = CapturedStep(self.step) if cuda and whole else self.step

    def __call__(self) -> tuple[Tensor, Tensor, Tensor, int]:
        run, count = self.run, self.run.settings.gradient_accumulation
        if run.carried_state is not None and unwrap_prefetch(run.data).begins(run.step):  # type: ignore[attr-defined]
            run.carried_state.forget()
        batches = [run.data.batch(run.step * count + i) for i in range(count)]
        parts = total_counts([run.objective.count_parts(batch) for batch in batches])
        tokens = sum(batch_tokens(batch) for batch in batches)
        shares = [run.ranks.share(batch, parts) for batch in batches]
        batches = [batch_to_device(batch, run.device) for batch, _ in shares]
        return *(self.run_step if self.settled else self.try_compiled)(
            batches, [counts for _, counts in shares]
        ), tokens

    def try_compiled(self, batches: list[Any], parts: Parts) -> tuple[Tensor, Tensor, Tensor]:
        """Compiling may fail where there is no compiler, and capturing: the run goes on without, and says so."""
        before, past = (
            get_rng_states(self.run.device),
            None if self.run.carried_state is None else self.run.carried_state.clone_tensors(),
        )
        try:
            done = self.run_step(batches, parts)
            self.settled = not isinstance(self.run_step, CapturedStep) or self.run_step.graph is not None
            return done
        except Exception as problem:
            if self.run.settings.compile != "auto":
                raise
            self.run.optimizer.zero_grad()
            set_rng_states(before, self.run.device)
            if self.run.carried_state is not None and past is not None:
                self.run.carried_state.load(past)
            self.use_eager(root_cause(problem))
            return self.step(batches, parts)

    def use_eager(self, why: str) -> None:
        if isinstance(self.run_step, CapturedStep) and self.run_step.calls > 1:
            self.notice(f"not captured as one graph, and slower without: {why}")
        else:
            self.notice(f"not compiled, so a step of a small model takes up to {SLOWER} times as long: {why}")
            self.uncompile()
        self.run_step, self.settled = self.step, True

    def uncompile(self) -> None:
        """Nothing compiled any more: a text of another length would only be compiled anew."""
        self.sums, self.run_step = (
            self.run.objective.loss_sums,
            self.step,
        )  # no graph outlives its run in a circle of references
        COMPILED_RUNNERS.discard(self)
        for block in model_blocks(self.run.model):
            block._compiled_call_impl = None

    def step(self, batches: list[Any], parts: Parts) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, the norm of its gradients, and whether the weights moved."""
        run, losses = self.run, []
        for place, (batch, part) in enumerate(zip(batches, parts, strict=True), 1):
            share = combine_losses(self.backward_micro_batch(batch, place, last=place == len(batches)), part)
            share.backward()
            losses.append(share.detach())
        loss = run.ranks.mean(torch.stack(losses).sum())
        norm, taken = run.optimizer.step(run.settings.max_grad_norm, lambda norm: run.guard.check(loss, norm))
        if run.ema is not None:
            run.ema.update(taken)
        if run.carried_state is not None:
            run.carried_state.mend()
        run.optimizer.zero_grad()
        return loss, norm, taken

    def backward_micro_batch(self, batch: Any, place: int, last: bool) -> dict[str, Tensor]:
        """Replicas average their gradients while those of the last micro-batch are made."""
        if self.run.carried_state is not None:
            return self.sums(self.run.carried_state.models[place - 1], batch, **self.across)
        if self.replicas is None:
            return self.sums(self.run.model, batch, **self.across)
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

    def throttle(self) -> None:
        """On a GPU, wait for the step before this one: the device is never idle, and the clock tells its time."""
        if self.run.device.type == "cuda":
            before, self.flag = self.flag, torch.cuda.Event()
            self.flag.record()
            if before is not None:
                before.synchronize()


def should_compile(run: Run) -> bool:
    """Whether the steps of a run are to be compiled."""
    c = run.settings
    long = (c.steps is None or c.steps >= MIN_COMPILED_STEPS) and (c.minutes is None or c.minutes >= 0.5)
    # never by what is left of the run: it must go on with the same bits after a resume
    bits = c.deterministic and run.device.type == "cuda"
    pays = run.device.type == "cuda" or not is_opaque(run.model)
    able = run.has_fixed_shapes and run.device.type != "mps" and not run.ranks.is_sharded and not bits and pays
    return long and able if c.compile == "auto" else bool(c.compile)


def is_opaque(model: nn.Module) -> bool:
    """Whether compilers would leave most of a model as it is: recurrent layers are one kernel, and Fourier's too."""
    return any(isinstance(part, nn.RNNBase | StateSpaceMixer) for part in model.modules())


def synced_seconds(run: Run, seconds: float) -> float:
    """The first rank's, where time decides anything: all must decide alike."""
    timed = run.settings.minutes is not None or run.settings.eval_minutes is not None
    return run.ranks.leader(seconds) if timed else seconds


def root_cause(problem: BaseException) -> str:
    """The first line of what went wrong at the bottom: compilers wrap it several times."""
    while (inner := getattr(problem, "inner_exception", None) or problem.__cause__) is not None:
        problem = inner
    if "C++ compiler" in str(problem):
        return "there is no C++ compiler; install g++ or clang++ (on macOS: xcode-select --install)"
    return next((line.strip()[:160] for line in str(problem).splitlines() if line.strip()), type(problem).__name__)
