"""Tuning by hand, done by a machine: one setting after the other, in the order of what they matter, keeping the best.

    learning rate  ->  warm-up  ->  batch  ->  dropout  ->  shape                                       (S101)

Each stage tries values around the best so far, from the same seeds. What was tried before is not tried again. Not a
search of all combinations: it finds a good valley soon, and not the deepest one.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard import config
from regard.data import store
from regard.train.compare.comparison import Comparison
from regard.train.compare.members import Tell, silent
from regard.train.compare.study import Part, Study, axes, slug
from regard.train.compare.table import Spread, spread
from regard.train.facts import write_text
from regard.train.fit import make_folder
from regard.zoo import read_recipe

Changes = tuple[str, ...]
Offers = Callable[[config.Recipe], Iterator[Changes]]
AS_IT_IS = "as it is"


@dataclass(frozen=True)
class Trial:
    """Settings that were tried in a stage, and what came of them."""

    stage: str
    name: str
    changes: Changes
    loss: Spread | None
    refused: str = ""
    kept: bool = False


def rates(c: config.Recipe) -> Iterator[Changes]:
    lr = c.train.optimizer.lr
    for factor in (0.3, 3.0):
        yield (f"train.optimizer.lr={lr * factor:.3g}",)


def warmups(c: config.Recipe) -> Iterator[Changes]:
    """A half and twice as long; from none, a twentieth of the run."""
    warmup, steps = c.train.schedule.warmup, c.train.steps
    for each in (warmup // 2, 2 * warmup) if warmup else (max(1, (steps or 1000) // 20),):
        if steps is None or each <= steps // 2:
            yield (f"train.schedule.warmup={each}",)


def batches(c: config.Recipe) -> Iterator[Changes]:
    """Half and twice as many rows, for as many tokens: twice and half as many steps."""
    name = "batch" if c.train.tokens is None else "tokens"
    size = int(getattr(c.train, name))
    for numerator, denominator in ((1, 2), (2, 1)):
        made = max(1, size * numerator // denominator)
        steps = () if c.train.steps is None else (f"train.steps={max(1, round(c.train.steps * size / made))}",)
        yield (f"train.{name}={made}", *steps)


def dropouts(c: config.Recipe) -> Iterator[Changes]:
    for rate in (0.0, 0.1, 0.2):
        yield (f"model.dropout={rate}",)


def shapes(c: config.Recipe) -> Iterator[Changes]:
    """Deeper and narrower, shallower and wider: about as many weights, of which a block has 12·dim²."""
    trunk: Any = c.model.trunk
    heads = getattr(getattr(trunk, "attention", None), "heads", 1)
    if not isinstance(heads, int):
        return
    for factor in (0.5, 2.0):
        depth, unit = round(trunk.depth * factor), 2 * heads
        dim = max(unit, round(trunk.dim / math.sqrt(factor) / unit) * unit)
        if depth >= 1:
            yield (f"model.depth={depth}", f"model.dim={dim}")


STAGES: dict[str, tuple[str, Offers]] = {  #: S101
    "learning rate": ("train.optimizer.lr", rates), "warm-up": ("train.schedule.warmup", warmups),
    "batch": ("train.batch", batches), "dropout": ("model.dropout", dropouts), "shape": ("model.dim", shapes),
}  # fmt: skip


def stages(keys: Iterable[str]) -> dict[str, Offers]:
    """The stages in their order. A key with several values says what is tried in its own stage, or is one of its own
    after all others."""
    found = {name: offers for name, (_, offers) in STAGES.items()}
    for key, values in axes(keys):
        if len(values) > 1:
            name = next((name for name, (setting, _) in STAGES.items() if setting == key), key)
            found[name] = these(key, values)
    return found


def these(key: str, values: list[str]) -> Offers:
    return lambda c: ((f"{key}={value}",) for value in values)


Found = tuple[Spread | None, str]  # the loss, or why there is none


class Tuning:
    """A recipe on its way to a better one; each stage is a comparison in a folder of its own."""

    def __init__(
        self, recipe: str, keys: Changes, out: Path, *, seeds: int = 1, command: str = "", tell: Tell = silent
    ) -> None:
        self.recipe, self.out, self.seeds, self.command, self.tell = recipe, out, seeds, command, tell
        self.best: Changes = tuple(f"{key}={values[0]}" for key, values in axes(keys) if len(values) == 1)
        self.stages = stages(keys)
        self.trials: list[Trial] = []
        self.known: dict[str, Found] = {}

    def go(self) -> int | None:
        """All stages; the signal that stopped it, if one did."""
        make_folder(self.out)
        for place, (stage, offers) in enumerate(self.stages.items(), 1):
            if (stopped := self.stage(self.out / slug(f"{place} {stage}"), stage, offers)) is not None:
                return stopped
        write_text(self.out / "tuned.toml", config.text(read_recipe(self.recipe, self.best)))
        return None

    def stage(self, folder: Path, stage: str, offers: Offers) -> int | None:
        """Try what is offered around the best so far, and the best itself where nobody knows it yet."""
        around = offers(read_recipe(self.recipe, self.best))
        asked = {AS_IT_IS: self.best, **{" ".join(each): over(self.best, each) for each in around}}
        asked = {name: c for name, c in asked.items() if name == AS_IT_IS or self.key(c) != self.key(self.best)}
        stopped = self.learn(folder, stage, {n: c for n, c in asked.items() if self.key(c) not in self.known})
        if stopped is not None:
            return stopped
        tried = [Trial(stage, name, changes, *self.known[self.key(changes)]) for name, changes in asked.items()]
        able = [trial for trial in tried if trial.loss is not None]
        if not able:
            raise config.RunError(f"{folder}: nothing could be tried; {tried[0].refused}")
        best = min(able, key=lambda trial: trial.loss.mean if trial.loss else math.inf)
        self.best, self.trials = best.changes, [*self.trials, *(replace(each, kept=each is best) for each in tried)]
        return None

    def learn(self, folder: Path, stage: str, new: dict[str, Changes]) -> int | None:
        """Train with each of some settings."""
        if not new:
            return None
        parts = tuple(Part(recipe=self.recipe, name=slug(name), title=name, settings=changes)
                      for name, changes in new.items())  # fmt: skip
        compared = Comparison(Study(seeds=self.seeds, parts=parts), folder, command=self.command, measured=False,
                              tell=lambda line: self.tell(f"{stage}: {line}"))  # fmt: skip
        if (stopped := compared.go()) is not None:
            return stopped
        for table, changes in zip(compared.tables, new.values(), strict=True):
            self.known[self.key(changes)] = outcome(compared.of(table, table.variants[0]))
        return None

    def key(self, changes: Changes) -> str:
        """What settings come to: two ways of saying the same are one trial."""
        try:
            return store.key(config.tree(read_recipe(self.recipe, changes)))
        except config.ConfigError:
            return store.key(list(changes))


def over(changes: Changes, more: Changes) -> Changes:
    """Changes with more laid over them: of a setting that both say the last word counts."""
    said = {line.partition("=")[0]: line for line in (*changes, *more)}
    return tuple(said.values())


def outcome(found: list[dict[str, Any]]) -> Found:
    refused = next((each["refused"] for each in found if "refused" in each), "")
    losses = [] if refused else [each["validation"] for each in found if each["validation"] is not None]
    return spread(losses), refused or ("" if losses else "nothing was validated on; set data.validation")


def text(tuning: Tuning) -> str:
    """Every trial, the best of each stage marked, and what is to be typed in the end."""
    wide = max(len(trial.name) for trial in tuning.trials)
    lines, stage = list[str](), ""
    for trial in tuning.trials:
        lines += [trial.stage] if trial.stage != stage else []
        stage = trial.stage
        mark = "*" if trial.kept else " "
        lines.append(f"  {mark} {trial.name:<{wide}}  {trial.loss or f'refused: {trial.refused}'}")
    best = " ".join(tuning.best) or AS_IT_IS
    return "\n".join([*lines, "", f"best    {best}", f"recipe  {tuning.out / 'tuned.toml'}"])


def tree(tuning: Tuning) -> dict[str, Any]:
    trials = [{"stage": each.stage, "settings": list(each.changes), "tried": each.name, "kept": each.kept,
               "validation": each.loss and each.loss.mean, "spread": each.loss and each.loss.spread,
               "refused": each.refused or None} for each in tuning.trials]  # fmt: skip
    return {"best": list(tuning.best), "recipe": tuning.out / "tuned.toml", "trials": trials}
