"""Examples: what an objective made of records, in memory-mapped files; rows of any length, several columns.

    {"source": [5, 9, 2], "target": [7, 2], "cut": 0}      <cache>/<key>.ids       5 9 2 7 2 ...          int32
    {"source": [4, 2],    "target": [8, 8, 2], "cut": 1}            .ends      3 5 7 10 ...           int64
                                                                    .numbers   0 1 ...                float64
    <key>.json: what they are made from, the columns, how many      .marks     a hash of each source  int64

Like `shards`, they are made once for a content and a setting, the JSON is written last, and what does not fit is made
again. A mark is the hash of a row's first list: what is asked. It parts rows for validation, and finds them again.
"""

import hashlib
import json
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from regard.config import DataError
from regard.data import store
from regard.data.records import Tally
from regard.data.shards import Notice, Progress, opened, quiet, unkept

Example = dict[str, Any]  # column -> list[int] | int | float
Bad = Literal["stop", "skip"]

FORMAT = 1
CHUNK = 1 << 18  # ids that are gathered before they are written
FILES = {"ids": ("i", torch.int32), "ends": ("q", torch.int64), "numbers": ("d", torch.float64),
         "marks": ("q", torch.int64)}  # fmt: skip


class Examples(Sequence[Example]):
    """Rows by their number; `which` of all that are kept are meant (none: all, in order).

    `told` is worth a line to whoever trains on them: what was cut and what was passed over. `digest` tells what they
    were made from.
    """

    def __init__(
        self, kept: "Kept", name: str, which: Tensor | None = None, told: tuple[str, ...] = (), digest: str = ""
    ) -> None:
        self.kept, self.name, self.which, self.told, self.digest = kept, name, which, told, digest

    def __len__(self) -> int:
        return self.kept.count if self.which is None else len(self.which)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(f"{self.name}: row {row} of {len(self):,}")
        row = row % len(self)
        return self.kept.row(row if self.which is None else int(self.which[row]))

    def lengths(self) -> Tensor:
        """(rows,) the longest list of each."""
        lengths = self.kept.lengths()
        return lengths if self.which is None else lengths[self.which]

    def marks(self) -> Tensor:
        """(rows,) the hash of what each asks."""
        return self.kept.marks if self.which is None else self.kept.marks[self.which]

    def part(self, which: Tensor, name: str) -> "Examples":
        """Some of the rows; nothing is copied."""
        return Examples(self.kept, name, which if self.which is None else self.which[which], self.told, self.digest)


@dataclass(frozen=True)
class Columns:
    """Which columns are lists, which are numbers, and which of these are whole."""

    lists: tuple[str, ...]
    whole: tuple[str, ...]
    broken: tuple[str, ...]

    @classmethod
    def of(cls, example: Example) -> "Columns":
        def those(*kinds: type) -> tuple[str, ...]:
            return tuple(name for name, value in example.items() if type(value) in kinds)

        found = cls(those(list, tuple), those(int, bool), those(float))
        strange = set(example) - {*found.lists, *found.whole, *found.broken}
        if strange or not found.lists:
            raise TypeError(f"an example holds lists of whole numbers and single numbers, got {example!r:.200}")
        return found

    @property
    def numbers(self) -> tuple[str, ...]:
        return (*self.whole, *self.broken)

    def fit(self, example: Example) -> bool:
        """Whether an example has these columns, and no other."""
        found = Columns.of(example)
        return (found == self or (set(found.lists), set(found.whole), set(found.broken))
                == (set(self.lists), set(self.whole), set(self.broken)))  # fmt: skip


@dataclass(frozen=True)
class Kept:
    """The files, mapped or in memory."""

    columns: Columns
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


class Gathered:
    """Rows on their way to the files: `parts` are those that are not written yet."""

    def __init__(self) -> None:
        self.columns: Columns | None = None
        self.rows = self.total = self.cut = self.shortened = 0
        self.clear()

    def clear(self) -> None:
        self.parts: dict[str, array[Any]] = {name: array(code) for name, (code, _) in FILES.items()}

    def add(self, example: Example) -> None:
        columns = self.columns = self.columns or Columns.of(example)
        if not columns.fit(example):
            raise TypeError(f"all examples have the same columns, {self.columns}; got {example!r:.200}")
        lists = [array("i", example[name]) for name in columns.lists]
        for ids in lists:
            self.total += len(ids)
            self.parts["ids"].extend(ids)
            self.parts["ends"].append(self.total)
        self.parts["marks"].append(mark(lists[0]))
        self.parts["numbers"].extend([float(example[name]) for name in columns.numbers])
        self.rows += 1
        self.cut, self.shortened = self.cut + example.get("cut", 0), self.shortened + (example.get("cut", 0) > 0)

    def told(self, tally: Tally) -> tuple[str, ...]:
        """What somebody should hear: it is no secret that something is missing."""
        cut = f"{self.shortened:,} of {self.rows:,} rows were too long, and {self.cut:,} of their tokens are cut off"
        return (*([cut] if self.cut else []), *([tally.told] if tally.count else []))  #: S028


