"""regard forecast: a table in, its next rows out."""

import csv
import io
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.output import CheckpointArgument, JsonOption, OverridesArgument, import_torch, print_json
from regard.config.errors import unwritable_error
from regard.config.overrides import apply_override
from regard.config.reader import canonical_tree


def forecast(
    checkpoint: CheckpointArgument,
    table: Annotated[str, typer.Argument(metavar="FILE", help="A table whose last rows are read, such as data.csv.")],
    overrides: OverridesArgument = None,
    *,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Write the rows there, as CSV.")] = None,
    json: JsonOption = False,
) -> None:
    """Forecast a table of numbers: the rows after its last one, with their dates, as CSV."""
    changes = task_settings(overrides or [])
    import_torch()
    from regard.inference.load import load_for_inference

    model = load_for_inference(checkpoint)
    try:
        told = model.forecast(table, **changes)
    except config.ConfigError as problem:
        raise config.ConfigError(f"{checkpoint}: {problem}") from None
    if out is not None:
        write_forecast(Path(out), forecast_csv(told))
    if json:
        print_json({"columns": told.header(), "rows": list(told.lines())})
    elif out is None:
        sys.stdout.write(forecast_csv(told))


def task_settings(overrides: list[str]) -> dict[str, Any]:
    """Overrides of task settings, such as task.fill_gaps=last."""
    changes: dict[str, Any] = {}
    for line in overrides:
        apply_override(changes, line)
    changes = canonical_tree(config.Recipe, changes)
    for name in changes:
        if name != "task" or not isinstance(changes["task"], dict):
            raise config.ConfigError(f"{name}: only settings of task apply, such as task.fill_gaps=last; leave it out")
    return dict(changes.get("task", {}))


def forecast_csv(forecast: Any) -> str:
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(forecast.header())
    writer.writerows([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in line] for line in forecast.lines())
    return page.getvalue()


def write_forecast(path: Path, text: str) -> None:
    from regard.files.atomic import open_output_file

    try:
        with open_output_file(path) as file:
            file.write(text.encode())
    except OSError as problem:
        raise unwritable_error(path, problem) from None
