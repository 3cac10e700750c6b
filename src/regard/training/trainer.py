"""Trainer: the training loop with logging, validation, samples, checkpoints and signals."""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from regard.config.errors import DataError, RunError
from regard.files import manifest
from regard.files.atomic import write_json
from regard.measure.peak_memory import process_peak_bytes
from regard.tasks.next_token import NextToken
from regard.training import checkpoint, snapshots
from regard.training.carry_state import with_carried_state
from regard.training.data.read import ValidationSource
from regard.training.diagnostics import TrainingDiagnostics
from regard.training.loop import TrainStep, should_compile, train_steps
from regard.training.progress import ProgressDisplay
from regard.training.reproducibility import BIT_RELEVANT
from regard.training.run import Run
from regard.training.run_files import (
    JsonlLog,
    NullLog,
    SkippedSteps,
    counted_unit,
    introduction_lines,
    json_number,
    step_line,
)
from regard.training.signals import SignalHandler
from regard.training.tensorboard import TensorBoardLog
from regard.training.validation import ValidationScore, sample_outputs, validate

LAG = 16  # steps whose results may be pending on a GPU, so that the host does not wait
Item = TypeVar("Item")


class SignalReceived(Exception):
    """Raised when a signal arrives during an evaluation."""


@dataclass(frozen=True)
class FitResult:
    """How a run ended; `interrupted` is the signal that stopped it, if any.

    `loss` is that of the last batch; `eval_loss` and `scores` are those of the final model, or of step `best`.
    """

    out: Path
    steps: int
    loss: float | None
    eval_loss: float | None
    seconds: float
    interrupted: int | None = None
    scores: dict[str, float] | None = None
    rank: int = 0  # of this process
    best: int | None = None  # with train.keep_best: the step of `eval_loss` and `scores`


