"""MANIFEST.json: the size and SHA-256 of each file in a folder, written last; a folder that matches it is complete."""

import json
import os
from collections.abc import Container
from contextlib import suppress
from hashlib import file_digest
from pathlib import Path
from typing import Any

from regard.config.errors import DataError
from regard.files.atomic import fsync_path
from regard.files.content_cache import read_json_object

MANIFEST_NAME, MANIFEST_FORMAT = "MANIFEST.json", 1


def write_manifest(folder: Path) -> None:
    """Sync every file to disk and write the manifest."""
    files = {}
    for path in files_under(folder):
        fsync_path(path)
        files[path.relative_to(folder).as_posix()] = {"size": path.stat().st_size, "sha256": sha256_of(path)}
    for place in folder.rglob("*"):
        if place.is_dir():
            fsync_path(place)
    write_json_plain(folder / MANIFEST_NAME, {"format": MANIFEST_FORMAT, "files": files})
    fsync_path(folder / MANIFEST_NAME)


def files_under(folder: Path) -> list[Path]:
    """The files of a folder and its subfolders."""
    return sorted(path for path in folder.rglob("*") if not path.is_dir())


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def write_json_plain(path: Path, table: dict[str, Any]) -> None:
    path.write_bytes(json_bytes(table))


def json_bytes(table: dict[str, Any]) -> bytes:
    return (json.dumps(table, indent=2, ensure_ascii=False) + "\n").encode()


def verify_manifest(path: str | Path, only: Container[str] | None = None) -> str:
    """A sentence on what is wrong with a folder written by this package; "" if it matches its manifest.

    `only` restricts the check to some of the files.
    """
    folder = Path(path)
    try:
        files = manifest_entries(folder)
    except DataError as problem:
        return str(problem)
    for name, facts in files.items():
        if (only is None or name in only) and (wrong := describe_damage(folder / name, facts)):
            return f"{folder / name}: {wrong}"
    return ""


def manifest_entries(folder: Path) -> dict[str, dict[str, Any]]:
    """The entries of the manifest."""
    path = folder / MANIFEST_NAME
    if not path.is_file():
        raise DataError(f"{folder}: there is no {MANIFEST_NAME}, which is written last; the folder is not whole")
    table = read_json_object(path)
    files = table.get("files")
    if table.get("format") != MANIFEST_FORMAT:
        raise DataError(f"{path}: format {table.get('format')!r}; this version reads {MANIFEST_FORMAT}")
    if not isinstance(files, dict) or not all(
        is_inside(name) and isinstance(facts, dict) for name, facts in files.items()
    ):
        raise DataError(f"{path}: expected the size and sha256 of each file under 'files'")
    if path.read_bytes() != json_bytes(table):  # it has no checksum: check its form
        raise DataError(f"{path}: not as it was written, so it vouches for nothing")
    return files


def is_inside(name: str) -> bool:
    """Whether a name stays inside its folder."""
    return not os.path.isabs(name) and ".." not in name.split("/") and "\0" not in name


def describe_damage(path: Path, facts: dict[str, Any]) -> str:
    try:
        size = path.stat().st_size
        if not path.is_file():
            return "not a regular file"
        if size != facts.get("size"):
            return f"{size} bytes, where {MANIFEST_NAME} says {facts.get('size')}"
        return (
            "" if sha256_of(path) == facts.get("sha256") else f"other bytes than {MANIFEST_NAME} says (sha256 differs)"
        )
    except OSError as problem:
        return f"{(problem.strerror or str(problem)).lower()}, and {MANIFEST_NAME} names it"


def unlisted_files(folder: Path) -> list[str]:
    """Files in a folder that its manifest does not list."""
    files: dict[str, dict[str, Any]] = {}
    with suppress(DataError):
        files = manifest_entries(folder)
    names = [path.relative_to(folder).as_posix() for path in files_under(folder)]
    return [name for name in names if name not in files and not (files and name == MANIFEST_NAME)]
