"""A study in its folder: its runs, what is measured of each variant, and all results so far.

    DIR/kernel-local-seed0/  ...        ordinary runs
    DIR/compare.json                    the plan, the result of each run, the measurements; replaced atomically

Started again, it resumes. Started with another plan in the same folder, it raises an error.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from regard import config
from regard.files import content_cache
from regard.files.atomic import is_temporary, write_json
from regard.files.folder_lock import lock_folder
from regard.studies import kernel_error, variant_probes
from regard.studies.study import StudyPlan, StudyTable, StudyVariant, expand_variants
from regard.studies.trials import StudyTrial, TrialReporter, list_trials, no_output, refusal_sentence, run_trial
from regard.training.api import create_folder
from regard.training.reproducibility import describe_environment, training_device
from regard.training.trainer import FitResult

FORMAT = 1
NAME = "compare.json"


@dataclass(frozen=True)
class StudyPart:
    """A part of a study with its variants, and the folder of their runs."""

    part: StudyTable
    variants: list[StudyVariant]
    folder: Path


class StudyRun:
    """A study in its folder: `run` trains and measures what is missing; `kept` is the content of compare.json."""

    def __init__(
        self, study: StudyPlan, out: Path, *, command: str = "", tell: TrialReporter = no_output, measured: bool = True
    ) -> None:
        self.study, self.out, self.command, self.tell, self.measured = study, out, command, tell, measured
        self.tables = [StudyPart(part, expand_variants(part), out / part.name) for part in study.parts]
        for table in self.tables:  # a study whose variants are all refused is an error, not a result
            if all(variant.problem for variant in table.variants):
                raise next(variant.problem for variant in table.variants if variant.problem)
        self.kept = self.load_results()

    def load_results(self) -> dict[str, Any]:
        """The results of this study in the folder, possibly none yet."""
        asked = {"parts": [self.part_facts(table) for table in self.tables], "seeds": self.study.seeds}
        path = self.out / NAME
        if not path.exists():
            if self.out.is_dir() and not all(map(is_temporary, self.out.iterdir())):
                raise config.ConfigError(f"--out {self.out}: the folder is not empty, and holds no comparison; choose "
                                         "another")  # fmt: skip
            first = next(variant for table in self.tables for variant in table.variants if variant.recipe)
            assert first.recipe is not None
            here = describe_environment(training_device(first.recipe.train.device))
            return {"format": FORMAT, "command": self.command, "asked": asked, **here, "members": {}, "probes": {}}
        kept = content_cache.read_json_or_none(path)
        if not isinstance(kept, dict) or kept.get("format") != FORMAT or not isinstance(kept.get("members"), dict):
            raise config.DataError(f"{path}: damaged, or of another version; choose another folder, or remove it")
        if differs := next(iter(table_differences(kept.get("asked"), asked)), None):
            raise config.ConfigError(f"--out {self.out}: holds another comparison ({differs}); choose another folder, "
                                     "or remove this one")  # fmt: skip
        return kept

    def part_facts(self, table: StudyPart) -> dict[str, Any]:
        """The complete settings of a part: an edited recipe makes another study."""
        recipes = {variant.name: config.to_dict(variant.recipe) for variant in table.variants if variant.recipe}
        return {
            "title": table.part.title,
            "beyond": list(table.part.beyond),
            "variants": [variant.name for variant in table.variants],
            "recipes": content_cache.content_key(recipes),
        }

    def run(self) -> int | None:
        """Train and measure whatever is missing; returns the signal that stopped it, if any."""
        create_folder(self.out)
        with lock_folder(self.out):
            self.save()
            stopped = self.train()
            if stopped is None and self.measured:
                for table in self.tables:
                    self.measure(table)
        return stopped

    def save(self) -> None:
        write_json(self.out / NAME, self.kept)

    # ---------------------------------------------------------------- runs

    @property
    def members(self) -> Iterator[tuple[str, StudyTrial]]:
        """All runs with their names, seed by seed."""
        lists = [list_trials(table.variants, self.study.seeds, table.folder) for table in self.tables]
        for seed in range(self.study.seeds):
            for each in (member for some in lists for member in some if member.seed == seed):
                yield str(each.path.relative_to(self.out)), each

    def train(self) -> int | None:
        begun, every = time.monotonic(), dict(self.members)
        left = [name for name in every if self.kept["members"].get(name, {"again": True}).get("again")]
        for place, name in enumerate(left, 1):
            done = run_trial(every[name], self.command)
            if isinstance(done, FitResult):
                return done.interrupted
            self.kept["members"][name] = done
            self.save()
            rest = format_seconds((time.monotonic() - begun) * (len(left) / place - 1))
            self.tell(f"{name}: {trial_summary(done)}; {place} of {len(left)}, {rest} left")
        return None

    def of(self, table: StudyPart, variant: StudyVariant) -> list[dict[str, Any]]:
        """The results of a variant, one for each seed."""
        names = [str((table.folder / f"{variant.folder}-seed{seed}").relative_to(self.out))
                 for seed in range(self.study.seeds)]  # fmt: skip
        return [self.kept["members"][name] for name in names if name in self.kept["members"]]

    # ---------------------------------------------------------------- measurements

    def measure(self, table: StudyPart) -> None:
        """The measurements of each variant besides its loss, on the model of its first seed."""
        able = [variant for variant in table.variants if not any("refused" in each for each in self.of(table, variant))]
        left = [variant for variant in able if self.key(table, variant) not in self.kept["probes"]]
        if not left:
            return
        self.tell(f"measuring {len(left)} variants")
        runs = {variant.name: variant_probes.load_trial(table.folder / f"{variant.folder}-seed0") for variant in left}
        speeds = variant_probes.generation_speeds(runs)
        for variant in left:
            ran = runs[variant.name]
            assert variant.recipe is not None
            found: dict[str, Any] = {
                "memory": variant_probes.step_memory(variant.recipe),
                "speed": speeds.get(variant.name),
            }
            found |= {
                "error": variant_probes.or_none(partial(kernel_error.kernel_error, ran)),
                "beyond": variant_probes.longer_context_losses(ran, table.part.beyond),
            }
            self.kept["probes"][self.key(table, variant)] = found | {
                "growth": measure_growth(variant, self.study.longest)
            }
            self.save()

    def key(self, table: StudyPart, variant: StudyVariant) -> str:
        return str((table.folder / variant.folder).relative_to(self.out))


def measure_growth(variant: StudyVariant, longest: int) -> dict[str, Any]:
    """The growth of its time with the length, or why it cannot be measured."""
    try:
        assert variant.recipe is not None
        device = training_device(variant.recipe.train.device)
        return kernel_error.time_exponent(lambda length: variant.read(f"train.context={length}"), longest, device)
    except Exception as problem:
        if (said := refusal_sentence(problem)) is None and not isinstance(problem, ValueError):
            raise
        return {"refused": said or str(problem)}


def table_differences(before: Any, now: Any, path: str = "") -> Iterator[str]:
    """The differences between two nested tables, in words."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in now:
            yield from table_differences(before.get(name), now[name], f"{path} {name}".strip())
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for one, other in zip(before, now, strict=True):
            yield from table_differences(one, other, path)
    elif before != now:
        short = all(len(str(each)) < 40 for each in (before, now))
        yield f"{path} were {before}, and {now} are asked for" if short else f"other {path.rpartition(' ')[2]}"


def trial_summary(done: dict[str, Any]) -> str:
    if "refused" in done:
        return f"refused: {done['refused']}"
    loss = "no validation" if done["validation"] is None else f"validation {done['validation']:.4f}"
    return f"{loss} after {done['steps']:,} steps in {format_seconds(done['seconds'])}"


def format_seconds(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