class Trainer:
    """One rank's training loop for a run, from its current step to its end or a signal.

    `due`: an evaluation during training is pending; `best`: the lowest validation loss and its step; `waited`: the
    number of evaluations since.
    """

    def __init__(
        self, run: Run, out: Path, facts: dict[str, Any], notes: list[str], state: dict[str, Any] | None = None, *,
        quiet: bool, resumed: bool = False,
    ) -> None:  # fmt: skip
        self.run, self.out, self.facts, self.quiet, self.notes = run, out, facts, quiet, notes
        state = state or {}
        self.due = bool(state.get("due"))
        self.best: dict[str, Any] | None = state.get("best")
        self.waited = int(state.get("waited") or 0)
        self.waiting: list[TrainStep] = []
        self.loss: float | None = None
        self.score: ValidationScore | None = None
        self.chosen: int | None = None  # step of the best checkpoint, set at the end of the run
        self.refusals = SkippedSteps(run, out)
        self.saved = run.step if resumed else -1
        self.health = TrainingDiagnostics(run)
        self.board: TensorBoardLog | None = None

    def train(self) -> FitResult:
        run, c, ranks = self.run, self.run.settings, self.run.ranks
        self.describe({})
        with (
            ProgressDisplay(run, self.quiet or not ranks.is_main) as self.display,
            SignalHandler(many=ranks.size > 1, speaks=ranks.local == 0) as self.signals,
            self.open_log("log.jsonl") as self.log,
            self.open_log("samples.jsonl") as self.samples,
            TensorBoardLog(self.out / "board", run.step)
            if c.tensorboard and ranks.is_main
            else nullcontext() as self.board,
        ):
            for line in (*introduction_lines(run, self.facts), *self.notes):
                self.display.say(line)
            self.take_snapshot()
            self.diagnose()
            self.advance()
            self.take_snapshot()  # the last step of a run that ended early
            if self.saved != run.step:
                self.save()  # before the final evaluation: if that fails, the training is not lost
            if run.is_over:
                with suppress(SignalReceived):
                    self.evaluate(None, whole=True)
                    self.choose()
            stopped_by = self.stop_signal()
        self.describe({"seconds": run.seconds, "measured": self.measurements()})
        loss, scores = (None, None) if self.score is None else (self.score.loss, dict(self.score.scores))
        return FitResult(self.out, run.step, self.loss, loss, run.seconds, stopped_by, scores, ranks.rank,
                         self.chosen)  # fmt: skip

    def describe(self, more: dict[str, Any]) -> None:
        if self.run.ranks.is_main:
            write_json(self.out / "run.json", self.facts | more)

    def open_log(self, name: str) -> JsonlLog:
        return JsonlLog(self.out / name) if self.run.ranks.is_main else NullLog()

    def advance(self) -> None:
        """Train step by step, with evaluations, snapshots and checkpoints when they are due."""
        run, c = self.run, self.run.settings
        steps = train_steps(run, self.warn)
        if should_compile(run) and not run.is_over:
            self.display.compile()
        before = run.seconds
        while not self.stop_signal() and (step := self.next(steps)):
            self.note(step)
            self.take_snapshot()
            self.due = (c.eval_every is not None and step.number % c.eval_every == 0) or is_interval_crossed(
                before, run.seconds, c.eval_minutes)  # fmt: skip
            before = run.seconds
            self.diagnose()
            if c.save_every and step.number % c.save_every == 0 and not run.is_over and self.saved != run.step:
                self.save()

    def warn(self, line: str) -> None:
        """Show a message of the loop, for example that compiling failed."""
        self.display.compiling = None
        self.display.say(line)

    def next(self, steps: Iterator[TrainStep]) -> TrainStep | None:
        """The next step. If the data fail, a checkpoint is saved first; by a single process, as other ranks may not
        know."""
        try:
            return next(steps, None)
        except (DataError, RunError):
            if self.run.ranks.size == 1 and self.saved != self.run.step:
                self.save()
            raise

    def stop_signal(self) -> int | None:
        """The signal received by any rank, once all ranks agree."""
        agreed = self.run.ranks.max(self.signals.caught or 0)
        if agreed:  # a signal that arrives while ranks agree on none must still be there at the next check
            self.signals.caught = agreed
        return agreed or None

    # ---------------------------------------------------------------- steps

    def note(self, step: TrainStep) -> None:
        """Log a step; on a GPU a few steps later, so that the GPU never waits for the host."""
        self.waiting.append(step)
        if self.run.device.type == "cpu":
            self.flush()
        elif len(self.waiting) > LAG:
            self.flush(keep=1)

    def flush(self, keep: int = 0) -> None:
        count = len(self.waiting) - keep
        for step in self.waiting[:count]:
            line = step_line(step, self.run.settings.max_grad_norm)
            if "skipped" in line:
                line["batches"] = self.refusals.describe_rows(step)
            self.write(line)
            self.loss = float(step.loss)
            self.display.step(self.loss, step.tokens, step.number)
            if said := self.refusals.note_step(step, line):
                self.display.say(said)
            if self.refusals.too_many:
                del self.waiting[: self.waiting.index(step) + 1]
                self.abort(line)
        del self.waiting[:count]

    def abort(self, line: dict[str, Any]) -> None:
        """End the run with a checkpoint: skipped steps changed nothing, so the state is that of the last good step."""
        problem = self.refusals.problem(line)
        self.refusals.row = []
        self.run.guard.retry_mask()
        self.save()
        raise problem

    def write(self, line: dict[str, Any]) -> None:
        self.log.write(line)
        if self.board is not None:
            self.board.line(line)

    # ---------------------------------------------------------------- evaluations

    def diagnose(self) -> None:
        """Evaluate if it is due. A signal may interrupt it: it remains due, and resuming starts with it."""
        if not self.due or self.run.is_over:
            return
        self.flush()
        before = self.log.offset, self.samples.offset
        try:
            self.evaluate(self.run.settings.eval_tokens)
            self.due = False
        except SignalReceived:
            self.log.truncate(before[0])
            self.samples.truncate(before[1])
        else:
            self.compare()

    def evaluate(self, tokens: int | None, whole: bool = False) -> None:
        """Evaluate the loss over all validation data or `tokens` of them, and write samples."""
        run = self.run
        self.flush()
        with run.ema.applied() if run.ema is not None else nullcontext():
            if run.validation is not None:
                self.score = self.score_validation(run.validation, tokens, whole)
                self.report(self.score, whole)
            self.sample(whole)
        if not whole and run.ranks.is_main and not run.ranks.is_sharded:
            self.write({"step": run.step, "health": self.health.look(run.step), "seconds": run.seconds})
            for warning in self.health.warnings():
                self.display.say(warning)

    def score_validation(self, validation: ValidationSource, tokens: int | None, whole: bool) -> ValidationScore:
        """The score over all validation data or a part of them."""
        run, batches = self.run, self.until_stopped(validation.batches(tokens))
        telling = "lm" in run.task.heads  # scores would double the cost
        marks = not isinstance(run.task, NextToken) and (whole or not telling)
        return validate(with_carried_state(run.model, validation), batches, run.task, marks, run.ranks)

    def sample(self, whole: bool) -> None:
        """Write samples on rank 0; all ranks learn of a signal. A sharded model writes none."""
        ranks, stopped = self.run.ranks, False
        if ranks.is_sharded:
            return
        try:
            for line in sample_outputs(self.run, whole, self.until_caught, self.display.say) if ranks.is_main else ():
                self.samples.write(line)
        except SignalReceived:
            stopped = True
        if ranks.max(stopped):
            raise SignalReceived

    def report(self, score: ValidationScore, whole: bool) -> None:
        run = self.run
        marked = {name: json_number(value) for name, value in score.scores.items()}
        line = {"step": run.step, "eval_loss": json_number(score.loss), "eval_tokens": score.count, **marked}
        self.write({**line, **({"whole": True} if whole else {}), "seconds": run.seconds})
        unit = "tokens" if run.recipe is None else counted_unit(run.recipe.task, run.recipe.model)
        part = f"all {score.count:,} {unit}" if whole else f"{score.count:,} {unit}"
        if whole and isinstance(run.task, NextToken):
            part = "the whole validation text"
        marks = "".join(f", {name} {value:.4f}" for name, value in score.scores.items())
        self.display.say(f"step {run.step:>11,}   validation {score.loss:.4f} over {part}{marks}")

    def compare(self) -> None:
        """Record the best evaluation, and end the run if there was no improvement for `patience` evaluations."""
        run, c = self.run, self.run.settings
        if self.score is None:
            return
        if self.score.loss < (inf if self.best is None else self.best["loss"]):
            marks = {name: json_number(value) for name, value in self.score.scores.items()}
            self.best = {"step": run.step, "loss": self.score.loss, "count": self.score.count, "scores": marks}
            self.waited = 0
            if c.keep_best and self.saved != run.step:
                self.save()
            elif c.keep_best:
                self.point(run.step)
        else:
            self.waited += 1
        if c.patience is not None and self.waited >= c.patience:
            run.ended = True
            since = "ever" if self.best is None else f"at step {self.best['step']:,}"
            self.display.say(f"step {run.step:>11,}   no better than {since} for {c.patience} evaluations, so it ends "
                             "here")  # fmt: skip

    def choose(self) -> None:
        """Choose the best checkpoint at the end of the run: the last one or the best of those before.

        Evaluations during training may use a part of the validation data, so the two are compared over all of them. The
        saved state keeps the best of training, so that a longer run compares over the same part.
        """
        run, last = self.run, self.score
        if not run.settings.keep_best or last is None:
            return
        self.chosen, before = run.step, self.score_before(last)
        if before is not None:
            older, score = before
            wins = score.loss <= last.loss or last.loss != last.loss
            told = (f"over all of the validation data {score.loss:.4f} at step {older:,}, and {last.loss:.4f} at the "
                    f"last one, {run.step:,}")  # fmt: skip
            if wins:
                self.chosen, self.score = older, score
                marked = {name: json_number(value) for name, value in score.scores.items()}
                self.write({"step": older, "eval_loss": json_number(score.loss), "eval_tokens": score.count, **marked,
                            "whole": True, "best": True, "seconds": run.seconds})  # fmt: skip
            self.display.say(f"{told}: {self.out / 'best'} is step {self.chosen:,}")
        self.point(self.chosen)

    def score_before(self, last: ValidationScore) -> tuple[int, ValidationScore] | None:
        """The best earlier step and its score over all validation data."""
        run, best = self.run, self.best
        if best is None or best["step"] == run.step:
            return None
        if best.get("count") == last.count and best["scores"].keys() == last.scores.keys():  # it used all data
            marks = {name: float(value) for name, value in best["scores"].items()}
            return best["step"], replace(last, sum=best["loss"] * max(1, last.count), parts={}, scores=marks)
        path = self.out / "checkpoints" / f"step-{best['step']:06d}"
        if wrong := run.ranks.broadcast(lambda: manifest.verify_manifest(path)):
            self.display.say(f"{wrong}; so the last step counts as the best")
            return None
        here = run.step, run.seconds, run.ended, run.compile_seconds
        checkpoint.load_checkpoint(run, path)
        try:
            assert run.validation is not None
            with run.ema.applied() if run.ema is not None else nullcontext():
                return best["step"], self.score_validation(run.validation, None, whole=True)
        finally:
            run.step, run.seconds, run.ended, run.compile_seconds = here

    def until_stopped(self, items: Iterable[Item]) -> Iterator[Item]:
        """Iterate until a signal arrives on any rank; resuming repeats what is left out."""
        for item in items:
            if self.stop_signal():
                raise SignalReceived
            yield item

    def until_caught(self, items: Iterable[Item]) -> Iterator[Item]:
        """Iterate until a signal arrives on this process."""
        for item in items:
            if self.signals.caught is not None:
                raise SignalReceived
            yield item

    # ---------------------------------------------------------------- checkpoints and snapshots

    def take_snapshot(self) -> None:
        """Write a snapshot if train.snapshots names this step: before the step's checkpoint, so that resuming from
        there lacks none."""
        if snapshots.is_due(self.run, self.out):
            with self.signals.shield():
                snapshots.save_snapshot(self.run, self.out)

    def save(self) -> None:
        """Write a checkpoint and flush the log up to it; signals are deferred."""
        self.flush()
        with self.signals.shield():
            self.log.sync()
            self.samples.sync()
            if self.board is not None:
                self.board.sync()
            self.write_checkpoint()

    def write_checkpoint(self) -> None:
        where = {"log": self.log.offset, "samples": self.samples.offset, "due": self.due, "best": self.best,
                 "waited": self.waited}  # fmt: skip
        folder = self.out / "checkpoints"
        here = {key: self.facts.get(key) for key in (*BIT_RELEVANT, "ranks")}
        made = checkpoint.save_checkpoint(
            self.run, folder / f"step-{self.run.step:06d}", {**where, "surroundings": here}
        )
        self.saved = self.run.step
        if not self.run.ranks.is_main:
            return
        best = self.best["step"] if self.best is not None and self.run.settings.keep_best else None
        checkpoint.prune_checkpoints(folder, self.run.settings.keep_checkpoints, made, best)
        if best == self.run.step:
            self.point(best)

    def point(self, step: int) -> None:
        if self.run.ranks.is_main:
            checkpoint.link_checkpoint(self.out / "best", self.out / "checkpoints" / f"step-{step:06d}")

    def measurements(self) -> dict[str, Any]:
        run = self.run
        return {
            "seconds": run.seconds,
            "compile_seconds": run.compile_seconds,
            "peak_memory": process_peak_bytes(run.device),
        }


def is_interval_crossed(before: float, now: float, minutes: float | None) -> bool:
    """Whether the clock passed a multiple of so many minutes."""
    return minutes is not None and int(before / (60 * minutes)) < int(now / (60 * minutes))
