"""Scaling laws by experiment: one recipe trained in several widths for the same tokens, and a power law fitted.

    log L = -alpha log N + C                  linear in the logarithms (Kaplan et al. 2020)
    L = E + A N^-alpha                        the same above an irreducible loss, the floor E (Hoffmann et al. 2022)

Few sizes determine a line well and a floor badly. Both are therefore reported with their residuals, the line's alpha
with its standard error, and the floor with the range of values that fit nearly as well.

Size is the number of trunk weights, as in Kaplan et al., without embedding tables. All sizes use the recipe's learning
rate; the gain of tuning it for each size is not measured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard import config
from regard.measure.fake_model import meta_model
from regard.studies.comparison import StudyPart, StudyRun
from regard.studies.study import StudyPlan, StudyTable, file_slug
from regard.studies.table import VariantRow, variant_rows
from regard.studies.trials import TrialReporter, no_output
from regard.zoo.recipe import read_recipe

MIN_SIZES = 4  # sizes: a fit with floor has three parameters, and needs one degree of freedom
NEARLY = 2.0  # a floor is plausible if its residual is at most so many times the least
STEPS = 400  # floors tried between zero and the lowest loss


@dataclass(frozen=True)
class ScalingLaw:
    """A scaling law, L = floor + scale·N^-alpha. `left` are relative residuals; `error` is the standard error of alpha,
    and `floors` the range of floors that fit nearly as well (both only where defined)."""

    alpha: float
    scale: float
    floor: float
    left: tuple[float, ...]
    error: float | None = None
    floors: tuple[float, float] | None = None

    def __call__(self, size: float) -> float:
        return self.floor + self.scale * math.exp(-self.alpha * math.log(size))

    @property
    def miss(self) -> float:
        """The root mean square residual."""
        return math.sqrt(sum(each * each for each in self.left) / len(self.left))


def fit_power_law(sizes: Sequence[float], losses: Sequence[float], floor: float = 0.0) -> ScalingLaw:  #: S144
    """Least squares in the logarithms, above a given floor."""
    check_points(sizes, losses, floor)
    x, y = [math.log(size) for size in sizes], [math.log(loss - floor) for loss in losses]
    at, level = sum(x) / len(x), sum(y) / len(y)
    spread = sum((each - at) ** 2 for each in x)
    slope = sum((a - at) * (b - level) for a, b in zip(x, y, strict=True)) / spread
    offs = [b - level - slope * (a - at) for a, b in zip(x, y, strict=True)]
    error = math.sqrt(sum(off * off for off in offs) / (len(x) - 2) / spread)
    made = ScalingLaw(-slope, math.exp(level - slope * at), floor, (), error)
    left = tuple(loss / made(size) - 1 for size, loss in zip(sizes, losses, strict=True))
    return ScalingLaw(made.alpha, made.scale, floor, left, error)


def fit_with_floor(sizes: Sequence[float], losses: Sequence[float]) -> ScalingLaw:
    """The floor with the least residual, and the floors with at most twice as much."""
    lowest = min(losses)
    tried = [fit_power_law(sizes, losses, lowest * step / STEPS) for step in range(STEPS)]
    best = min(range(STEPS), key=lambda i: tried[i].miss)
    low, high = (lowest * max(0.0, min(step, STEPS - 1e-6)) / STEPS for step in (best - 1, best + 1))
    fine = fit_power_law(sizes, losses, search_floor(sizes, losses, low, high))
    within = [law.floor for law in tried if law.miss <= NEARLY * fine.miss + 1e-12]
    floors = (min([*within, fine.floor]), max([*within, fine.floor]))
    return ScalingLaw(fine.alpha, fine.scale, fine.floor, fine.left, None, floors)


def search_floor(sizes: Sequence[float], losses: Sequence[float], low: float, high: float) -> float:
    """Golden-section search for the floor with the least residual."""
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(80):
        one, other = high - golden * (high - low), low + golden * (high - low)
        if fit_power_law(sizes, losses, one).miss < fit_power_law(sizes, losses, other).miss:
            high = other
        else:
            low = one
    return (low + high) / 2


def check_points(sizes: Sequence[float], losses: Sequence[float], floor: float) -> None:
    if len(sizes) != len(losses) or len(set(sizes)) < MIN_SIZES:
        raise ValueError(f"{len(set(sizes))} sizes and {len(losses)} losses; a law needs {MIN_SIZES} sizes or more, "
                         "each "
                         "with its loss")  # fmt: skip
    if min(sizes) <= 0 or not all(floor < loss < math.inf for loss in losses):
        raise ValueError(f"sizes must be above 0 and losses above the floor of {floor:g}")


AS_IT_IS = "as it is"
WIDTH = "model.dim"


@dataclass(frozen=True)
class ScalingFamily:
    """Models that differ only in width, smallest first, and the laws fitted to their losses; `refused` is the reason
    why a law could not be fitted."""

    name: str
    sizes: tuple[int, ...]
    rows: tuple[VariantRow, ...]
    line: ScalingLaw | None = None
    floored: ScalingLaw | None = None
    refused: str = ""

    @property
    def losses(self) -> tuple[float, ...]:
        return tuple(row.validation.mean for row in self.rows if row.validation)


def choose_widths(recipe: config.Recipe, count: int) -> list[int]:
    """Widths from a quarter of the recipe's to all of it, evenly spaced in the logarithm; head widths stay even."""
    trunk: Any = recipe.model.trunk
    heads = getattr(getattr(trunk, "attention", None), "heads", None)
    unit = 2 * heads if isinstance(heads, int) else 8
    found = {max(1, round(trunk.dim * 4 ** (place / (count - 1) - 1) / unit)) * unit for place in range(count)}
    if len(found) < count:
        raise config.ConfigError(f"--sizes {count}: {WIDTH} {trunk.dim} has only {len(found)} of them between a "
                                 "quarter and all of it; name the widths, as in --sizes 32,48,64,96")  # fmt: skip
    return sorted(found)


