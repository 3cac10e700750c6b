"""A whole run in its folder: train, log, evaluate, sample, save, and go on with it another day.

    runs/lab/  config.toml  run.json  log.jsonl  samples.jsonl  checkpoints/step-NNNNNN/
"""

import json
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard import config, measure
from regard.config import reader
from regard.data import blocks
from regard.generate.model import Transformer
from regard.hub import folder as hub
from regard.text import Tokenizer
from regard.train import checkpoint
from regard.train.device import differences, peak_memory, surroundings
from regard.train.display import Display
from regard.train.evaluate import Score, evaluate
from regard.train.log import Log, cut, line_of
from regard.train.loop import Step, train
from regard.train.run import Run
from regard.train.signals import Signals

LAG = 16  # steps whose numbers may wait on a GPU, so that nobody waits for it


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
    if (out / "log.jsonl").exists() or (out / "checkpoints").exists():
        raise config.ConfigError(f"{out}: there is a run already; resume it, or choose another folder")
    notes: list[str] = []
    run = Run.from_recipe(recipe, notice=notes.append)
    assert run.recipe is not None and isinstance(run.model, Transformer)
    try:
        (out / "checkpoints").mkdir(parents=True, exist_ok=True)
        (out / "config.toml").write_text(reader.text(run.recipe), encoding="utf8")
    except OSError as problem:
        raise config.RunError(f"{out}: cannot be written ({(problem.strerror or '').lower()}); "
                              "free some space or choose another folder") from None  # fmt: skip
    facts = {"format": 1, **surroundings(run.device), **described(run), "command": command}
    return Fitting(run, out, facts, quiet, notes).go()


def resume(out: str | Path, overrides: Iterable[str] = (), *, quiet: bool = False) -> Result:
    """Go on with a run from its newest whole checkpoint, as if nothing had happened."""
    out, changes = Path(out), list(overrides)
    hub.sweep(out / "checkpoints")
    newest = hub.newest(out)
    recipe = config.read(config.Recipe, out / "config.toml", changes)
    notes: list[str] = []
    run = Run.from_recipe(recipe, tokenizer=Tokenizer.load(newest), notice=notes.append)
    state = checkpoint.load(run, newest)
    for name in ("log", "samples"):
        cut(out / f"{name}.jsonl", int(state[name]))
    now = surroundings(run.device)
    notes += [f"{each}: the bits may differ from here on" for each in differences(state["surroundings"], now)]
    notes.append(f"{out}: goes on after step {run.step:,}")
    if changes:
        (out / "config.toml").write_text(reader.text(recipe), encoding="utf8")
    facts = read_facts(out / "run.json") or {"format": 1, **now, **described(run)}
    return Fitting(run, out, facts, quiet, notes, resumed=True).go()


