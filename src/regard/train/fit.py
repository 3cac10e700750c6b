"""A whole run in its folder: train, log, evaluate, sample, save, and go on with it another day.

    runs/lab/  config.toml  run.json  log.jsonl  samples.jsonl  checkpoints/step-NNNNNN/
"""

import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from regard import config
from regard.config import reader
from regard.config.errors import unwritable
from regard.data import blocks
from regard.generate.model import Transformer
from regard.hub import folder as hub
from regard.text import Tokenizer
from regard.train import checkpoint
from regard.train.alone import alone
from regard.train.device import BITS, differences, peak_memory, surroundings
from regard.train.display import Display
from regard.train.evaluate import Score, evaluate
from regard.train.facts import described, read_facts, write_json, write_text
from regard.train.log import Log, cut, line_of
from regard.train.loop import Step, train
from regard.train.run import Run
from regard.train.signals import Signals

AT_ONCE = 8192  # tokens that are evaluated together
WARM, SHORT = 0.8, 200  # temperature and length of the samples on the way
Item = TypeVar("Item")
LAG = 16  # steps whose numbers may wait on a GPU, so that nobody waits for it


class Stopped(Exception):
    """A signal came during an evaluation."""


@dataclass(frozen=True)
class Result:
    """How a run ended; `interrupted` is the signal that stopped it, if one did."""

    out: Path
    steps: int
    loss: float | None
    eval_loss: float | None
    seconds: float
    interrupted: int | None = None


def fit(recipe: config.Recipe, out: str | Path, *, command: str = "", quiet: bool = False) -> Result:
    """Train what a recipe describes, in a folder of its own."""
    out = Path(out)
    make_folder(out)
    with alone(out):
        if (out / "log.jsonl").exists() or (out / "checkpoints").exists():
            raise config.ConfigError(f"{out}: there is a run already; resume it, or choose another folder")
        notes: list[str] = []
        run = Run.from_recipe(recipe, notice=notes.append)
        assert run.recipe is not None
        facts = {"format": 1, **surroundings(run.device), **described(run), "command": command}
        write_text(out / "config.toml", reader.text(run.recipe))  # first: from here on it can be resumed
        make_folder(out / "checkpoints")
        return Fitting(run, out, facts, notes, quiet=quiet).go()


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise unwritable(path, problem) from None


def resume(out: str | Path, overrides: Iterable[str] = (), *, quiet: bool = False) -> Result:
    """Go on with a run from its newest whole checkpoint, or from its beginning, as if nothing had happened."""
    out, changes = Path(out), list(overrides)
    for name in (line.partition("=")[0].strip() for line in changes):
        if name not in config.MAY_CHANGE:
            raise config.ConfigError(f"{name}: a run goes on as it began, only {' and '.join(config.MAY_CHANGE)} may "
                                     "change; begin a new run for the rest")  # fmt: skip
    with alone(out):
        hub.sweep(out / "checkpoints")
        newest = None if unsaved(out) else hub.newest(out)
        return Fitting(*restored(out, newest, changes), quiet=quiet, resumed=newest is not None).go()


def unsaved(out: Path) -> bool:
    """Whether a run was stopped before its first checkpoint; one that ended has lost them, and is not begun again."""
    known = (out / "config.toml").is_file() and not hub.steps(out)
    return known and "measured" not in read_facts(out / "run.json")


def restored(out: Path, newest: Path | None, changes: list[str]) -> tuple[Run, Path, dict[str, Any], list[str], bool]:
    """The run as a checkpoint has it, or as its config begins it, what is to be said, and whether to evaluate first."""
    recipe = config.read(config.Recipe, out / "config.toml", changes)
    spoken = any(name == "-" or name.startswith("-.") for name in recipe.data.sources)
    if spoken and (sys.stdin is None or sys.stdin.isatty()):
        raise config.DataError(f"{out}: its text came from standard input; pipe the same text in again to resume")
    notes: list[str] = []
    tokenizer = None if newest is None else Tokenizer.load(newest)
    run = Run.from_recipe(recipe, tokenizer=tokenizer, notice=notes.append)
    now = surroundings(run.device)
    start: dict[str, Any] = {"log": 0, "samples": 0, "surroundings": now}
    state = start if newest is None else checkpoint.load(run, newest)
    if recipe.train.steps is not None and recipe.train.steps < run.step:
        raise config.ConfigError(f"train.steps: {recipe.train.steps:,}, and {out} has done {run.step:,}; "
                                 "ask for more, or begin a new run")  # fmt: skip
    make_folder(out / "checkpoints")
    checkpoint.prune(out / "checkpoints", recipe.train.keep, newest)  # it may have been stopped before it could
    notes += [gap for name in ("log", "samples") if (gap := cut(out / f"{name}.jsonl", state[name]))]
    notes += [f"{each}: the bits may differ from here on" for each in differences(state["surroundings"], now)]
    end = "is finished; train.steps or train.minutes makes it longer" if run.over else "goes on"
    notes.append(f"{out}: {f'{end}, after step {run.step:,}' if newest else 'nothing was saved, so it begins again'}")
    if changes:
        write_text(out / "config.toml", reader.text(recipe))
    known = read_facts(out / "run.json") or {"format": 1, **described(run), "started": now["started"]}
    facts = {**known, **{key: now[key] for key in now if key != "started"}}
    return run, out, facts, notes, bool(state.get("due"))