def parse_widths(text: str, recipe: config.Recipe) -> list[int]:
    """Parse a number of widths, or the widths themselves."""
    words = text.split(",")
    if not all(word.strip().isdigit() and len(word.strip()) < 7 for word in words):
        raise config.ConfigError(f"--sizes {text}: expected a number of sizes, or widths such as 32,48,64,96")
    numbers = [int(word) for word in words]
    if (len(numbers) == 1 and numbers[0] < MIN_SIZES) or 1 < len(set(numbers)) < MIN_SIZES:
        raise config.ConfigError(f"--sizes {text}: a law needs {MIN_SIZES} sizes or more")
    return choose_widths(recipe, numbers[0]) if len(numbers) == 1 else sorted(set(numbers))


class ScalingStudy:
    """A scaling study: widths of the recipe and of each other requested family."""

    def __init__(
        self, recipe: str, keys: tuple[str, ...], out: Path, *, widths: str = "5", families: tuple[str, ...] = (),
        seeds: int = 1, command: str = "", tell: TrialReporter = no_output,
    ) -> None:  # fmt: skip
        asked = {AS_IT_IS: (), **{each: tuple(each.split(";" if ";" in each else None)) for each in families}}
        grid = f"{WIDTH}={','.join(map(str, parse_widths(widths, read_recipe(recipe, keys))))}"
        parts = tuple(
            StudyTable(
                recipe=recipe, name=file_slug(name), title=name, settings=(*keys, *changes), grid=(grid,), over=WIDTH
            )
            for name, changes in asked.items()
        )
        title = f"How does the loss fall with the size of {Path(recipe).stem}?"
        study = StudyPlan(title=title, seeds=seeds, parts=parts)
        self.compared = StudyRun(study, out, command=command, tell=tell, measured=False)

    def run(self) -> int | None:
        return self.compared.run()

    def families(self) -> list[ScalingFamily]:
        return [fit_family(self.compared, table) for table in self.compared.tables]


def fit_family(compared: StudyRun, table: StudyPart) -> ScalingFamily:
    able = [row for row in variant_rows(compared, table) if row.validation and not row.refused]
    counts = {row.name: trunk_parameters(table.folder / f"{file_slug(row.name)}-seed0") for row in able}
    able.sort(key=lambda row: counts[row.name])
    made = ScalingFamily(table.part.title, tuple(counts[row.name] for row in able), tuple(able))
    if len(set(made.sizes)) < MIN_SIZES:
        why = next((row.refused for row in variant_rows(compared, table) if row.refused), "no validation data")
        return ScalingFamily(made.name, made.sizes, made.rows, refused=f"{len(able)} sizes could be trained ({why})")
    return ScalingFamily(
        made.name,
        made.sizes,
        made.rows,
        fit_power_law(made.sizes, made.losses),
        fit_with_floor(made.sizes, made.losses),
    )


def trunk_parameters(run: Path) -> int:
    """The number of trunk weights of a run."""
    shape = meta_model(config.read_toml(config.Recipe, run / "config.toml").model)
    names = ((name, weight) for name, weight in shape.named_parameters() if name.startswith(("trunk.", "encoder.")))
    return sum(weight.numel() for name, weight in names if ".positions." not in name)


# ---------------------------------------------------------------- output


def format_scaling(found: list[ScalingFamily]) -> str:
    return "\n\n".join("\n".join(family_lines(each)) for each in found)


def family_lines(each: ScalingFamily) -> list[str]:
    """Sizes, losses and residuals of both laws; then the laws as sentences."""
    told = [each.name, f"  {'weights':>12}  {'validation':>17}  {'line':>7}  {'floored':>7}"]
    for place, (size, row) in enumerate(zip(each.sizes, each.rows, strict=True)):
        left = [f"{100 * law.left[place]:+6.2f}%" for law in (each.line, each.floored) if law]
        told.append("  ".join([f"  {size:>12,}", f"{row.validation!s:>17}", *left]))
    return [*told, *(f"  {said}" for said in law_lines(each))]


def law_lines(each: ScalingFamily) -> list[str]:
    if each.line is None or each.floored is None or each.floored.floors is None:
        return [f"no law: {each.refused}"]
    low, high = each.floored.floors
    return [
        f"L = {each.line.scale:.3g} N^{-each.line.alpha:.4f}, alpha ± {each.line.error:.4f}; "
        f"leaves {100 * each.line.miss:.2f}% over",
        f"L = {round(each.floored.floor, 3):.3g} + {each.floored.scale:.3g} N^{-each.floored.alpha:.4f}; leaves "
        f"{100 * each.floored.miss:.2f}% over, and floors from {low:.3g} to {high:.3g} nearly as little",
    ]


def scaling_table(found: list[ScalingFamily]) -> list[dict[str, Any]]:
    return [{"name": each.name, "refused": each.refused or None, "laws": law_lines(each), "sizes": list(each.sizes),
             "losses": list(each.losses), "spreads": [row.validation and row.validation.spread for row in each.rows],
             "line": law_table(each.line), "floored": law_table(each.floored)} for each in found]  # fmt: skip


def law_table(law: ScalingLaw | None) -> dict[str, Any] | None:
    if law is None:
        return None
    return {"alpha": law.alpha, "scale": law.scale, "floor": law.floor, "error": law.error, "floors": law.floors,
            "left": list(law.left), "miss": law.miss}  # fmt: skip