class Fitting:
    """The ordinary code around the loop."""

    def __init__(
        self, run: Run, out: Path, facts: dict[str, Any], quiet: bool, notes: list[str], resumed: bool = False
    ) -> None:
        self.run, self.out, self.facts, self.quiet, self.notes = run, out, facts, quiet, notes
        self.waiting: list[Step] = []
        self.loss: float | None = None
        self.score: Score | None = None
        self.saved = run.step if resumed else -1

    def go(self) -> Result:
        run, c = self.run, self.run.settings
        write_json(self.out / "run.json", self.facts)
        with Display(run, self.quiet) as self.display, Signals() as signals, \
                Log(self.out / "log.jsonl") as self.log, Log(self.out / "samples.jsonl") as self.samples:  # fmt: skip
            self.introduce()
            for step in train(run, self.display.say):
                self.note(step)
                if signals.caught is not None:
                    break
                if c.eval_every and step.number % c.eval_every == 0 and not run.over:
                    self.evaluate(c.eval_tokens)
                if c.save_every and step.number % c.save_every == 0 and not run.over:
                    self.save()
            self.flush()
            if signals.caught is None:
                self.finish()
            if self.saved != run.step:
                self.save()
        write_json(self.out / "run.json", self.facts | {"seconds": run.seconds, "measured": self.measured()})
        loss = None if self.score is None else self.score.loss
        return Result(self.out, run.step, self.loss, loss, run.seconds, signals.caught)

    def introduce(self) -> None:
        run, recipe = self.run, self.run.recipe
        assert recipe is not None
        count = sum(weight.numel() for weight in run.model.parameters())
        epoch = getattr(run.data, "count", 0) * run.settings.context
        threads = "1 thread" if self.facts["threads"] == 1 else f"{self.facts['threads']} threads"
        self.display.say(f"{count:,} parameters, {recipe.model.embed.vocab:,} tokens in the vocabulary, {epoch:,} to "
                         f"read an epoch; {self.facts['device']}, {threads}")  # fmt: skip
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
            self.loss = float(step.loss)
            self.display.step(self.loss, step.tokens)
        del self.waiting[:count]

    def evaluate(self, tokens: int | None, whole: bool = False) -> None:
        """The loss over the validation text or its beginning, and a short sample of what the model says now."""
        run = self.run
        self.flush()
        if run.validation is not None:
            context = run.settings.context
            rows = max(1, 8192 // context)
            self.score = evaluate(run.model, blocks(run.validation, context, rows, tokens))
            line = {"step": run.step, "eval_loss": self.score.loss, "eval_tokens": self.score.count}
            self.log.write({**line, **({"whole": True} if whole else {}), "seconds": run.seconds})
            part = "the whole validation text" if whole else f"{self.score.count:,} tokens"
            self.display.say(f"step {run.step:>11,}   validation {self.score.loss:.4f} over {part}")
        temperatures = run.recipe.report.temperatures if whole and run.recipe else (0.8,)
        for temperature in temperatures:
            self.sample(temperature, run.recipe.report.new if whole and run.recipe else 200)

    def sample(self, temperature: float, new: int) -> None:
        run = self.run
        assert run.recipe is not None and isinstance(run.model, Transformer)
        prompt = run.recipe.report.prompt
        with torch.compiler.set_stance("force_eager"), warnings.catch_warnings(action="ignore"):  # it may slide
            text = run.model.generate(prompt, new=new, temperature=temperature, seed=run.settings.seed)
        self.samples.write({"step": run.step, "temperature": temperature, "prompt": prompt, "text": text})

    def finish(self) -> None:
        self.evaluate(None, whole=True)

    def save(self) -> None:
        self.flush()
        where = {"log": self.log.offset, "samples": self.samples.offset}
        folder = self.out / "checkpoints"
        here = {key: self.facts.get(key) for key in ("torch", "processor", "device", "threads")}
        checkpoint.save(self.run, folder / f"step-{self.run.step:06d}", {**where, "surroundings": here})
        self.saved = self.run.step
        checkpoint.prune(folder, self.run.settings.keep)

    def measured(self) -> dict[str, Any]:
        return {"seconds": self.run.seconds, "peak_memory": peak_memory(self.run.device)}


def described(run: Run) -> dict[str, Any]:
    """What the report tells of the run before it began: its size, and what it should cost."""
    assert run.recipe is not None
    c = run.recipe.train
    bill = measure.predict(run.recipe.model, batch=c.batch, context=c.context, optimizer=c.optimizer,
                           device=run.device.type)  # fmt: skip
    predicted = {"step_seconds": bill.step_seconds * c.accumulate, "step_flops": bill.step_flops * c.accumulate,
                 "flops_per_second": bill.flops_per_second, "memory": bill.memory}  # fmt: skip
    parameters = sum(weight.numel() for weight in run.model.parameters())
    return {"precision": c.precision, "seed": c.seed, "parameters": parameters, "predicted": predicted}


def write_json(path: Path, table: dict[str, Any]) -> None:
    """Whole or not at all."""
    part = path.with_suffix(".tmp")
    try:
        part.write_text(json.dumps(table, indent=1) + "\n", encoding="utf8")
        os.replace(part, path)
    except OSError as problem:
        part.unlink(missing_ok=True)
        raise config.RunError(f"{path}: cannot be written ({(problem.strerror or '').lower()}); "
                              "free some space or choose another folder") from None  # fmt: skip


def read_facts(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
