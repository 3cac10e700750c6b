"""Hyperparameter tuning stage by stage: one setting after the other, in order of importance, keeping the best.

    learning rate  ->  warm-up  ->  batch  ->  dropout  ->  shape                                       (S101)

Each stage tries values around the best so far, from the same seeds, without repetitions. This is coordinate search, not
a search of all combinations: it finds a good optimum quickly, and not the best one.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard import config
from regard.files import content_cache
from regard.files.atomic import write_text
from regard.studies.comparison import StudyRun
from regard.studies.study import StudyPlan, StudyTable, file_slug, parse_axes
from regard.studies.table import MeanSpread, mean_and_spread
from regard.studies.trials import TrialReporter, no_output
from regard.training.api import create_folder
from regard.zoo.recipe import read_recipe

Changes = tuple[str, ...]
Offers = Callable[[config.Recipe], Iterator[Changes]]
AS_IT_IS = "as it is"


@dataclass(frozen=True)
class TuningTrial:
    """Settings tried in a stage, and their results."""

    stage: str
    name: str
    changes: Changes
    loss: MeanSpread | None
    refused: str = ""
    kept: bool = False


def propose_learning_rates(c: config.Recipe) -> Iterator[Changes]:
    lr = c.train.optimizer.lr
    for factor in (0.3, 3.0):
        yield (f"train.optimizer.lr={lr * factor:.3g}",)


def propose_warmups(c: config.Recipe) -> Iterator[Changes]:
    """Half and twice the warm-up; from none, a twentieth of the run."""
    warmup, steps = c.train.schedule.warmup, c.train.steps
    for each in (warmup // 2, 2 * warmup) if warmup else (max(1, (steps or 1000) // 20),):
        if steps is None or each <= steps // 2:
            yield (f"train.schedule.warmup={each}",)


def propose_batch_sizes(c: config.Recipe) -> Iterator[Changes]:
    """Half and twice as many rows, for as many tokens: twice and half as many steps."""
    name = "batch_size" if c.train.batch_tokens is None else "batch_tokens"
    size = int(getattr(c.train, name))
    for numerator, denominator in ((1, 2), (2, 1)):
        made = max(1, size * numerator // denominator)
        steps = () if c.train.steps is None else (f"train.steps={max(1, round(c.train.steps * size / made))}",)
        yield (f"train.{name}={made}", *steps)


def propose_dropouts(c: config.Recipe) -> Iterator[Changes]:
    for rate in (0.0, 0.1, 0.2):
        yield (f"model.dropout={rate}",)


def propose_shapes(c: config.Recipe) -> Iterator[Changes]:
    """Deeper and narrower, shallower and wider: about as many weights, since a block has 12·dim²."""
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
    "learning rate": ("train.optimizer.lr", propose_learning_rates),
    "warm-up": ("train.schedule.warmup", propose_warmups),
    "batch": ("train.batch_size", propose_batch_sizes),
    "dropout": ("model.dropout", propose_dropouts),
    "shape": ("model.dim", propose_shapes),
}


def tuning_stages(keys: Iterable[str]) -> dict[str, Offers]:
    """The stages in order. A key with several values replaces the values of its own stage, or adds a stage after all
    others."""
    found = {name: offers for name, (_, offers) in STAGES.items()}
    for key, values in parse_axes(keys):
        if len(values) > 1:
            name = next((name for name, (setting, _) in STAGES.items() if setting == key), key)
            found[name] = propose_values(key, values)
    return found


def propose_values(key: str, values: list[str]) -> Offers:
    return lambda c: ((f"{key}={value}",) for value in values)


Found = tuple[MeanSpread | None, str]  # the loss, or the reason why there is none


class TuningRun:
    """A tuning run; each stage is a comparison in a folder of its own."""

    def __init__(
        self,
        recipe: str,
        keys: Changes,
        out: Path,
        *,
        seeds: int = 1,
        command: str = "",
        tell: TrialReporter = no_output,
    ) -> None:
        self.recipe, self.out, self.seeds, self.command, self.tell = recipe, out, seeds, command, tell
        self.best: Changes = tuple(f"{key}={values[0]}" for key, values in parse_axes(keys) if len(values) == 1)
        self.stages = tuning_stages(keys)
        self.trials: list[TuningTrial] = []
        self.known: dict[str, Found] = {}

    def run(self) -> int | None:
        """Run all stages; returns the signal that stopped it, if any."""
        create_folder(self.out)
        for place, (stage, offers) in enumerate(self.stages.items(), 1):
            if (stopped := self.stage(self.out / file_slug(f"{place} {stage}"), stage, offers)) is not None:
                return stopped
        write_text(self.out / "tuned.toml", config.to_toml(read_recipe(self.recipe, self.best)))
        return None

    def stage(self, folder: Path, stage: str, offers: Offers) -> int | None:
        """Try the proposals around the best so far, and the best itself if it is not known yet."""
        around = offers(read_recipe(self.recipe, self.best))
        asked = {AS_IT_IS: self.best, **{" ".join(each): merge_changes(self.best, each) for each in around}}
        asked = {name: c for name, c in asked.items() if name == AS_IT_IS or self.key(c) != self.key(self.best)}
        stopped = self.learn(folder, stage, {n: c for n, c in asked.items() if self.key(c) not in self.known})
        if stopped is not None:
            return stopped
        tried = [TuningTrial(stage, name, changes, *self.known[self.key(changes)]) for name, changes in asked.items()]
        able = [trial for trial in tried if trial.loss is not None]
        if not able:
            raise config.RunError(f"{folder}: nothing could be tried; {tried[0].refused}")
        best = min(able, key=lambda trial: trial.loss.mean if trial.loss else math.inf)
        self.best, self.trials = best.changes, [*self.trials, *(replace(each, kept=each is best) for each in tried)]
        return None

    def learn(self, folder: Path, stage: str, new: dict[str, Changes]) -> int | None:
        """Train with each of several settings."""
        if not new:
            return None
        parts = tuple(StudyTable(recipe=self.recipe, name=file_slug(name), title=name, settings=changes)
                      for name, changes in new.items())  # fmt: skip
        compared = StudyRun(StudyPlan(seeds=self.seeds, parts=parts), folder, command=self.command, measured=False,
                              tell=lambda line: self.tell(f"{stage}: {line}"))  # fmt: skip
        if (stopped := compared.run()) is not None:
            return stopped
        for table, changes in zip(compared.tables, new.values(), strict=True):
            self.known[self.key(changes)] = trial_outcome(compared.of(table, table.variants[0]))
        return None

    def key(self, changes: Changes) -> str:
        """A key of the resulting recipe: equal settings in other words are one trial."""
        try:
            return content_cache.content_key(config.to_dict(read_recipe(self.recipe, changes)))
        except config.ConfigError:
            return content_cache.content_key(list(changes))


def merge_changes(changes: Changes, more: Changes) -> Changes:
    """Merge changes: the later value of a setting wins."""
    said = {line.partition("=")[0]: line for line in (*changes, *more)}
    return tuple(said.values())


def trial_outcome(found: list[dict[str, Any]]) -> Found:
    refused = next((each["refused"] for each in found if "refused" in each), "")
    losses = [] if refused else [each["validation"] for each in found if each["validation"] is not None]
    return mean_and_spread(losses), refused or ("" if losses else "no validation data; set data.validation")


def format_tuning(tuning: TuningRun) -> str:
    """Every trial, the best of each stage marked, and the final command."""
    wide = max(len(trial.name) for trial in tuning.trials)
    lines, stage = list[str](), ""
    for trial in tuning.trials:
        lines += [trial.stage] if trial.stage != stage else []
        stage = trial.stage
        mark = "*" if trial.kept else " "
        lines.append(f"  {mark} {trial.name:<{wide}}  {trial.loss or f'refused: {trial.refused}'}")
    best = " ".join(tuning.best) or AS_IT_IS
    return "\n".join([*lines, "", f"best    {best}", f"recipe  {tuning.out / 'tuned.toml'}"])


def tuning_table(tuning: TuningRun) -> dict[str, Any]:
    trials = [{"stage": each.stage, "settings": list(each.changes), "tried": each.name, "kept": each.kept,
               "validation": each.loss and each.loss.mean, "spread": each.loss and each.loss.spread,
               "refused": each.refused or None} for each in tuning.trials]  # fmt: skip
    return {"best": list(tuning.best), "recipe": tuning.out / "tuned.toml", "trials": trials}
