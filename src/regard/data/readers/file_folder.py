"""Folders: files that are a record each, such as pictures and sounds; the folder that a file is in is its label.

    pets/cat/1.png   pets/cat/2.png   pets/dog/1.png        Record(image=Path("pets/cat/1.png"), label="cat")

Files that are not in a folder of their own have no label. What a file holds is the business of a sense: here it has a
name, and a digest of its bytes.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from regard.config import DataError
from regard.config.paths import check_regular_file
from regard.data import store
from regard.data.packing import readable
from regard.data.records import Record, Tally

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".pgm", ".ppm")
SOUNDS = (".wav", ".flac", ".ogg", ".mp3", ".aiff", ".aif", ".au", ".opus")
# The column that a file of this name is; a sense with files of its own enters them.
COLUMNS: dict[str, str] = {**dict.fromkeys(PICTURES, "image"), **dict.fromkeys(SOUNDS, "sound")}


@dataclass(frozen=True)
class Files:
    """The files of a folder, or a single one; `root` is where the names of folders begin to be labels."""

    name: str
    root: Path
    paths: Sequence[Path]

    @property
    def heeds(self) -> dict[str, Any]:
        return {}

    @cached_property
    def digest(self) -> str:
        return store.key(["files", [[str(path.relative_to(self.root)), digest(path)] for path in self.paths]])

    def records(self, tally: Tally) -> Iterator[Record]:
        for path in self.paths:
            folders = path.relative_to(self.root).parts[:-1]
            yield Record({column_of(path): path} | ({"label": folders[0]} if folders else {}), str(path))


def digest(path: Path) -> str:
    check_regular_file(path, "remove it from the folder")
    with readable(str(path)), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def column_of(path: Path) -> str:
    """What a file is, by its name: "image", "sound"; nothing where its name says nothing."""
    return COLUMNS.get(path.suffix.lower(), "")


def files(folder: Path, paths: Sequence[Path]) -> Files:
    """The files of a folder that are records, all of one kind."""
    first: dict[str, Path] = {}
    for path in paths:
        first.setdefault(column_of(path), path)
    if len(first) > 1:
        shown = " and ".join(f"{path.name} ({column})" for column, path in sorted(first.items()))
        raise DataError(f"{folder}: files of several kinds in this folder, {shown}; name a folder of one kind")
    return Files(str(folder), folder, sorted(paths))


def file_in(record: Record, name: str) -> Path:
    """The file that a column names: by itself, or beside the file that the record stands in."""
    path = Path(str(record[name])).expanduser()
    beside = Path(record.where.rpartition(":")[0] or record.where).parent / path
    found = next((each for each in (path, beside) if each.is_file()), None)
    if found is None:
        raise DataError(f"{record.where}: column {name!r} names {str(path)!r}, and there is no such file, here or "
                        f"beside {record.where.rpartition(':')[0] or 'it'}; mend the name, or pass it over by "
                        "data.bad=skip")  # fmt: skip
    return found
