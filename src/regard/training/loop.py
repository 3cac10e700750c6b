"""The training loop: train_steps runs one optimizer step at a time, eager, compiled or captured as a CUDA graph.

A step is atomic: an interrupted step has no effect. Its micro-batches share one label count, so that gradient
accumulation is exact. Labels are counted before a batch goes to the device, and nothing is read back from there:
`step.loss` stays a tensor until it is converted.

A captured step launches thousands of small kernels at the cost of one. All its tensors keep their addresses: batches
are copied into the captured ones, learning rates are tensors, the guard against non-finite gradients acts on the
device. Random number generators advance with each replay. Label counts are captured too, so only steps with equal
counts can be captured: windows over a text, and rows of one shape.
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
    """Captures a step as a CUDA graph and replays it on new batches; earlier steps run eagerly on the same stream."""

    AFTER = 3  # eager steps before capture: compilation is done, and the optimizer has its state

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
        return loss.clone(), norm.clone(), taken.clone()  # the next replay overwrites the originals

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


MIN_COMPILED_STEPS = 200  # from so many steps compiling pays; it takes about as long as a hundred of them
SLOWER = 1.5  # slowdown without compiling: 1.1 to 1.4 on CPUs (bench/results/cpus.csv)
LONG = 10.0  # minutes of a run from which whole-graph compilation pays
Parts = Sequence[Mapping[str, LossPart]]  # for each micro-batch the label counts of the whole step
Way = Callable[[list[Any], Parts], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class TrainStep:
    """Result of an optimizer step: `loss` over its tokens, gradient `norm` before clipping, learning rate; `taken` is
    False if the guard skipped the step.
    """

    number: int
    loss: Tensor
    norm: Tensor
    lr: float
    tokens: int
    seconds: float
    taken: Tensor


def train_steps(run: Run, notice: Callable[[str], object] = warnings.warn) -> Iterator[TrainStep]:
    """Run optimizer steps until the run is over; time between steps does not count."""
    advance = StepRunner(run, notice)
    try:
        while not run.is_over:
            begun, compiling = time.perf_counter(), not advance.settled
            factor = run.schedule(run.step + 1, run.progress)
            run.optimizer.set_lr_factor(factor)
            with use_rng_states(run.rng_state, run.device), deterministic_sums(run.device, run.settings.deterministic):
                if run.ranks.size > 1:  # other dropout on each rank, by step: their number may change
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


# Runners with compiled code. Process-wide, like torch's compiler: a reset by one run would discard the code of
# another, so a run may reset only when this is empty.
COMPILED_RUNNERS: "weakref.WeakSet[StepRunner]" = weakref.WeakSet()


class StepRunner:
    """Runs one optimizer step; compiled if configured, and then on a GPU captured as a CUDA graph."""

    def __init__(self, run: Run, notice: Callable[[str], object]) -> None:
        self.run, self.notice = run, notice
        self.sums: Callable[..., dict[str, Tensor]] = run.objective.loss_sums
        self.across = rank_arguments(run.objective, run.ranks.size)
        self.run_step: Way = self.step
        self.settled = not should_compile(run)  # nothing is compiled, or the compiled step has worked once
        self.flag: torch.cuda.Event | None = None
        self.owed: list[float] = []  # seconds of steps that compiled
        self.replicas = self.replicate() if run.ranks.strategy == "ddp" else None
        if not self.settled:
            self.compile()

    def replicate(self) -> DistributedDataParallel:
        """The model in DDP; a first row shows whether all weights get a gradient."""
        run, before = self.run, get_rng_states(self.run.device)
        row = take_rows(unwrap_prefetch(run.data).batch(run.step * run.settings.gradient_accumulation), FIRST_ROW)
        found = has_unused_parameters(run.model, run.objective.loss_sums(run.model, batch_to_device(row, run.device)))
        set_rng_states(before, run.device)
        return wrap_ddp(run.model, lambda model, batch: self.sums(model, batch, **self.across), found)

    def compile(self) -> None:
        """Compile the forward; on a CPU, for a short run, one block for all: 10% slower, half the compile time."""
        c, cuda = self.run.settings, self.run.device.type == "cuda"
        if not COMPILED_RUNNERS:  # torch compiles a function at most eight times, over all models
            torch.compiler.reset()
        COMPILED_RUNNERS.add(self)
        use_compile_cache()
        if c.compile == "auto" and is_opaque(self.run.model):
            pass  # only graph capture gains speed
        elif not cuda and c.minutes is not None and c.minutes < LONG:
            for block in model_blocks(self.run.model):
                block.compile(dynamic=False)
        else:
            self.sums = torch.compile(
                self.run.objective.loss_sums, dynamic=False if self.run.has_fixed_shapes else None
            )
        # recomputation restores RNG states, which a CUDA graph does not allow
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
        """First compiled step; if compiling or capturing fails, the run continues without and warns."""
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
            self.notice(f"not captured as one graph, so slower: {why}")
        else:
            self.notice(f"not compiled, so a step of a small model takes up to {SLOWER} times as long: {why}")
            self.uncompile()
        self.run_step, self.settled = self.step, True

    def uncompile(self) -> None:
        """Remove compiled code: a text of another length would be compiled again."""
        self.sums, self.run_step = (
            self.run.objective.loss_sums,
            self.step,
        )  # no reference cycle keeps a graph alive after its run
        COMPILED_RUNNERS.discard(self)
        for block in model_blocks(self.run.model):
            block._compiled_call_impl = None

    def step(self, batches: list[Any], parts: Parts) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, the gradient norm, and whether the weights were updated."""
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
        """Forward of a micro-batch; DDP averages gradients only in the backward of the last one."""
        if self.run.carried_state is not None:
            return self.sums(self.run.carried_state.models[place - 1], batch, **self.across)
        if self.replicas is None:
            return self.sums(self.run.model, batch, **self.across)
        with nullcontext() if last else self.replicas.no_sync():
            sums: dict[str, Tensor] = self.replicas(batch)
            return sums

    def count(self, seconds: float, compiling: bool) -> float:
        """The seconds that count for a step; a compiling step counts as long as the next one."""
        if compiling:
            self.owed.append(seconds)
            return 0.0
        self.run.compile_seconds += max(0.0, sum(self.owed) - len(self.owed) * seconds)
        seconds, self.owed = seconds * (1 + len(self.owed)), []
        return seconds

    def throttle(self) -> None:
        """On a GPU, wait for the previous step: the device stays busy, and the clock measures its time."""
        if self.run.device.type == "cuda":
            before, self.flag = self.flag, torch.cuda.Event()
            self.flag.record()
            if before is not None:
                before.synchronize()


