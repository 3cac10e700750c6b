"""Result tables of a study: one row per variant, and a column for every quantity that at least one of them has.

A loss is a mean over the seeds and its sample standard deviation.
"""

import csv
import io
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard import config
from regard.config.reader import config_leaves
from regard.files.atomic import write_text
from regard.measure.format_estimate import format_si
from regard.studies.comparison import StudyPart, StudyRun
from regard.studies.demo import align_columns
from regard.studies.study import StudyVariant

ALIKE = 0.02  # parameter counts that differ by less are the same size


@dataclass(frozen=True)
class MeanSpread:
    """The mean over seeds, their spread, and the values."""

    mean: float
    spread: float | None
    each: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.mean:.4f}" if self.spread is None else f"{self.mean:.4f} ± {self.spread:.4f}"


@dataclass(frozen=True)
class VariantRow:
    """The results of a variant; `refused` is the reason if there are none."""

    name: str
    chosen: dict[str, str]
    refused: str = ""
    parameters: int | None = None
    tokens: int | None = None
    validation: MeanSpread | None = None
    scores: dict[str, MeanSpread] = field(default_factory=dict)
    step_seconds: float | None = None
    memory: int | None = None
    speed: float | None = None
    error: float | None = None
    growth: dict[str, Any] = field(default_factory=dict)
    context: int | None = None
    beyond: dict[str, float | str] = field(default_factory=dict)


def variant_rows(compared: StudyRun, table: StudyPart) -> list[VariantRow]:
    return [variant_row(compared, table, variant) for variant in table.variants]


def variant_row(compared: StudyRun, table: StudyPart, variant: StudyVariant) -> VariantRow:
    found, chosen = compared.of(table, variant), dict(variant.chosen)
    refused = next((each["refused"] for each in found if "refused" in each), "")
    if refused or not found:
        return VariantRow(variant.name, chosen, refused or "not run yet")
    measured = compared.kept["probes"].get(compared.key(table, variant), {})
    paces = [each["step_seconds"] for each in found if each["step_seconds"]]
    scores = {name: [each["scores"][name] for each in found if name in each["scores"]] for name in found[0]["scores"]}
    return VariantRow(
        variant.name, chosen, parameters=found[0]["parameters"], tokens=found[0]["tokens"],
        validation=mean_and_spread([each["validation"] for each in found if each["validation"] is not None]),
        scores={name: made for name, numbers in scores.items() if (made := mean_and_spread(numbers))},
        step_seconds=statistics.median(paces) if paces else None,
        context=variant.recipe.train.context if variant.recipe else None, **measured,
    )  # fmt: skip


def mean_and_spread(numbers: list[float]) -> MeanSpread | None:
    if not numbers:
        return None
    apart = statistics.stdev(numbers) if len(numbers) > 1 else None
    return MeanSpread(statistics.fmean(numbers), apart, tuple(numbers))


# ---------------------------------------------------------------- text output


# Column titles, and the cell of a row; columns without any cell are left out.
def table_columns(rows: list[VariantRow]) -> dict[str, list[str]]:
    scores = dict.fromkeys(name for each in rows for name in each.scores)
    lengths = dict.fromkeys(length for each in rows for length in each.beyond)
    found = {
        "parameters": [f"{each.parameters:,}" if each.parameters else "" for each in rows],
        "validation": [str(each.validation or "") for each in rows],
        **{name: [str(each.scores.get(name, "")) for each in rows] for name in scores},
        **{f"at {int(length):,}": [format_cell(each.beyond.get(length)) for each in rows] for length in lengths},
        "a step": [f"{1000 * each.step_seconds:.3g} ms" if each.step_seconds else "" for each in rows],
        "memory": [format_si(each.memory, "B") if each.memory else "" for each in rows],
        "writes": [f"{each.speed:,.0f}/s" if each.speed else "" for each in rows],
        "off dense": [f"{each.error:.1e}" if each.error is not None else "" for each in rows],
        "grows": [format_growth(each.growth) for each in rows],
    }
    return {name: cells for name, cells in found.items() if any(cells)}


def format_cell(value: float | str | None) -> str:
    return "" if value is None else "no" if isinstance(value, str) else f"{value:.4f}"


def format_growth(growth: dict[str, Any]) -> str:
    if "exponent" not in growth:
        return ""
    return f"n^{growth['exponent']:.2f}" + (f" ({growth['formula']})" if "formula" in growth else "")


def format_tables(compared: StudyRun) -> str:
    """All tables with their titles."""
    parts = []
    for table in compared.tables:
        head = [table.part.title, ""] if table.part.title else []
        parts.append(
            "\n".join([*head, format_columns(variant_rows(compared, table)), *format_differing_settings(table)])
        )
    return "\n\n\n".join(parts)


def format_columns(rows: list[VariantRow]) -> str:
    """Aligned columns, with notes below."""
    refused = {place: each.refused for place, each in enumerate(rows) if each.refused}
    table = align_columns([each.name for each in rows], table_columns(rows), refused)
    return "\n".join([table, *(f"note: {note}" for note in table_notes(rows))])