def mark(ids: "array[int]") -> int:
    return int.from_bytes(hashlib.blake2b(ids.tobytes(), digest_size=8).digest(), "little", signed=True)


def gathering(examples: Iterable[Example], into: Gathered, progress: Progress) -> "Iterator[dict[str, array[Any]]]":
    """The files' next parts, again and again until all examples are in them."""
    for example in examples:
        into.add(example)
        if len(into.parts["ids"]) + len(into.parts["ends"]) >= CHUNK:
            yield into.parts
            into.clear()
            progress(into.rows)
    yield into.parts
    progress(into.rows)


Made = Callable[[Tally], Iterable[Example]]  # makes all examples, and tallies the records it cannot use


def kept(
    made: Made, about: dict[str, Any], folder: Path, name: str, bad: Bad = "stop",
    notice: Notice = warnings.warn, progress: Progress = quiet,
) -> Examples:  # fmt: skip
    """The examples that `about` stands for: from the cache, or made now and kept there."""
    about = {"examples": FORMAT, "bad": bad, **about}
    path = folder / store.key(about)
    found = mapped(path, about)
    if found is None:
        try:
            keep(path, about, made, bad, progress)
            found = mapped(path, about)
        except OSError as problem:
            notice(unkept(folder, problem))
    files, told = found or in_memory(made, bad, progress)
    if not files.count:
        raise DataError(f"{name}: no records to learn from; name a source that has some")
    for line in told:
        notice(f"{name}: {line}")
    return Examples(files, name, told=told, digest=path.name)


def keep(path: Path, about: dict[str, Any], made: Made, bad: Bad, progress: Progress) -> None:
    """Writes the files side by side, then what they are."""
    path.with_suffix(".json").unlink(missing_ok=True)
    rows, tally = Gathered(), Tally(bad)
    with ExitStack() as stack:
        files = {name: stack.enter_context(store.writing(path.with_suffix(f".{name}"))) for name in FILES}
        for parts in gathering(made(tally), rows, progress):
            for name, file in files.items():
                file.write(parts[name])
    known = {**about, "count": rows.rows, "total": rows.total, "told": rows.told(tally),
             "columns": asdict(rows.columns) if rows.columns else {}}  # fmt: skip
    store.put(path.with_suffix(".json"), [json.dumps(known, indent=1).encode()])


def mapped(path: Path, about: dict[str, Any]) -> tuple[Kept, tuple[str, ...]] | None:
    """The kept files, without reading them; None where they are not there, or not as they should be."""
    known = store.get(path.with_suffix(".json"))
    if not isinstance(known, dict) or {name: known.get(name) for name in about} != json.loads(json.dumps(about)):
        return None
    try:
        count, columns = int(known["count"]), Columns(**{name: tuple(each) for name, each in known["columns"].items()})
        sizes = {"ids": int(known["total"]), "ends": count * len(columns.lists),
                 "numbers": count * len(columns.numbers), "marks": count}  # fmt: skip
        found = {name: opened(path.with_suffix(f".{name}"), sizes[name], dtype) for name, (_, dtype) in FILES.items()}
        told = tuple(map(str, known["told"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    files = {name: file for name, file in found.items() if file is not None}
    return (Kept(columns, count, **files), told) if len(files) == len(FILES) else None


def in_memory(made: Made, bad: Bad, progress: Progress) -> tuple[Kept, tuple[str, ...]]:
    rows, tally, whole = Gathered(), Tally(bad), Gathered().parts
    for parts in gathering(made(tally), rows, progress):
        for name, part in parts.items():
            whole[name].extend(part)
    files = {name: torch.frombuffer(whole[name], dtype=dtype) if whole[name] else torch.empty(0, dtype=dtype)
             for name, (_, dtype) in FILES.items()}  # fmt: skip
    return Kept(rows.columns or Columns((), (), ()), rows.rows, **files), rows.told(tally)
