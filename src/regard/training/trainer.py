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

LAG = 16  # steps whose numbers may wait on a GPU, so that the host does not wait for it
Item = TypeVar("Item")


class SignalReceived(Exception):
    """A signal came during an evaluation."""


@dataclass(frozen=True)
class FitResult:
    """How a run ended; `interrupted` is the signal that stopped it, if one did.

    `loss` is that of the last step's batch; `eval_loss` and `scores` are those of the model that the run stands for.
    """

    out: Path
    steps: int
    loss: float | None
    eval_loss: float | None
    seconds: float
    interrupted: int | None = None
    scores: dict[str, float] | None = None
    rank: int = 0  # of the process that says so
    best: int | None = None  # the step that `eval_loss` and `scores` are of, with train.keep_best


class Trainer:
    """One process's work on a run, from where it is to its end or to a signal.

    `due` is an evaluation on the way that is not made yet; `best` the lowest validation loss and its step, `waited` how
    many evaluations there were since.
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
        self.chosen: int | None = None  # the step of the best checkpoint, once the run is over
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
            self.take_snapshot()  # of a run that ended early
            if self.saved != run.step:
                self.save()  # before the last evaluation: whatever fails there, what was learned is kept
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
        """One step after the other, and between them what is due."""
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
        """What the loop has to say: that it could not compile."""
        self.display.compiling = None
        self.display.say(line)

    def next(self, steps: Iterator[TrainStep]) -> TrainStep | None:
        """What was learned is kept, also where the data fail; by one process, since others may know of no failure."""
        try:
            return next(steps, None)
        except (DataError, RunError):
            if self.run.ranks.size == 1 and self.saved != self.run.step:
                self.save()
            raise

    def stop_signal(self) -> int | None:
        """The signal that has come to this process or to another one of the run, once all of them know of it."""
        agreed = self.run.ranks.max(self.signals.caught or 0)
        if agreed:  # only then: a signal that comes while the ranks agree on none must be there when they next ask
            self.signals.caught = agreed
        return agreed or None

    # ---------------------------------------------------------------- steps

    def note(self, step: TrainStep) -> None:
        """Log a step; on a GPU a few later, so that it never waits for the host."""
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
        """Nothing has moved since the last good step, so what it left can be saved."""
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
        """Evaluate on the way, if it is time. A signal need not wait: it is due still, and resuming begins with it."""
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
        """The loss over the validation data or a part of them, and a sample of what the model says now."""
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
        """The score over the validation data or a part of them."""
        run, batches = self.run, self.until_stopped(validation.batches(tokens))
        telling = "lm" in run.task.heads  # scores would cost as much again
        marks = not isinstance(run.task, NextToken) and (whole or not telling)
        return validate(with_carried_state(run.model, validation), batches, run.task, marks, run.ranks)

    def sample(self, whole: bool) -> None:
        """Samples, by one process for all, which hear whether a signal came; a model in parts has no one to speak."""
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
        """Keep the best, and end a run that has not become better for long enough."""
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
        """When the run is over: which checkpoint is the best, the last one or the best of those before.

        Evaluations on the way may have read a part of the validation data, so the two are compared over all of them.
        The state that a longer run goes on from keeps the best on the way, which is compared over the same part.
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
        """The best step before the last one and its score over all of the validation data."""
        run, best = self.run, self.best
        if best is None or best["step"] == run.step:
            return None
        if best.get("count") == last.count and best["scores"].keys() == last.scores.keys():  # on the way it was all
            marks = {name: float(value) for name, value in best["scores"].items()}
            return best["step"], replace(last, sum=best["loss"] * max(1, last.count), parts={}, scores=marks)
        path = self.out / "checkpoints" / f"step-{best['step']:06d}"
        if wrong := run.ranks.broadcast(lambda: manifest.verify_manifest(path)):
            self.display.say(f"{wrong}; so the best that is left is the last step")
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
        """What is left out here, resuming does again."""
        for item in items:
            if self.stop_signal():
                raise SignalReceived
            yield item

    def until_caught(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same, for one process alone."""
        for item in items:
            if self.signals.caught is not None:
                raise SignalReceived
            yield item

    # ---------------------------------------------------------------- checkpoints and snapshots

    def take_snapshot(self) -> None:
        """Keep the weights of this step, if train.snapshots says so: before the step's checkpoint, so that a run that
        goes on from there lacks none."""
        if snapshots.is_due(self.run, self.out):
            with self.signals.shield():
                snapshots.save_snapshot(self.run, self.out)

    def save(self) -> None:
        """A checkpoint, and the log up to it, are on disk when this is done; no signal comes between."""
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
    """Whether the clock went past another so many minutes."""
    return minutes is not None and int(before / (60 * minutes)) < int(now / (60 * minutes))
