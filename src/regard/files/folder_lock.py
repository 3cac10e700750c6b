"""The lock of a run folder: one training process a folder; the lock dies with the process."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from regard import config
from regard.config.errors import unwritable_error

HELD: set[int] = set()  # folders that this process holds
TRIES = 100  # to make and hold a folder that others remove at the same time


def release_after_fork() -> None:
    """Another process that this one makes does not hold them: it may outlive this one."""
    for folder in HELD:
        os.close(folder)
    HELD.clear()


os.register_at_fork(after_in_child=release_after_fork)


@contextmanager
def lock_folder(out: Path, new: bool = False, doing: str = "training") -> Iterator[None]:
    """Lock the folder, or say what another process is `doing` there. A `new` one is made here, and removed if it is
    empty in the end.

    Only the process that holds a folder removes it: to others an empty folder may be a run that has just begun.
    """
    above = [place for place in out.parents if new and not place.exists()]
    folder = open_locked_folder(out, new, doing)
    HELD.add(folder)
    try:
        yield
    finally:
        if folder in HELD:  # not in a child that was forked meanwhile
            if new:
                with suppress(OSError):  # an empty folder is not worth keeping, nor are those that were made for it
                    for place in (out, *above):
                        place.rmdir()
            HELD.discard(folder)
            os.close(folder)


def open_locked_folder(out: Path, new: bool, doing: str) -> int:
    """The locked folder, as an open file; it is still the one that stands at `out`.

    Between opening and locking, a process that held it may have removed it: a lock on what was removed is worth
    nothing, and another process may hold the folder that stands there now.
    """
    for _ in range(TRIES):
        try:
            if new:
                out.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:  # a folder above was removed meanwhile, by the process that had made it
            continue
        except OSError as problem:
            raise unwritable_error(out, problem) from None
        try:
            folder = os.open(out, os.O_RDONLY)
        except OSError as problem:
            if new and isinstance(problem, FileNotFoundError):
                continue
            reason = (problem.strerror or str(problem)).lower()
            raise config.DataError(f"{out}: {reason}; name the folder of a run") from None
        try:
            acquire_lock(folder, out, doing)
            if is_same_folder(folder, out):
                return folder
        except BaseException:
            os.close(folder)
            raise
        os.close(folder)
    raise config.ConfigError(f"{out}: other processes make and remove it all the time; choose another folder")


def is_same_folder(folder: int, out: Path) -> bool:
    """Whether an open folder is what stands at a path."""
    try:
        return os.path.samestat(os.fstat(folder), os.stat(out))
    except FileNotFoundError:
        return False


def acquire_lock(folder: int, out: Path, doing: str) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise config.ConfigError(f"{out}: another process is {doing} there; wait for it to end, or choose another "
                                 "folder") from None  # fmt: skip
    except OSError:
        pass  # a file system without locks: then there is none to respect
