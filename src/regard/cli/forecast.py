"""regard forecast: a table in, its next rows out."""

import csv
import io
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.output import Checkpoint, Json, Overrides, as_json, with_torch
from regard.config.errors import unwritable
from regard.config.reader import override


def forecast(
    checkpoint: Checkpoint,
    table: Annotated[str, typer.Argument(metavar="FILE", help="A table whose last rows are read, such as data.csv.")],
    overrides: Overrides = None,
    *,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Write the rows there, as CSV.")] = None,
    json: Json = False,
) -> None:
    """Tell how a table of numbers goes on: the rows after its last one, with their dates, as CSV."""
    changes = settings(overrides or [])
    with_torch()
    from regard.generate.forecast import forecast
    from regard.generate.opening import load_to_answer

    model = load_to_answer(checkpoint)
    try:
        told = forecast(model, table, **changes)
    except config.ConfigError as problem:
        raise config.ConfigError(f"{checkpoint}: {problem}") from None
    if out is not None:
        write(Path(out), as_csv(told))
    if json:
        as_json({"columns": told.header(), "rows": list(told.lines())})
    elif out is None:
        sys.stdout.write(as_csv(told))


def settings(overrides: list[str]) -> dict[str, Any]:
    """Settings of the task that differ: task.gaps=last."""
    changes: dict[str, Any] = {}
    for line in overrides:
        override(changes, line)
    for name in changes:
        if name != "task" or not isinstance(changes["task"], dict):
            raise config.ConfigError(f"{name}: what is read here is said by task, such as task.gaps=last; leave it out")
    return dict(changes.get("task", {}))


def as_csv(told: Any) -> str:
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(told.header())
    writer.writerows([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in line] for line in told.lines())
    return page.getvalue()


def write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf8")
    except OSError as problem:
        raise unwritable(path, problem) from None
