"""log.jsonl: one line a step, in full precision, times last; cut back to the checkpoint when a run goes on."""

import errno
import json
import os
from pathlib import Path
from typing import Any

from regard.config.errors import unwritable
from regard.train.loop import Step


class Log:
    """Lines of JSON that are on disk as soon as they are written; `offset` is where the next one goes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.file = path.open("ab")
        except OSError as problem:
            raise unwritable(path, problem) from None

    def write(self, line: dict[str, Any]) -> None:
        try:
            self.file.write(json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n")
            self.file.flush()
        except OSError as problem:
            raise unwritable(self.path, problem) from None

    def sync(self) -> None:
        """What is written stays, even if the power fails."""
        try:
            os.fsync(self.file.fileno())
        except OSError as problem:
            if problem.errno != errno.EINVAL:  # a pipe or a terminal cannot
                raise unwritable(self.path, problem) from None

    def back(self, offset: int) -> None:
        """Forget what was written after a place."""
        try:
            self.file.truncate(offset)
            self.file.seek(offset)
        except OSError as problem:
            raise unwritable(self.path, problem) from None

    @property
    def offset(self) -> int:
        return self.file.tell()

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, kind: object, *raised: object) -> None:
        try:
            self.file.close()
        except OSError as problem:
            if kind is None:  # else the reason is on its way, and closing only tried once more
                raise unwritable(self.path, problem) from None


class Unheard(Log):
    """Takes lines and keeps none: of many processes one writes."""

    def __init__(self) -> None:
        super().__init__(Path(os.devnull))

    def back(self, offset: int) -> None:
        """There is nothing to forget."""


def cut(path: Path, offset: int) -> str:
    """Forget what was logged after a checkpoint: those steps will be taken again. Says what is missing before it."""
    size = path.stat().st_size if path.exists() else 0
    try:
        if size > offset:
            os.truncate(path, offset)
        if size >= offset:
            return ""
        if size:
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)  # a torn line would swallow the next one
    except OSError as problem:
        raise unwritable(path, problem) from None
    return f"{path}: shorter than at the checkpoint, so lines are missing; the run itself lacks nothing"


def line_of(step: Step, clip: float | None) -> dict[str, Any]:
    """What log.jsonl says of a step; `clipped` and `skipped` are the events worth finding again."""
    loss, norm = float(step.loss), float(step.norm)
    finite = norm - norm == 0 and loss - loss == 0
    line: dict[str, Any] = {"step": step.number, "loss": plain(loss), "lr": step.lr, "norm": plain(norm)}
    if clip is not None:
        line["clipped"] = finite and norm > clip  #: S098
    if not finite or not bool(step.taken):
        line["skipped"] = "its loss or gradients leapt" if finite else "its loss or gradients are no numbers"
    return {**line, "tokens": step.tokens, "seconds": step.seconds}


def plain(number: float) -> float | str:
    """JSON has no nan: it is written as a word."""
    return number if number - number == 0 else str(number)
