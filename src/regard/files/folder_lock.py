"""Lock of a run folder: one training process per folder; the lock ends with the process."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from regard import config
from regard.config.errors import unwritable_error

HELD: set[int] = set()  # folders locked by this process
TRIES = 100  # attempts to create and lock a folder that others may remove at the same time


def release_after_fork() -> None:
    """Release locks in a forked child, which may outlive this process."""
    for folder in HELD:
        os.close(folder)
    HELD.clear()


os.register_at_fork(after_in_child=release_after_fork)


@contextmanager
def lock_folder(out: Path, new: bool = False, doing: str = "training") -> Iterator[None]:
    """Lock the folder, or raise if another process is `doing` something there. A `new` folder is created here, and
    removed if it is empty in the end.

    Only the process with the lock removes the folder: an empty one may be a run that has just started.
    """
    above = [place for place in out.parents if new and not place.exists()]
    folder = open_locked_folder(out, new, doing)
    HELD.add(folder)
    try:
        yield
    finally:
        if folder in HELD:  # not in a forked child
            if new:
                with suppress(OSError):  # remove an empty folder, and the parents created for it
                    for place in (out, *above):
                        place.rmdir()
            HELD.discard(folder)
            os.close(folder)


def open_locked_folder(out: Path, new: bool, doing: str) -> int:
    """Open and lock a folder, and check that it is still the one at `out`.

    Between opening and locking, another process may have removed it: a lock on a removed folder is worthless, and the
    folder at `out` may be locked by another process.
    """
    for _ in range(TRIES):
        try:
            if new:
                out.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:  # a parent folder was removed by the process that created it
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
    """Whether an open folder is the one at a path."""
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
        pass  # a file system without locks
