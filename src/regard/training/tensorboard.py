"""TensorBoard log: the same lines that go to log.jsonl, a point for every number in them.

    tensorboard --logdir runs        train/loss, train/lr, train/norm, train/tokens_per_second, validation/loss, ...

A run that resumes after a kill first takes back what came after its checkpoint: those steps are taken again, and their
points must not be there twice.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from regard import config
from regard.config.errors import RunError, unwritable_error

APART = ("step", "tokens", "eval_tokens", "seconds", "batches")  # where a point stands, and numbers that are no curve


def check_tensorboard() -> None:
    """Refuses, before anything is trained, where the package is missing."""
    if find_spec("tensorboard") is None:
        raise config.ConfigError("train.tensorboard: the package tensorboard is not here; pip install "
                                 "'regard[board]', or set it to false")  # fmt: skip


class TensorBoardLog:
    """Curves in a folder that go on after `step`; what an earlier process wrote beyond it is taken back."""

    def __init__(self, folder: str | Path, step: int = 0) -> None:
        check_tensorboard()
        from torch.utils.tensorboard import SummaryWriter  # of an extra, and slow to import

        self.folder, self.seconds = Path(folder), math.nan if step else 0.0
        with tensorboard_errors(self.folder):
            self.writer = SummaryWriter(str(folder), purge_step=step + 1)

    def line(self, line: dict[str, Any]) -> None:
        """The numbers in one line of log.jsonl."""
        with tensorboard_errors(self.folder):
            for name, number in (*scalars_of(line), *self.speed(line)):
                self.writer.add_scalar(name, number, line["step"])

    def speed(self, line: dict[str, Any]) -> Iterator[tuple[str, float]]:
        """Tokens a second of a step; that of the first one after a resume is not known."""
        if "tokens" in line:
            spent, self.seconds = line["seconds"] - self.seconds, line["seconds"]
            if spent > 0:
                yield "train/tokens_per_second", line["tokens"] / spent

    def sync(self) -> None:
        """What was told so far is in the file, whatever happens to this process."""
        with tensorboard_errors(self.folder):
            self.writer.flush()

    def close(self) -> None:
        with tensorboard_errors(self.folder):
            self.writer.close()

    def __enter__(self) -> "TensorBoardLog":
        return self

    def __exit__(self, kind: object, *raised: object) -> None:
        with suppress(RunError) if kind is not None else nullcontext():  # else the reason is on its way already
            self.close()


@contextmanager
def tensorboard_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise unwritable_error(folder, problem) from None


def scalars_of(line: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The curves that a line adds to: a step's, an evaluation's, that of the last one over everything, or a layer's."""
    group = "train" if "eval_loss" not in line else "validation_whole" if line.get("whole") else "validation"
    for name, value in line.items():
        if isinstance(value, dict | list) and name not in APART:
            yield from nested_scalars(value, name)
        elif name not in APART and (number := as_number(value)) is not None:
            yield f"{group}/{name.removeprefix('eval_')}", number


def nested_scalars(table: Any, path: str) -> Iterator[tuple[str, float]]:
    """What stands in tables and lists within a line, by its path."""
    for name, value in table.items() if isinstance(table, dict) else enumerate(table):
        if isinstance(value, dict | list):
            yield from nested_scalars(value, f"{path}/{name}")
        elif (number := as_number(value)) is not None:
            yield f"{path}/{name}", number


def as_number(value: Any) -> float | None:
    """A number; the log says nan and inf in words."""
    if value in ("nan", "inf", "-inf"):
        return float(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
