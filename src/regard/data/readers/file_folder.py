"""File folders: each file (an image, a sound) is a record, and the name of its folder is the label.

    pets/cat/1.png   pets/cat/2.png   pets/dog/1.png        Record(image=Path("pets/cat/1.png"), label="cat")

Files outside a subfolder have no label. A Processor (`regard.inputs.processors`) reads the contents; this module only
has the path, and a digest of the bytes.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from regard.config.errors import DataError
from regard.data.records import BadRecordPolicy, Record
from regard.files import content_cache
from regard.files.compression import readable_errors
from regard.files.paths import check_regular_file

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".pgm", ".ppm")
AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3", ".aiff", ".aif", ".au", ".opus")
# file suffix -> column; Processors for other files register them here
COLUMNS: dict[str, str] = {**dict.fromkeys(IMAGE_SUFFIXES, "image"), **dict.fromkeys(AUDIO_SUFFIXES, "sound")}


@dataclass(frozen=True)
class FileFolder:
    """The files of a folder, or a single one; folders below `root` are labels."""

    name: str
    root: Path
    paths: Sequence[Path]

    @property
    def settings_used(self) -> dict[str, Any]:
        return {}

    @cached_property
    def digest(self) -> str:
        return content_cache.content_key(
            ["files", [[str(path.relative_to(self.root)), file_digest(path)] for path in self.paths]]
        )

    def records(self, tally: BadRecordPolicy) -> Iterator[Record]:
        for path in self.paths:
            folders = path.relative_to(self.root).parts[:-1]
            yield Record({column_for_suffix(path): path} | ({"label": folders[0]} if folders else {}), str(path))


def file_digest(path: Path) -> str:
    check_regular_file(path, "remove it from the folder")
    with readable_errors(str(path)), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def column_for_suffix(path: Path) -> str:
    """The column of a file by its suffix: "image", "sound"; "" if unknown."""
    return COLUMNS.get(path.suffix.lower(), "")


def open_folder(folder: Path, paths: Sequence[Path]) -> FileFolder:
    """The files of a folder that are records, all of one kind."""
    first: dict[str, Path] = {}
    for path in paths:
        first.setdefault(column_for_suffix(path), path)
    if len(first) > 1:
        shown = " and ".join(f"{path.name} ({column})" for column, path in sorted(first.items()))
        raise DataError(f"{folder}: files of several kinds in this folder, {shown}; name a folder of one kind")
    return FileFolder(str(folder), folder, sorted(paths))


def path_in_record(record: Record, name: str) -> Path:
    """The path that a column names, absolute or relative to the record's own file."""
    path = Path(str(record[name])).expanduser()
    beside = Path(record.where.rpartition(":")[0] or record.where).parent / path
    found = next((each for each in (path, beside) if each.is_file()), None)
    if found is None:
        raise DataError(f"{record.where}: column {name!r} names {str(path)!r}, and there is no such file, here or "
                        f"beside {record.where.rpartition(':')[0] or 'it'}; correct the name, or skip it by "
                        "data.on_bad_record=skip")  # fmt: skip
    return found
