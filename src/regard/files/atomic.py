"""Folders that are there whole or not at all, whenever the writer is killed.

    .lab.3f9c.regard-new    being written, locked by its writer
    .lab.3f9c.regard-old    what stood at `lab`, for the moment in which the new one takes its place
    lab                     the old one or the new one, whole

A lock dies with its writer, also in another container or after a power cut, where the number of a process says nothing.
"""

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NEW, OLD = ".regard-new", ".regard-old"
TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]+\.regard-(?:new|old)", re.DOTALL)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A folder to write into; when the block ends it stands at `path`, in place of what was there before."""
    path = Path(os.path.realpath(path))  # what a link points to is replaced, not the link
    path.parent.mkdir(parents=True, exist_ok=True)
    mend(path)
    with fresh(path) as new:
        old = new.with_suffix(OLD)
        try:
            yield new
            sync(new)
            if path.exists():
                os.replace(path, old)
            os.replace(new, path)
            sync(path.parent)
        except BaseException:
            if old.exists() and not path.exists():
                os.replace(old, path)
            raise
        finally:
            shutil.rmtree(new, ignore_errors=True)
            if path.exists():
                shutil.rmtree(old, ignore_errors=True)


@contextmanager
def fresh(path: Path) -> Iterator[Path]:
    """A new folder beside `path`, locked until the block ends."""
    while True:
        new = path.parent / f".{path.name}.{secrets.token_hex(4)}{NEW}"
        new.mkdir()
        lock = os.open(new, os.O_RDONLY)
        try:
            with suppress(OSError):  # a file system without locks: then nobody sweeps either
                fcntl.flock(lock, fcntl.LOCK_EX)
            if new.exists():  # nobody swept it before it was locked
                yield new
                return
        finally:
            os.close(lock)


def remove(path: Path) -> None:
    """Also what goes is there whole or not at all: it goes under a name that is swept."""
    gone = path.with_name(f".{path.name}.{secrets.token_hex(4)}{NEW}")
    os.replace(path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until a file or the names in a folder are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(parent: str | Path) -> None:
    """Remove what killed writers left in a folder, and put back what they had moved aside."""
    parent = Path(parent)
    for old in sorted(parent.glob(f".*{OLD}")):
        restore(old)
    for new in sorted(each for each in parent.glob(f".*{NEW}") if target(each) is not None):
        with seized(new) as mine:
            if mine:
                shutil.rmtree(new, ignore_errors=True)


def mend(path: Path) -> None:
    """Put a folder back that a killed writer had moved aside."""
    for old in sorted(path.parent.glob(f".*{OLD}")):
        if target(old) == path:
            restore(old)


def restore(old: Path) -> None:
    path, new = target(old), old.with_suffix(NEW)
    if path is None:
        return
    with seized(new) as mine, suppress(FileNotFoundError):  # somebody else may do the same
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
        elif mine or not new.exists():
            os.replace(old, path)


def target(temporary: Path) -> Path | None:
    """`.lab.3f9c.regard-old` was made for `lab`; None where a name was not made here."""
    found = TEMPORARY.fullmatch(temporary.name)
    return temporary.with_name(found[1]) if found and found[1] not in (".", "..") else None


@contextmanager
def seized(new: Path) -> Iterator[bool]:
    """Whether a folder's writer is dead; as long as the block runs, no other may take the folder for his."""
    try:
        lock = os.open(new, os.O_RDONLY)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        dead = True
    except OSError:
        dead = False
    try:
        yield dead
    finally:
        os.close(lock)
