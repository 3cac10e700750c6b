"""TensorBoard log: one point for every number in log.jsonl.

    tensorboard --logdir runs        train/loss, train/lr, train/norm, train/tokens_per_second, validation/loss, ...

A run that resumes after a kill first removes points after its checkpoint: those steps are repeated, and their points
must not appear twice.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from regard import config
from regard.config.errors import RunError, unwritable_error

APART = ("step", "tokens", "eval_tokens", "seconds", "batches")  # x coordinates, and numbers that make no curve


def check_tensorboard() -> None:
    """Raise before training if the package is missing."""
    if find_spec("tensorboard") is None:
        raise config.ConfigError("train.tensorboard: the package tensorboard is not installed; pip install "
                                 "'regard[board]', or set it to false")  # fmt: skip


class TensorBoardLog:
    """TensorBoard curves that continue after `step`; later points of an earlier process are purged."""

    def __init__(self, folder: str | Path, step: int = 0) -> None:
        check_tensorboard()
        from torch.utils.tensorboard import SummaryWriter  # optional dependency, slow to import

        self.folder, self.seconds = Path(folder), math.nan if step else 0.0
        with tensorboard_errors(self.folder):
            self.writer = SummaryWriter(str(folder), purge_step=step + 1)

    def line(self, line: dict[str, Any]) -> None:
        """Log the numbers of one line of log.jsonl."""
        with tensorboard_errors(self.folder):
            for name, number in (*scalars_of(line), *self.speed(line)):
                self.writer.add_scalar(name, number, line["step"])

    def speed(self, line: dict[str, Any]) -> Iterator[tuple[str, float]]:
        """Tokens per second of a step; unknown for the first one after a resume."""
        if "tokens" in line:
            spent, self.seconds = line["seconds"] - self.seconds, line["seconds"]
            if spent > 0:
                yield "train/tokens_per_second", line["tokens"] / spent

    def sync(self) -> None:
        """Flush all points to the file."""
        with tensorboard_errors(self.folder):
            self.writer.flush()

    def close(self) -> None:
        with tensorboard_errors(self.folder):
            self.writer.close()

    def __enter__(self) -> "TensorBoardLog":
        return self

    def __exit__(self, kind: object, *raised: object) -> None:
        with suppress(RunError) if kind is not None else nullcontext():  # another error is being raised
            self.close()


@contextmanager
def tensorboard_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise unwritable_error(folder, problem) from None


def scalars_of(line: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The curves of a line: of a step, an evaluation, the final evaluation, or a layer."""
    group = "train" if "eval_loss" not in line else "validation_whole" if line.get("whole") else "validation"
    for name, value in line.items():
        if isinstance(value, dict | list) and name not in APART:
            yield from nested_scalars(value, name)
        elif name not in APART and (number := as_number(value)) is not None:
            yield f"{group}/{name.removeprefix('eval_')}", number


def nested_scalars(table: Any, path: str) -> Iterator[tuple[str, float]]:
    """Numbers in nested tables and lists, by path."""
    for name, value in table.items() if isinstance(table, dict) else enumerate(table):
        if isinstance(value, dict | list):
            yield from nested_scalars(value, f"{path}/{name}")
        elif (number := as_number(value)) is not None:
            yield f"{path}/{name}", number


def as_number(value: Any) -> float | None:
    """A number of the log, where NaN and infinity are strings."""
    if value in ("nan", "inf", "-inf"):
        return float(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