def should_compile(run: Run) -> bool:
    """Whether the steps of a run should be compiled."""
    c = run.settings
    long = (c.steps is None or c.steps >= MIN_COMPILED_STEPS) and (c.minutes is None or c.minutes >= 0.5)
    # not from the remaining steps: a resumed run must compute the same bits
    bits = c.deterministic and run.device.type == "cuda"
    pays = run.device.type == "cuda" or not is_opaque(run.model)
    able = run.has_fixed_shapes and run.device.type != "mps" and not run.ranks.is_sharded and not bits and pays
    return long and able if c.compile == "auto" else bool(c.compile)


def is_opaque(model: nn.Module) -> bool:
    """Whether compilers would leave most of a model unchanged: recurrent layers and Fourier transforms are single
    kernels."""
    return any(isinstance(part, nn.RNNBase | StateSpaceMixer) for part in model.modules())


def synced_seconds(run: Run, seconds: float) -> float:
    """The seconds of rank 0 where time decides anything: all ranks must decide alike."""
    timed = run.settings.minutes is not None or run.settings.eval_minutes is not None
    return run.ranks.leader(seconds) if timed else seconds


def root_cause(problem: BaseException) -> str:
    """The first line of the innermost cause: compilers wrap an error several times."""
    while (inner := getattr(problem, "inner_exception", None) or problem.__cause__) is not None:
        problem = inner
    if "C++ compiler" in str(problem):
        return "there is no C++ compiler; install g++ or clang++ (on macOS: xcode-select --install)"
    return next((line.strip()[:160] for line in str(problem).splitlines() if line.strip()), type(problem).__name__)
