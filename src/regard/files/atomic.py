"""Atomic writes: files, links and folders are replaced whole or not at all, whenever the writer is killed.

    .lab.3f9c.regard-new    a folder being written, or the folder of a file being written; locked by its writer
    .lab.3f9c.regard-old    what stood at `lab`, for the moment in which the new one takes its place
    lab                     the old one or the new one, whole

A lock dies with its writer, also in another container or after a power cut, where the number of a process says nothing.
Each writer sweeps what dead ones left beside it. No other module renames over what others read.
"""

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from regard.config.errors import unwritable_error

NEW_SUFFIX, OLD_SUFFIX = ".regard-new", ".regard-old"
TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]+\.regard-(?:new|old)", re.DOTALL)


@contextmanager
def open_atomic(path: Path) -> Iterator[IO[bytes]]:
    """A file written aside, synced, and renamed at the end: at any moment there is the whole file or none."""
    with atomic_path(path) as aside, aside.open("xb") as file:
        yield file


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Where to write a file; when the block ends it stands at `path`, in place of what was there before.

    It lies in a locked folder of its own: safetensors replaces the file that it writes, and a lock on it would be lost.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    recover_folders(path.parent)
    try:
        with temporary_folder(path.with_name(path.name[:16])) as folder:
            aside = folder / path.name
            yield aside
            replace_file(aside, path)
    except OSError as problem:
        if NEW_SUFFIX not in str(problem.filename):
            raise
        raise OSError(problem.errno, problem.strerror, str(path)) from None  # the name that the caller knows


def replace_file(aside: Path, path: Path) -> None:
    """Put a file that was written aside on the disk, and then at its place."""
    fsync_path(aside)
    os.replace(aside, path)


@contextmanager
def open_output_file(path: Path) -> Iterator[IO[bytes]]:
    """As `open_atomic`, for a file that a user names: a link stays a link, a device or a pipe is written to directly,
    and no folder is made."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT).lower(), str(path))
    real = path.resolve()
    with open_atomic(real) if real.is_file() or not real.exists() else real.open("wb") as file:
        yield file


def write_file(path: Path, parts: "Iterable[bytes | array[int]]") -> None:
    """Writes a file whole, or not at all."""
    with open_atomic(path) as file:
        for part in parts:
            file.write(part)


def write_json(path: Path, table: dict[str, Any]) -> None:
    write_text(path, json.dumps(table, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Whole or not at all, and on the disk: a run cannot be resumed without its config."""
    try:
        write_file(path, [text.encode()])
    except OSError as problem:
        raise unwritable_error(path, problem) from None


def replace_link(link: Path, target: Path) -> None:
    """A link to `target`, which may be relative to the link's folder, in place of what was there before."""
    with temporary_folder(link) as folder:
        (folder / link.name).symlink_to(target)
        os.replace(folder / link.name, link)


@contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """A folder to write into; when the block ends it stands at `path`, in place of what was there before."""
    path = Path(os.path.realpath(path))  # what a link points to is replaced, not the link
    path.parent.mkdir(parents=True, exist_ok=True)
    restore_folder(path)
    with temporary_folder(path) as new:
        old = new.with_suffix(OLD_SUFFIX)
        try:
            yield new
            fsync_path(new)
            if path.exists():
                os.replace(path, old)
            os.replace(new, path)
            fsync_path(path.parent)
        except BaseException:
            if old.exists() and not path.exists():
                os.replace(old, path)
            raise
        finally:
            if path.exists():
                shutil.rmtree(old, ignore_errors=True)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A new folder beside `path`, locked until the block ends, and removed then if it is still there."""
    while True:
        new = path.with_name(f".{path.name}.{secrets.token_hex(4)}{NEW_SUFFIX}")
        new.mkdir()
        try:
            lock = os.open(new, os.O_RDONLY)
        except FileNotFoundError:  # swept before it was opened
            continue
        try:
            with suppress(OSError):  # a file system without locks: then nothing is swept either
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not new.exists():  # swept before it was locked
                continue
            try:
                yield new
                return
            finally:
                shutil.rmtree(new, ignore_errors=True)
        finally:
            os.close(lock)


def remove_folder(path: Path) -> None:
    """Also what goes is there whole or not at all: it goes under a name that is swept."""
    gone = path.with_name(f".{path.name}.{secrets.token_hex(4)}{NEW_SUFFIX}")
    os.replace(path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def fsync_path(path: Path) -> None:
    """Wait until a file or the names in a folder are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def recover_folders(parent: str | Path) -> None:
    """Remove what killed writers left in a folder, and put back what they had moved aside."""
    parent = Path(parent)
    for old in sorted(parent.glob(f".*{OLD_SUFFIX}")):
        restore_moved(old)
    for new in sorted(each for each in parent.glob(f".*{NEW_SUFFIX}") if final_path(each) is not None):
        with try_lock_folder(new) as mine:
            if mine:
                shutil.rmtree(new, ignore_errors=True)


def restore_folder(path: Path) -> None:
    """Put a folder back that a killed writer had moved aside."""
    for old in sorted(path.parent.glob(f".*{OLD_SUFFIX}")):
        if final_path(old) == path:
            restore_moved(old)


def restore_moved(old: Path) -> None:
    path, new = final_path(old), old.with_suffix(NEW_SUFFIX)
    if path is None:
        return
    with try_lock_folder(new) as mine, suppress(FileNotFoundError):  # another process may do the same
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
        elif mine or not new.exists():
            os.replace(old, path)


def is_temporary(path: Path) -> bool:
    """Whether a name is that of something half-written, which counts as nothing."""
    return final_path(path) is not None


def final_path(temporary: Path) -> Path | None:
    """`.lab.3f9c.regard-old` was made for `lab`; None where a name was not made here."""
    found = TEMPORARY.fullmatch(temporary.name)
    return temporary.with_name(found[1]) if found and found[1] not in (".", "..") else None


@contextmanager
def try_lock_folder(new: Path) -> Iterator[bool]:
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