def table_notes(rows: list[VariantRow]) -> Iterator[str]:
    """Notes on what makes a comparison unfair, or may be surprising."""
    sizes = {each.name: each.parameters for each in rows if each.parameters}
    if sizes and max(sizes.values()) > (1 + ALIKE) * min(sizes.values()):
        most, least = max(sizes, key=lambda name: sizes[name]), min(sizes, key=lambda name: sizes[name])
        yield (f"{most} has {sizes[most] / sizes[least]:.2f} times the parameters of {least}; "
               "make them alike, as by model.hidden, to compare ideas and not sizes")  # fmt: skip
    read = {each.tokens for each in rows if each.tokens}
    if read and max(read) > (1 + ALIKE) * min(read):
        yield f"they did not read the same number of tokens: from {min(read):,} to {max(read):,} tokens"
    known = [each.validation for each in rows if each.validation]
    if known and all(each.spread is None for each in known):
        yield "one seed shows no variance; --seeds 3 does"
    for each in rows:
        for length, said in each.beyond.items():
            if isinstance(said, str):
                yield f"{each.name} at {int(length):,}: {said}"


# ---------------------------------------------------------------- differing settings


def differing_settings(table: StudyPart) -> dict[str, dict[str, str]]:
    """Every setting that differs between variants, by its path, with the value of each. This includes derived ones: the
    kind of an optimizer also changes its learning rate."""
    trees = {
        each.name: {path: typed_value(value) for path, value in config_leaves(config.to_dict(each.recipe))}
        for each in table.variants
        if each.recipe is not None
    }
    paths = dict.fromkeys(path for tree in trees.values() for path in tree)
    found = {path: {name: tree.get(path, "") for name, tree in trees.items()} for path in paths}
    return {path: values for path, values in found.items() if len(set(values.values())) > 1}


def typed_value(value: Any) -> str:
    """A setting as it is typed."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def format_differing_settings(table: StudyPart) -> list[str]:
    """One line for each differing setting; none if there is no difference."""
    found = differing_settings(table)
    names = list(next(iter(found.values()), {}))
    cells = {name: [values[name] for values in found.values()] for name in names}
    return ["", "settings that differ", align_columns(list(found), cells, {})] if found else []


# ---------------------------------------------------------------- files


def study_results(compared: StudyRun) -> dict[str, Any]:
    """All results of a study, for the page and for scripts."""
    known = ("regard", "torch", "processor", "device", "threads", "started", "command")
    tables = []
    for table in compared.tables:
        made = variant_rows(compared, table)
        tables.append(
            {
                "title": table.part.title,
                "over": table.part.over,
                "seeds": compared.study.seeds,
                "rows": [row_dict(each) for each in made],
                "columns": table_columns(made),
                "notes": list(table_notes(made)),
                "settings": differing_settings(table),
            }
        )
    return {"title": compared.study.title, "about": compared.study.about, "tables": tables,
            **{name: compared.kept.get(name) for name in known}}  # fmt: skip


def write_results(compared: StudyRun) -> Path:
    """Write compare.csv, and the tables to compare.json beside their data."""
    compared.kept["tables"] = study_results(compared)["tables"]
    compared.save()
    parts = [
        rows_to_csv(variant_rows(compared, table), table.part.title or table.part.recipe) for table in compared.tables
    ]
    path = compared.out / "compare.csv"
    write_text(path, "\n".join(parts))
    return path


def row_dict(each: VariantRow) -> dict[str, Any]:
    """A row as nested plain values."""
    mean = each.validation
    return {
        "name": each.name, "chosen": each.chosen, "refused": each.refused or None, "parameters": each.parameters,
        "tokens": each.tokens, "validation": mean and mean.mean, "spread": mean and mean.spread,
        "seeds": list(mean.each) if mean else [],
        "scores": {name: {"mean": score.mean, "spread": score.spread} for name, score in each.scores.items()},
        "step_seconds": each.step_seconds, "memory": each.memory, "tokens_a_second": each.speed, "error": each.error,
        "growth": each.growth, "context": each.context, "beyond": each.beyond,
    }  # fmt: skip


def rows_to_csv(rows: list[VariantRow], title: str = "") -> str:
    """CSV with one line per variant."""
    scores = dict.fromkeys(name for each in rows for name in each.scores)
    lengths = dict.fromkeys(length for each in rows for length in each.beyond)
    head = ["table", "variant", "refused", "parameters", "tokens", "validation", "spread", *scores,
            *(f"validation at {length}" for length in lengths), "step_seconds", "memory", "tokens_a_second", "error",
            "exponent", "formula"]  # fmt: skip
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\n")
    lines.writerow(head)
    for each in rows:
        mean = each.validation
        lines.writerow([
            title, each.name, each.refused, each.parameters, each.tokens, mean and mean.mean, mean and mean.spread,
            *(each.scores[name].mean if name in each.scores else None for name in scores),
            *(each.beyond.get(length) for length in lengths), each.step_seconds, each.memory, each.speed, each.error,
            each.growth.get("exponent"), each.growth.get("formula"),
        ])  # fmt: skip
    return written.getvalue()