class Fitting:
    """The ordinary code around the loop."""

    def __init__(
        self, run: Run, out: Path, facts: dict[str, Any], notes: list[str], due: bool = False, *, quiet: bool,
        resumed: bool = False,
    ) -> None:  # fmt: skip
        self.run, self.out, self.facts, self.quiet, self.notes = run, out, facts, quiet, notes
        self.due = due  # an evaluation on the way that is not made yet
        self.waiting: list[Step] = []
        self.loss: float | None = None
        self.score: Score | None = None
        self.skipped = False
        self.saved = run.step if resumed else -1

    def go(self) -> Result:
        run, c = self.run, self.run.settings
        write_json(self.out / "run.json", self.facts)
        with Display(run, self.quiet) as self.display, Signals() as self.signals, \
                Log(self.out / "log.jsonl") as self.log, Log(self.out / "samples.jsonl") as self.samples:  # fmt: skip
            self.introduce()
            self.look()
            steps = train(run, self.display.say)
            while self.signals.caught is None and (step := next(steps, None)):
                self.note(step)
                self.due = c.eval_every is not None and step.number % c.eval_every == 0
                self.look()
                if c.save_every and step.number % c.save_every == 0 and not run.over:
                    self.save()
            if self.saved != run.step:
                self.save()  # before the last evaluation: whatever fails there, what was learned is kept
            if run.over:
                with suppress(Stopped):
                    self.evaluate(None, whole=True)
        write_json(self.out / "run.json", self.facts | {"seconds": run.seconds, "measured": self.measured()})
        loss = None if self.score is None else self.score.loss
        return Result(self.out, run.step, self.loss, loss, run.seconds, self.signals.caught)

    def introduce(self) -> None:
        run, recipe = self.run, self.run.recipe
        assert recipe is not None
        count = sum(weight.numel() for weight in run.model.parameters())
        epoch = getattr(run.data, "count", 0) * run.settings.context
        threads = "1 thread" if self.facts["threads"] == 1 else f"{self.facts['threads']} threads"
        self.display.say(f"{count:,} parameters, {recipe.model.embed.vocab:,} tokens in the vocabulary, {epoch:,} to "
                         f"read an epoch; {self.facts['device']}, {threads}")  # fmt: skip
        c = run.settings
        warmup = c.schedule.warmup
        if c.steps is not None and warmup > c.steps:
            self.notes.append(f"train.schedule.warmup: {warmup:,} steps are longer than the run of {c.steps:,}; its "
                              "learning rate is never reached, so make it shorter")  # fmt: skip
        for note in self.notes:
            self.display.say(note)

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
            self.log.write(line)
            if "skipped" in line and not self.skipped:
                self.skipped = True
                self.display.say(f"step {step.number:>11,}   its gradients are no numbers, so nothing was learned from "
                                 "it; if that goes on, lower train.optimizer.lr")  # fmt: skip
            self.loss = float(step.loss)
            self.display.step(self.loss, step.tokens)
        del self.waiting[:count]

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

    def evaluate(self, tokens: int | None, whole: bool = False) -> None:
        """The loss over the validation text or its beginning, and a short sample of what the model says now."""
        run = self.run
        self.flush()
        if run.validation is not None:
            context = run.settings.context
            rows = max(1, AT_ONCE // context)
            text = blocks(run.validation, context, rows, tokens)
            self.score = evaluate(run.model, self.until_stopped(text))
            line = {"step": run.step, "eval_loss": self.score.loss, "eval_tokens": self.score.count}
            self.log.write({**line, **({"whole": True} if whole else {}), "seconds": run.seconds})
            part = "the whole validation text" if whole else f"{self.score.count:,} tokens"
            self.display.say(f"step {run.step:>11,}   validation {self.score.loss:.4f} over {part}")
        for temperature in run.recipe.report.temperatures if whole and run.recipe else (WARM,):
            self.sample(temperature, run.recipe.report.new if whole and run.recipe else SHORT)

    def sample(self, temperature: float, new: int) -> None:
        run = self.run
        assert run.recipe is not None and isinstance(run.model, Transformer)
        prompt = run.prompt
        try:
            with torch.compiler.set_stance("force_eager"), warnings.catch_warnings(action="ignore"):  # it may slide
                text = "".join(self.until_stopped(
                    run.model.stream(prompt, new=new, temperature=temperature, seed=run.settings.seed)
                ))  # fmt: skip
        except config.RunError as problem:  # a model that has diverged says nothing, and its report says that
            self.display.say(f"no sample: {problem}")
            return
        self.samples.write({"step": run.step, "temperature": temperature, "prompt": prompt, "text": text})

    def until_stopped(self, items: Iterable[Item]) -> Iterator[Item]:
        """What is left out here, resuming does again."""
        for item in items:
            if self.signals.caught is not None:
                raise Stopped
            yield item

    def save(self) -> None:
        """A checkpoint, and the log up to it, are on disk when this is done; no signal comes between."""
        self.flush()
        with self.signals.shield():
            self.log.sync()
            self.samples.sync()
            self.write_checkpoint()

    def write_checkpoint(self) -> None:
        where = {"log": self.log.offset, "samples": self.samples.offset, "due": self.due}
        folder = self.out / "checkpoints"
        here = {key: self.facts.get(key) for key in BITS}
        made = checkpoint.save(self.run, folder / f"step-{self.run.step:06d}", {**where, "surroundings": here})
        self.saved = self.run.step
        checkpoint.prune(folder, self.run.settings.keep, made)

    def measured(self) -> dict[str, Any]:
        return {"seconds": self.run.seconds, "peak_memory": peak_memory(self.run.device)}
