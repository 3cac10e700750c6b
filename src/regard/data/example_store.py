"""Example store: ragged rows of token ids and numbers, built by a task from records, in memory-mapped files.

    {"source": [5, 9, 2], "target": [7, 2], "cut": 0}      <cache>/<key>.ids       5 9 2 7 2 ...          int32
    {"source": [4, 2],    "target": [8, 8, 2], "cut": 1}            .ends      3 5 7 10 ...           int64
                                                                    .numbers   0 1 ...                float64
    <key>.json: content key, columns, count                         .marks     a hash of each source  int64

Stored by `row_store`, once for each content and setting. A mark is the hash of a row's first list, the model's input:
it splits rows into training and validation, and identifies them later.
"""

import hashlib
import warnings
from array import array
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data.records import BadRecordPolicy
from regard.data.row_store import ColumnSizes, OnBadRecord, RowMaker, RowSequence, StoreJob, store_rows
from regard.data.token_shards import Notice, Progress, no_progress
from regard.files import content_cache

Example = dict[str, Any]  # column -> list[int] | int | float

FORMAT = 1
CHUNK = 1 << 18  # ids buffered before writing
FILES = {"ids": ("i", torch.int32), "ends": ("q", torch.int64), "numbers": ("d", torch.float64),
         "marks": ("q", torch.int64)}  # fmt: skip


class Examples(RowSequence):
    """Examples by row number."""


@dataclass(frozen=True)
class ColumnTypes:
    """Columns of examples: lists and numbers, and which numbers are integers."""

    lists: tuple[str, ...]
    whole: tuple[str, ...]
    broken: tuple[str, ...]

    @classmethod
    def of(cls, example: Example) -> "ColumnTypes":
        def columns_of(*kinds: type) -> tuple[str, ...]:
            return tuple(name for name, value in example.items() if type(value) in kinds)

        found = cls(columns_of(list, tuple), columns_of(int, bool), columns_of(float))
        strange = set(example) - {*found.lists, *found.whole, *found.broken}
        if strange or not found.lists:
            raise TypeError(f"an example holds lists of whole numbers and single numbers, got {example!r:.200}")
        return found

    @property
    def numbers(self) -> tuple[str, ...]:
        return (*self.whole, *self.broken)

    def fit(self, example: Example) -> bool:
        """Whether an example has exactly these columns."""
        found = ColumnTypes.of(example)
        return (found == self or (set(found.lists), set(found.whole), set(found.broken))
                == (set(self.lists), set(self.whole), set(self.broken)))  # fmt: skip


@dataclass(frozen=True)
class StoredExamples:
    """The files, memory-mapped or in memory."""

    columns: ColumnTypes
    count: int
    ids: Tensor
    ends: Tensor
    numbers: Tensor
    marks: Tensor

    def row(self, row: int) -> Example:
        count = len(self.columns.lists)
        stops = self.ends[row * count : (row + 1) * count].tolist()
        starts = [int(self.ends[row * count - 1]) if row else 0, *stops[:-1]]
        ids = self.ids[starts[0] : stops[-1]].tolist()
        lists = [ids[start - starts[0] : stop - starts[0]] for start, stop in zip(starts, stops, strict=True)]
        names = self.columns.numbers
        numbers = self.numbers[row * len(names) : (row + 1) * len(names)].tolist()
        said = [int(found) if name in self.columns.whole else found for name, found in zip(names, numbers, strict=True)]
        return dict(zip((*self.columns.lists, *names), (*lists, *said), strict=True))

    def lengths(self) -> Tensor:
        """(rows,)"""
        each = self.ends.diff(prepend=self.ends.new_zeros(1))
        return each.view(self.count, -1).amax(1) if self.count else each[:0]


class ExampleWriter:
    """Writes examples: `parts` are those not yet written."""

    files = {name: kind for name, (_, kind) in FILES.items()}

    def __init__(self) -> None:
        self.columns: ColumnTypes | None = None
        self.rows = self.total = self.cut = self.shortened = 0
        self.clear()

    def clear(self) -> None:
        self.parts: dict[str, array[Any]] = {name: array(code) for name, (code, _) in FILES.items()}

    def add(self, example: Example) -> None:
        columns = self.columns = self.columns or ColumnTypes.of(example)
        if not columns.fit(example):
            raise TypeError(f"all examples have the same columns, {self.columns}; got {example!r:.200}")
        lists = [array("i", example[name]) for name in columns.lists]
        for ids in lists:
            self.total += len(ids)
            self.parts["ids"].extend(ids)
            self.parts["ends"].append(self.total)
        self.parts["marks"].append(hash_ids(lists[0]))
        self.parts["numbers"].extend([float(example[name]) for name in columns.numbers])
        self.rows += 1
        self.cut, self.shortened = self.cut + example.get("cut", 0), self.shortened + (example.get("cut", 0) > 0)

    def notices(self, tally: BadRecordPolicy) -> tuple[str, ...]:
        """Notices for the user: truncated and skipped records."""
        cut = f"{self.shortened:,} of {self.rows:,} rows were too long, and {self.cut:,} of their tokens are cut off"
        return (*([cut] if self.cut else []), *([tally.summary] if tally.count else []))  #: S028

    @property
    def full(self) -> bool:
        return len(self.parts["ids"]) + len(self.parts["ends"]) >= CHUNK

    def facts(self, sizes: ColumnSizes, tally: BadRecordPolicy) -> dict[str, Any]:
        return {
            "total": self.total,
            "told": self.notices(tally),
            "columns": asdict(self.columns) if self.columns else {},
        }

    def sizes(self, known: dict[str, Any]) -> ColumnSizes:
        count, columns = int(known["count"]), columns_of_json(known)
        return {"ids": int(known["total"]), "ends": count * len(columns.lists),
                "numbers": count * len(columns.numbers), "marks": count}  # fmt: skip

    def built(self, known: dict[str, Any], files: dict[str, Tensor]) -> StoredExamples:
        return StoredExamples(columns_of_json(known), int(known["count"]), **files)


def columns_of_json(known: dict[str, Any]) -> ColumnTypes:
    """The columns from the JSON; none if there are no rows."""
    said = {name: tuple(each) for name, each in known["columns"].items()}
    return ColumnTypes(**said) if said else ColumnTypes((), (), ())


def hash_ids(ids: "array[int]") -> int:
    return int.from_bytes(hashlib.blake2b(ids.tobytes(), digest_size=8).digest(), "little", signed=True)


def store_examples(
    make: RowMaker, about: dict[str, Any], folder: Path, name: str, bad: OnBadRecord = "error",
    notice: Notice = warnings.warn, progress: Progress = no_progress,
) -> Examples:  # fmt: skip
    """The examples of the content key `about`: from the cache, or built now and stored there."""
    about = {"examples": FORMAT, "bad": bad, **about}
    kept, told = store_rows(StoreJob(make, ExampleWriter, bad, progress), about, folder, name, notice)
    return Examples(kept, name, told=told, digest=content_cache.content_key(about))
