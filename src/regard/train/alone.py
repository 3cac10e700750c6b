"""One process a run: whoever trains in a folder holds its lock, which dies with the process."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard import config

HELD: set[int] = set()  # folders that this process holds


def let_go() -> None:
    """Another process that this one makes does not hold them: it may outlive this one."""
    for folder in HELD:
        os.close(folder)
    HELD.clear()


os.register_at_fork(after_in_child=let_go)


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Hold the folder, or say who does."""
    try:
        folder = os.open(out, os.O_RDONLY)
    except OSError as problem:
        reason = (problem.strerror or str(problem)).lower()
        raise config.DataError(f"{out}: {reason}; name the folder of a run") from None
    try:
        hold(folder, out)
        HELD.add(folder)
        yield
    finally:
        HELD.discard(folder)
        os.close(folder)


def hold(folder: int, out: Path) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise config.ConfigError(f"{out}: another process is training there; wait for it to end, or choose another "
                                 "folder") from None  # fmt: skip
    except OSError:
        pass  # a file system without locks: then there is none to respect
