"""The ordinary code around the loop: log, evaluate, sample, save, and stop when it is time."""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from regard.config import DataError, RunError
from regard.hub import folder as hub
from regard.tasks import NextToken
from regard.train import checkpoint
from regard.train.board import Board
from regard.train.carry import through
from regard.train.device import BITS, peak_memory
from regard.train.display import Display
from regard.train.evaluate import Score, evaluate
from regard.train.facts import write_json
from regard.train.health import Health
from regard.train.introduction import introduction
from regard.train.log import Log, Unheard, line_of, plain
from regard.train.loop import Step, compiled, train
from regard.train.nouns import counted
from regard.train.reading import Validation
from regard.train.refusals import Refusals
from regard.train.run import Run
from regard.train.samples import samples
from regard.train.signals import Signals

LAG = 16  # steps whose numbers may wait on a GPU, so that nobody waits for it
Item = TypeVar("Item")


class Stopped(Exception):
    """A signal came during an evaluation."""


@dataclass(frozen=True)
class Result:
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
    best: int | None = None  # the step that `eval_loss` and `scores` are of, with train.best


class Fitting:
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
        self.waiting: list[Step] = []
        self.loss: float | None = None
        self.score: Score | None = None
        self.chosen: int | None = None  # the step of the best checkpoint, once the run is over
        self.refusals = Refusals(run, out)
        self.saved = run.step if resumed else -1
        self.health = Health(run)
        self.board: Board | None = None

    def go(self) -> Result:
        run, c, ranks = self.run, self.run.settings, self.run.ranks
        self.describe({})
        with Display(run, self.quiet or not ranks.leads) as self.display, \
                Signals(many=ranks.size > 1, speaks=ranks.local == 0) as self.signals, \
                self.opened("log.jsonl") as self.log, self.opened("samples.jsonl") as self.samples, \
                (Board(self.out / "board", run.step) if c.board and ranks.leads else nullcontext()) as self.board:
            for line in (*introduction(run, self.facts), *self.notes):
                self.display.say(line)
            self.look()
            self.advance()
            if self.saved != run.step:
                self.save()  # before the last evaluation: whatever fails there, what was learned is kept
            if run.over:
                with suppress(Stopped):
                    self.evaluate(None, whole=True)
                    self.choose()
            self.asked()
        self.describe({"seconds": run.seconds, "measured": self.measured()})
        loss, scores = (None, None) if self.score is None else (self.score.loss, dict(self.score.scores))
        return Result(self.out, run.step, self.loss, loss, run.seconds, self.signals.caught, scores, ranks.rank,
                      self.chosen)  # fmt: skip

    def describe(self, more: dict[str, Any]) -> None:
        if self.run.ranks.leads:
            write_json(self.out / "run.json", self.facts | more)

    def opened(self, name: str) -> Log:
        return Log(self.out / name) if self.run.ranks.leads else Unheard()

    def advance(self) -> None:
        """One step after the other, and between them what is due."""
        run, c = self.run, self.run.settings
        steps = train(run, self.warn)
        if compiled(run) and not run.over:
            self.display.compile()
        before = run.seconds
        while not self.asked() and (step := self.next(steps)):
            self.note(step)
            self.due = (c.eval_every is not None and step.number % c.eval_every == 0) or passed(
                before, run.seconds, c.eval_minutes)  # fmt: skip
            before = run.seconds
            self.look()
            if c.save_every and step.number % c.save_every == 0 and not run.over and self.saved != run.step:
                self.save()

    def warn(self, line: str) -> None:
        """What the loop has to say: that it could not compile."""
        self.display.compiling = None
        self.display.say(line)

    def next(self, steps: Iterator[Step]) -> Step | None:
        """What was learned is kept, also where the data fail; by one process, since others may know of no failure."""
        try:
            return next(steps, None)
        except (DataError, RunError):
            if self.run.ranks.size == 1 and self.saved != self.run.step:
                self.save()
            raise

    def asked(self) -> bool:
        """Whether a signal has come, to this process or to another one of the run."""
        self.signals.caught = self.run.ranks.most(self.signals.caught or 0) or None
        return self.signals.caught is not None

    # ---------------------------------------------------------------- steps

    def note(self, step: Step) -> None:
        """Log a step; on a GPU a few later, so that it never waits for the host."""
        self.waiting.append(step)
        if self.run.device.type == "cpu":
            self.flush()
        elif len(self.waiting) > LAG:
            self.flush(keep=1)

    def flush(self, keep: int = 0) -> None:
        count = len(self.waiting) - keep
        for step in self.waiting[:count]:
            line = line_of(step, self.run.settings.clip)
            if "skipped" in line:
                line["batches"] = self.refusals.named(step)
            self.write(line)
            self.loss = float(step.loss)
            self.display.step(self.loss, step.tokens, step.number)
            if said := self.refusals.heed(step, line):
                self.display.say(said)
            if self.refusals.too_many:
                del self.waiting[: self.waiting.index(step) + 1]
                self.give_up(line)
        del self.waiting[:count]

    def give_up(self, line: dict[str, Any]) -> None:
        """Nothing has moved since the last good step, so what it left can be saved."""
        problem = self.refusals.problem(line)
        self.refusals.row = []
        self.run.guard.again()
        self.save()
        raise problem

    def write(self, line: dict[str, Any]) -> None:
        self.log.write(line)
        if self.board is not None:
            self.board.line(line)

    # ---------------------------------------------------------------- evaluations

    def look(self) -> None:
        """Evaluate on the way, if it is time. A signal need not wait: it is due still, and resuming begins with it."""
        if not self.due or self.run.over:
            return
        self.flush()
        before = self.log.offset, self.samples.offset
        try:
            self.evaluate(self.run.settings.eval_tokens)
            self.due = False
        except Stopped:
            self.log.back(before[0])
            self.samples.back(before[1])
        else:
            self.compare()

    def evaluate(self, tokens: int | None, whole: bool = False) -> None:
        """The loss over the validation data or a part of them, and a sample of what the model says now."""
        run = self.run
        self.flush()
        with run.average.worn() if run.average is not None else nullcontext():
            if run.validation is not None:
                self.score = self.ask(run.validation, tokens, whole)
                self.tell(self.score, whole)
            self.speak(whole)
        if not whole and run.ranks.leads and not run.ranks.sharded:
            self.write({"step": run.step, "health": self.health.look(run.step), "seconds": run.seconds})
            for warning in self.health.warnings():
                self.display.say(warning)

    def ask(self, validation: Validation, tokens: int | None, whole: bool) -> Score:
        """The score over the validation data or a part of them."""
        run, batches = self.run, self.until_stopped(validation.batches(tokens))
        telling = "vocabulary" in run.task.heads  # scores would cost as much again
        marks = not isinstance(run.task, NextToken) and (whole or not telling)
        return evaluate(through(run.model, validation), batches, run.task, marks, run.ranks)

    def speak(self, whole: bool) -> None:
        """Samples, by one process for all, which hear whether a signal came; a model in parts has no one to speak."""
        ranks, stopped = self.run.ranks, False
        if ranks.sharded:
            return
        try:
            for line in samples(self.run, whole, self.until_caught, self.display.say) if ranks.leads else ():
                self.samples.write(line)
        except Stopped:
            stopped = True
        if ranks.most(stopped):
            raise Stopped

    def tell(self, score: Score, whole: bool) -> None:
        run = self.run
        marked = {name: plain(value) for name, value in score.scores.items()}
        line = {"step": run.step, "eval_loss": plain(score.loss), "eval_tokens": score.count, **marked}
        self.write({**line, **({"whole": True} if whole else {}), "seconds": run.seconds})
        unit = "tokens" if run.recipe is None else counted(run.recipe.task, run.recipe.model)
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
            marks = {name: plain(value) for name, value in self.score.scores.items()}
            self.best = {"step": run.step, "loss": self.score.loss, "count": self.score.count, "scores": marks}
            self.waited = 0
            if c.best and self.saved != run.step:
                self.save()
            elif c.best:
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
        if not run.settings.best or last is None:
            return
        self.chosen, before = run.step, self.score_before(last)
        if before is not None:
            older, score = before
            wins = score.loss <= last.loss or last.loss != last.loss
            told = (f"over all of the validation data {score.loss:.4f} at step {older:,}, and {last.loss:.4f} at the "
                    f"last one, {run.step:,}")  # fmt: skip
            if wins:
                self.chosen, self.score = older, score
                marked = {name: plain(value) for name, value in score.scores.items()}
                self.write({"step": older, "eval_loss": plain(score.loss), "eval_tokens": score.count, **marked,
                            "whole": True, "best": True, "seconds": run.seconds})  # fmt: skip
            self.display.say(f"{told}: {self.out / 'best'} is step {self.chosen:,}")
        self.point(self.chosen)

    def score_before(self, last: Score) -> tuple[int, Score] | None:
        """The best step before the last one and its score over all of the validation data."""
        run, best = self.run, self.best
        if best is None or best["step"] == run.step:
            return None
        if best.get("count") == last.count and best["scores"].keys() == last.scores.keys():  # on the way it was all
            marks = {name: float(value) for name, value in best["scores"].items()}
            return best["step"], replace(last, sum=best["loss"] * max(1, last.count), parts={}, scores=marks)
        path = self.out / "checkpoints" / f"step-{best['step']:06d}"
        if wrong := run.ranks.told(lambda: hub.verify(path)):
            self.display.say(f"{wrong}; so the best that is left is the last step")
            return None
        here = run.step, run.seconds, run.ended, run.compile_seconds
        checkpoint.load(run, path)
        try:
            assert run.validation is not None
            with run.average.worn() if run.average is not None else nullcontext():
                return best["step"], self.ask(run.validation, None, whole=True)
        finally:
            run.step, run.seconds, run.ended, run.compile_seconds = here

    def until_stopped(self, items: Iterable[Item]) -> Iterator[Item]:
        """What is left out here, resuming does again."""
        for item in items:
            if self.asked():
                raise Stopped
            yield item

    def until_caught(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same, for one process alone."""
        for item in items:
            if self.signals.caught is not None:
                raise Stopped
            yield item

    # ---------------------------------------------------------------- checkpoints

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
        here = {key: self.facts.get(key) for key in (*BITS, "ranks")}
        made = checkpoint.save(self.run, folder / f"step-{self.run.step:06d}", {**where, "surroundings": here})
        self.saved = self.run.step
        if not self.run.ranks.leads:
            return
        best = self.best["step"] if self.best is not None and self.run.settings.best else None
        checkpoint.prune(folder, self.run.settings.keep, made, best)
        if best == self.run.step:
            self.point(best)

    def point(self, step: int) -> None:
        if self.run.ranks.leads:
            checkpoint.point(self.out / "best", self.out / "checkpoints" / f"step-{step:06d}")

    def measured(self) -> dict[str, Any]:
        run = self.run
        return {"seconds": run.seconds, "compile_seconds": run.compile_seconds, "peak_memory": peak_memory(run.device)}


def passed(before: float, now: float, minutes: float | None) -> bool:
    """Whether the clock went past another so many minutes."""
    return minutes is not None and int(before / (60 * minutes)) < int(now / (60 * minutes))
