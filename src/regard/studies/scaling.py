"""Scaling laws by experiment: one recipe in several widths, for the same tokens, and the law through their losses.

Sizes are counted as Kaplan et al. (2020) did, in weights of the trunk: tables of words and places say nothing of depth.
All sizes learn at the recipe's rate; what a tuned one would gain is not seen here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard import config
from regard.measure.ghost import outline
from regard.measure.scaling import LEAST, Law, floored, line
from regard.train.compare.comparison import Comparison, Rows
from regard.train.compare.members import Tell, silent
from regard.train.compare.study import Part, Study, slug
from regard.train.compare.table import Row, rows
from regard.zoo import read_recipe

AS_IT_IS = "as it is"
WIDTH = "model.dim"


@dataclass(frozen=True)
class Family:
    """Models that differ in their width alone, from the smallest, and the laws through their losses; a law that
    cannot be fitted is not there, and `refused` says why."""

    name: str
    sizes: tuple[int, ...]
    rows: tuple[Row, ...]
    line: Law | None = None
    floored: Law | None = None
    refused: str = ""

    @property
    def losses(self) -> tuple[float, ...]:
        return tuple(row.validation.mean for row in self.rows if row.validation)


def widths(recipe: config.Recipe, count: int) -> list[int]:
    """From a quarter of the recipe's width up to all of it, evenly in the logarithm; heads keep an even width."""
    trunk: Any = recipe.model.trunk
    heads = getattr(getattr(trunk, "attention", None), "heads", None)
    unit = 2 * heads if isinstance(heads, int) else 8
    found = {max(1, round(trunk.dim * 4 ** (place / (count - 1) - 1) / unit)) * unit for place in range(count)}
    if len(found) < count:
        raise config.ConfigError(f"--sizes {count}: {WIDTH} {trunk.dim} has only {len(found)} of them between a "
                                 "quarter and all of it; name the widths, as in --sizes 32,48,64,96")  # fmt: skip
    return sorted(found)


def sizes(said: str, recipe: config.Recipe) -> list[int]:
    """A number of widths, or the widths themselves."""
    words = said.split(",")
    if not all(word.strip().isdigit() and len(word.strip()) < 7 for word in words):
        raise config.ConfigError(f"--sizes {said}: expected a number of sizes, or widths such as 32,48,64,96")
    numbers = [int(word) for word in words]
    if (len(numbers) == 1 and numbers[0] < LEAST) or 1 < len(set(numbers)) < LEAST:
        raise config.ConfigError(f"--sizes {said}: a law needs {LEAST} sizes or more")
    return widths(recipe, numbers[0]) if len(numbers) == 1 else sorted(set(numbers))


class Scaling:
    """A comparison of widths, for the recipe as it is and for each other family that is asked for."""

    def __init__(
        self, recipe: str, keys: tuple[str, ...], out: Path, *, widths: str = "5", families: tuple[str, ...] = (),
        seeds: int = 1, command: str = "", tell: Tell = silent,
    ) -> None:  # fmt: skip
        asked = {AS_IT_IS: (), **{each: tuple(each.split(";" if ";" in each else None)) for each in families}}
        grid = f"{WIDTH}={','.join(map(str, sizes(widths, read_recipe(recipe, keys))))}"
        parts = tuple(Part(recipe=recipe, name=slug(name), title=name, settings=(*keys, *changes), grid=(grid,),
                           over=WIDTH) for name, changes in asked.items())  # fmt: skip
        title = f"How does the loss fall with the size of {Path(recipe).stem}?"
        study = Study(title=title, seeds=seeds, parts=parts)
        self.compared = Comparison(study, out, command=command, tell=tell, measured=False)

    def go(self) -> int | None:
        return self.compared.go()

    def families(self) -> list[Family]:
        return [family(self.compared, table) for table in self.compared.tables]


def family(compared: Comparison, table: Rows) -> Family:
    able = [row for row in rows(compared, table) if row.validation and not row.refused]
    counts = {row.name: weights(table.folder / f"{slug(row.name)}-seed0") for row in able}
    able.sort(key=lambda row: counts[row.name])
    made = Family(table.part.title, tuple(counts[row.name] for row in able), tuple(able))
    if len(set(made.sizes)) < LEAST:
        why = next((row.refused for row in rows(compared, table) if row.refused), "nothing was validated on")
        return Family(made.name, made.sizes, made.rows, refused=f"{len(able)} sizes could be trained ({why})")
    return Family(made.name, made.sizes, made.rows, line(made.sizes, made.losses), floored(made.sizes, made.losses))


def weights(run: Path) -> int:
    """The weights of the trunk of a run."""
    shape = outline(config.read(config.Recipe, run / "config.toml").model)
    names = ((name, weight) for name, weight in shape.named_parameters() if name.startswith(("trunk.", "encoder.")))
    return sum(weight.numel() for name, weight in names if ".positions." not in name)


# ---------------------------------------------------------------- for people, and for scripts


def text(found: list[Family]) -> str:
    return "\n\n".join("\n".join(lines(each)) for each in found)


def lines(each: Family) -> list[str]:
    """The sizes, their losses and what both laws leave over; then the laws in words."""
    told = [each.name, f"  {'weights':>12}  {'validation':>17}  {'line':>7}  {'floored':>7}"]
    for place, (size, row) in enumerate(zip(each.sizes, each.rows, strict=True)):
        left = [f"{100 * law.left[place]:+6.2f}%" for law in (each.line, each.floored) if law]
        told.append("  ".join([f"  {size:>12,}", f"{row.validation!s:>17}", *left]))
    return [*told, *(f"  {said}" for said in laws(each))]


def laws(each: Family) -> list[str]:
    if each.line is None or each.floored is None or each.floored.floors is None:
        return [f"no law: {each.refused}"]
    low, high = each.floored.floors
    return [
        f"L = {each.line.scale:.3g} N^{-each.line.alpha:.4f}, alpha ± {each.line.error:.4f}; "
        f"leaves {100 * each.line.miss:.2f}% over",
        f"L = {round(each.floored.floor, 3):.3g} + {each.floored.scale:.3g} N^{-each.floored.alpha:.4f}; leaves "
        f"{100 * each.floored.miss:.2f}% over, and floors from {low:.3g} to {high:.3g} nearly as little",
    ]


def tree(found: list[Family]) -> list[dict[str, Any]]:
    return [{"name": each.name, "refused": each.refused or None, "laws": laws(each), "sizes": list(each.sizes),
             "losses": list(each.losses), "spreads": [row.validation and row.validation.spread for row in each.rows],
             "line": law(each.line), "floored": law(each.floored)} for each in found]  # fmt: skip


def law(made: Law | None) -> dict[str, Any] | None:
    if made is None:
        return None
    return {"alpha": made.alpha, "scale": made.scale, "floor": made.floor, "error": made.error, "floors": made.floors,
            "left": list(made.left), "miss": made.miss}  # fmt: skip
