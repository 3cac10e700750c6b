"""MANIFEST.json: the size and sha256 of each file in a folder, written last. Where it agrees, the folder is whole."""

import json
import os
from collections.abc import Container
from contextlib import suppress
from hashlib import file_digest
from pathlib import Path
from typing import Any

from regard.config import DataError
from regard.hub.families.theirs import table_in
from regard.hub.whole import sync

NAME, FORMAT = "MANIFEST.json", 1


def seal(folder: Path) -> None:
    """Put every file on the disk and write down what it is."""
    files = {}
    for path in inside(folder):
        sync(path)
        files[path.relative_to(folder).as_posix()] = {"size": path.stat().st_size, "sha256": digest(path)}
    for place in folder.rglob("*"):
        if place.is_dir():
            sync(place)
    write_json(folder / NAME, {"format": FORMAT, "files": files})
    sync(folder / NAME)


def inside(folder: Path) -> list[Path]:
    """The files of a folder and of the folders in it."""
    return sorted(path for path in folder.rglob("*") if not path.is_dir())


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def write_json(path: Path, table: dict[str, Any]) -> None:
    path.write_bytes(as_bytes(table))


def as_bytes(table: dict[str, Any]) -> bytes:
    return (json.dumps(table, indent=2, ensure_ascii=False) + "\n").encode()


def verify(path: str | Path, only: Container[str] | None = None) -> str:
    """What is wrong with a folder that was written here, in a sentence; nothing if it is whole.

    `only` looks at some of the files.
    """
    folder = Path(path)
    try:
        files = listed(folder)
    except DataError as problem:
        return str(problem)
    for name, facts in files.items():
        if (only is None or name in only) and (wrong := damage(folder / name, facts)):
            return f"{folder / name}: {wrong}"
    return ""


def listed(folder: Path) -> dict[str, dict[str, Any]]:
    """The files that the manifest names."""
    path = folder / NAME
    if not path.is_file():
        raise DataError(f"{folder}: there is no {NAME}, which is written last; the folder is not whole")
    table = table_in(path)
    files = table.get("files")
    if table.get("format") != FORMAT:
        raise DataError(f"{path}: format {table.get('format')!r}; this version reads {FORMAT}")
    if not isinstance(files, dict) or not all(plain(name) and isinstance(facts, dict) for name, facts in files.items()):
        raise DataError(f"{path}: expected the size and sha256 of each file under 'files'")
    if path.read_bytes() != as_bytes(table):  # nobody vouches for the manifest but its own form
        raise DataError(f"{path}: not as it was written, so it vouches for nothing")
    return files


def plain(name: str) -> bool:
    """A name that stays inside its folder."""
    return not os.path.isabs(name) and ".." not in name.split("/") and "\0" not in name


def damage(path: Path, facts: dict[str, Any]) -> str:
    try:
        size = path.stat().st_size
        if not path.is_file():
            return "not a regular file"
        if size != facts.get("size"):
            return f"{size} bytes, where {NAME} says {facts.get('size')}"
        return "" if digest(path) == facts.get("sha256") else f"other bytes than {NAME} says (sha256 differs)"
    except OSError as problem:
        return f"{(problem.strerror or str(problem)).lower()}, and {NAME} names it"


def strangers(folder: Path) -> list[str]:
    """Files that are in a folder and that its manifest does not name."""
    files: dict[str, dict[str, Any]] = {}
    with suppress(DataError):
        files = listed(folder)
    names = [path.relative_to(folder).as_posix() for path in inside(folder)]
    return [name for name in names if name not in files and not (files and name == NAME)]
