"""A study in its folder: the runs that it takes, what is measured of each variant, and all that was found so far.

    DIR/kernel-local-seed0/  ...        ordinary runs
    DIR/compare.json                    what is asked, what each run found, what was measured; replaced whole each time

Asked again, it goes on where it stopped. Asked for something else in the same folder, it refuses.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from regard import config
from regard.data import store
from regard.train.alone import alone
from regard.train.compare import dense, probes
from regard.train.compare.members import Member, Tell, members, run, sentence, silent
from regard.train.compare.study import Part, Study, Variant, variants
from regard.train.device import device_of, surroundings
from regard.train.facts import write_json
from regard.train.fit import make_folder
from regard.train.fitting import Result

FORMAT = 1
NAME = "compare.json"


@dataclass(frozen=True)
class Rows:
    """A part of a study with its variants, and where their runs are."""

    part: Part
    variants: list[Variant]
    folder: Path


class Comparison:
    """`go` does what is left to do; `kept` is all that was found, as compare.json has it."""

    def __init__(
        self, study: Study, out: Path, *, command: str = "", tell: Tell = silent, measured: bool = True
    ) -> None:
        self.study, self.out, self.command, self.tell, self.measured = study, out, command, tell, measured
        self.tables = [Rows(part, variants(part), out / part.name) for part in study.parts]
        for table in self.tables:  # one of which nothing can be trained is a mistake, and not a finding
            if all(variant.problem for variant in table.variants):
                raise next(variant.problem for variant in table.variants if variant.problem)
        self.kept = self.opened()

    def opened(self) -> dict[str, Any]:
        """What the folder holds of this study, which may be nothing yet."""
        asked = {"parts": [self.asked(table) for table in self.tables], "seeds": self.study.seeds}
        path = self.out / NAME
        if not path.exists():
            if self.out.is_dir() and any(each.suffix != ".part" for each in self.out.iterdir()):
                raise config.ConfigError(f"--out {self.out}: the folder is not empty, and holds no comparison; choose "
                                         "another")  # fmt: skip
            first = next(variant for table in self.tables for variant in table.variants if variant.recipe)
            assert first.recipe is not None
            here = surroundings(device_of(first.recipe.train.device))
            return {"format": FORMAT, "command": self.command, "asked": asked, **here, "members": {}, "probes": {}}
        kept = store.get(path)
        if not isinstance(kept, dict) or kept.get("format") != FORMAT or not isinstance(kept.get("members"), dict):
            raise config.DataError(f"{path}: damaged, or of another version; choose another folder, or remove it")
        if differs := next(iter(differences(kept.get("asked"), asked)), None):
            raise config.ConfigError(f"--out {self.out}: holds another comparison ({differs}); choose another folder, "
                                     "or remove this one")  # fmt: skip
        return kept

    def asked(self, table: Rows) -> dict[str, Any]:
        """What a part asks, whole: a recipe that was edited since is another one."""
        recipes = {variant.name: config.tree(variant.recipe) for variant in table.variants if variant.recipe}
        return {"title": table.part.title, "beyond": list(table.part.beyond),
                "variants": [variant.name for variant in table.variants], "recipes": store.key(recipes)}  # fmt: skip

    def go(self) -> int | None:
        """Train and measure whatever is missing; the signal that stopped it, if one did."""
        make_folder(self.out)
        with alone(self.out):
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
    def members(self) -> Iterator[tuple[str, Member]]:
        """Every run that there will be, seed by seed, with its name."""
        lists = [members(table.variants, self.study.seeds, table.folder) for table in self.tables]
        for seed in range(self.study.seeds):
            for each in (member for some in lists for member in some if member.seed == seed):
                yield str(each.path.relative_to(self.out)), each

    def train(self) -> int | None:
        begun, every = time.monotonic(), dict(self.members)
        left = [name for name in every if self.kept["members"].get(name, {"again": True}).get("again")]
        for place, name in enumerate(left, 1):
            done = run(every[name], self.command)
            if isinstance(done, Result):
                return done.interrupted
            self.kept["members"][name] = done
            self.save()
            rest = lasting((time.monotonic() - begun) * (len(left) / place - 1))
            self.tell(f"{name}: {summary(done)}; {place} of {len(left)}, {rest} left")
        return None

    def of(self, table: Rows, variant: Variant) -> list[dict[str, Any]]:
        """What the runs of a variant found, one for each seed."""
        names = [str((table.folder / f"{variant.folder}-seed{seed}").relative_to(self.out))
                 for seed in range(self.study.seeds)]  # fmt: skip
        return [self.kept["members"][name] for name in names if name in self.kept["members"]]

    # ---------------------------------------------------------------- measurements

    def measure(self, table: Rows) -> None:
        """What is to be known of each variant beside its loss; on the model of its first seed."""
        able = [variant for variant in table.variants if not any("refused" in each for each in self.of(table, variant))]
        left = [variant for variant in able if self.key(table, variant) not in self.kept["probes"]]
        if not left:
            return
        self.tell(f"measuring {len(left)} variants")
        runs = {variant.name: probes.back(table.folder / f"{variant.folder}-seed0") for variant in left}
        speeds = probes.speeds(runs)
        for variant in left:
            ran = runs[variant.name]
            assert variant.recipe is not None
            found: dict[str, Any] = {"memory": probes.memory(variant.recipe), "speed": speeds.get(variant.name)}
            found |= {"error": probes.able(partial(dense.error, ran)), "beyond": probes.beyond(ran, table.part.beyond)}
            self.kept["probes"][self.key(table, variant)] = found | {"growth": growth(variant, self.study.longest)}
            self.save()

    def key(self, table: Rows, variant: Variant) -> str:
        return str((table.folder / variant.folder).relative_to(self.out))


def growth(variant: Variant, longest: int) -> dict[str, Any]:
    """How its time grows with the length; or why that cannot be said."""
    try:
        assert variant.recipe is not None
        device = device_of(variant.recipe.train.device)
        return dense.exponent(lambda length: variant.read(f"train.context={length}"), longest, device)
    except Exception as problem:
        if (said := sentence(problem)) is None and not isinstance(problem, ValueError):
            raise
        return {"refused": said or str(problem)}


def differences(before: Any, now: Any, path: str = "") -> Iterator[str]:
    """Where two nested tables differ, in words."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in now:
            yield from differences(before.get(name), now[name], f"{path} {name}".strip())
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for one, other in zip(before, now, strict=True):
            yield from differences(one, other, path)
    elif before != now:
        short = all(len(str(each)) < 40 for each in (before, now))
        yield f"{path} were {before}, and {now} are asked for" if short else f"other {path.rpartition(' ')[2]}"


def summary(done: dict[str, Any]) -> str:
    if "refused" in done:
        return f"refused: {done['refused']}"
    loss = "no validation" if done["validation"] is None else f"validation {done['validation']:.4f}"
    return f"{loss} after {done['steps']:,} steps in {lasting(done['seconds'])}"


def lasting(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
