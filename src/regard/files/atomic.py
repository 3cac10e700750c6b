"""Atomic writes: files, links and folders are replaced completely or not at all, whenever the writer is killed.

    .lab.3f9c.regard-new    a folder being written, or the folder of a file being written; locked by its writer
    .lab.3f9c.regard-old    the previous `lab`, while the new one replaces it
    lab                     the old one or the new one, complete

A lock ends with its process, also in another container or after a power cut, where a process id proves nothing. Each
writer removes what killed ones left beside it. No other module renames over files that others read.
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
    """Open a file that is written aside, synced, and renamed at the end: at any moment it is complete or absent."""
    with atomic_path(path) as aside, aside.open("xb") as file:
        yield file


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A path to write to; when the block ends the file replaces `path`.

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
        raise OSError(problem.errno, problem.strerror, str(path)) from None  # the path that the caller knows


def replace_file(aside: Path, path: Path) -> None:
    """Sync a temporary file to disk, and rename it to its final path."""
    fsync_path(aside)
    os.replace(aside, path)


@contextmanager
def open_output_file(path: Path) -> Iterator[IO[bytes]]:
    """Like `open_atomic`, for a path from the user: a link stays a link, a device or a pipe is written directly, and no
    folder is created."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT).lower(), str(path))
    real = path.resolve()
    with open_atomic(real) if real.is_file() or not real.exists() else real.open("wb") as file:
        yield file


def write_file(path: Path, parts: "Iterable[bytes | array[int]]") -> None:
    """Write a file atomically."""
    with open_atomic(path) as file:
        for part in parts:
            file.write(part)


def write_json(path: Path, table: dict[str, Any]) -> None:
    write_text(path, json.dumps(table, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text atomically and sync it to disk: a run cannot be resumed without its config."""
    try:
        write_file(path, [text.encode()])
    except OSError as problem:
        raise unwritable_error(path, problem) from None


def replace_link(link: Path, target: Path) -> None:
    """Replace a link atomically; `target` may be relative to the link's folder."""
    with temporary_folder(link) as folder:
        (folder / link.name).symlink_to(target)
        os.replace(folder / link.name, link)


@contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """A folder to write into; when the block ends it replaces `path`."""
    path = Path(os.path.realpath(path))  # replace the target of a link, not the link
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
    """A new folder beside `path`, locked until the block ends, and then removed if it still exists."""
    while True:
        new = path.with_name(f".{path.name}.{secrets.token_hex(4)}{NEW_SUFFIX}")
        new.mkdir()
        try:
            lock = os.open(new, os.O_RDONLY)
        except FileNotFoundError:  # removed by another process before it was opened
            continue
        try:
            with suppress(OSError):  # a file system without locks: nothing is removed there either
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not new.exists():  # removed by another process before it was locked
                continue
            try:
                yield new
                return
            finally:
                shutil.rmtree(new, ignore_errors=True)
        finally:
            os.close(lock)


def remove_folder(path: Path) -> None:
    """Remove a folder atomically: it is first renamed to a temporary name."""
    gone = path.with_name(f".{path.name}.{secrets.token_hex(4)}{NEW_SUFFIX}")
    os.replace(path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def fsync_path(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def recover_folders(parent: str | Path) -> None:
    """Remove what killed writers left in a folder, and restore what they had moved aside."""
    parent = Path(parent)
    for old in sorted(parent.glob(f".*{OLD_SUFFIX}")):
        restore_moved(old)
    for new in sorted(each for each in parent.glob(f".*{NEW_SUFFIX}") if final_path(each) is not None):
        with try_lock_folder(new) as mine:
            if mine:
                shutil.rmtree(new, ignore_errors=True)


def restore_folder(path: Path) -> None:
    """Restore a folder that a killed writer had moved aside."""
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
    """Whether a name is that of an incomplete file or folder, to be ignored."""
    return final_path(path) is not None


def final_path(temporary: Path) -> Path | None:
    """The final path of a temporary one: `lab` for `.lab.3f9c.regard-old`; None for other names."""
    found = TEMPORARY.fullmatch(temporary.name)
    return temporary.with_name(found[1]) if found and found[1] not in (".", "..") else None


@contextmanager
def try_lock_folder(new: Path) -> Iterator[bool]:
    """Whether a folder's writer has ended; no other process may claim the folder while the block runs."""
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
