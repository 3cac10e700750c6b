"""Row store: memory-mapped rows, built once for each content and setting, and rebuilt if they are damaged.

    <cache>/<key>.ids, .ends, ...      what a RowLayout writes, one row after the other
    <cache>/<key>.json                 content key and count: written last, so that incomplete files do not count

`example_store` stores lists of ids and `tensor_store` tensors of any shape; their common part is here.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import torch
from torch import Tensor

from regard.config.errors import DataError
from regard.data.records import BadRecordPolicy
from regard.data.token_shards import Notice, Progress, map_file, uncached_notice
from regard.files import atomic, content_cache

OnBadRecord = Literal["error", "skip"]
RowMaker = Callable[[BadRecordPolicy], Iterable[Any]]  # yields all rows, and counts skipped records
ColumnSizes = dict[str, int]  # file suffix -> count of numbers
STRANGE = (KeyError, TypeError, ValueError, AttributeError)  # errors from JSON that was not written here


class StoredRows(Protocol):
    """Rows that are read by number."""

    @property
    def count(self) -> int: ...

    @property
    def marks(self) -> Tensor: ...

    def row(self, row: int) -> Any: ...

    def lengths(self) -> Tensor: ...


class RowSequence(Sequence[Any]):
    """Rows by number; `which` selects some of the stored rows (None: all, in order).

    `told` are notices for the training log, about truncated and skipped records. `digest` identifies their content.
    """

    kept: Any

    def __init__(
        self, kept: StoredRows, name: str, which: Tensor | None = None, told: tuple[str, ...] = (), digest: str = ""
    ) -> None:
        self.kept, self.name, self.which, self.told, self.digest = kept, name, which, told, digest

    def __len__(self) -> int:
        return int(self.kept.count) if self.which is None else len(self.which)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(f"{self.name}: row {row} of {len(self):,}")
        row = row % len(self)
        return self.kept.row(row if self.which is None else int(self.which[row]))

    def lengths(self) -> Tensor:
        """(rows,) number of tokens of each row; of several lists, the longest."""
        lengths: Tensor = self.kept.lengths()
        return lengths if self.which is None else lengths[self.which]

    def marks(self) -> Tensor:
        """(rows,) the hash of each input."""
        marks: Tensor = self.kept.marks
        return marks if self.which is None else marks[self.which]

    def part(self, which: Tensor, name: str) -> Self:
        """A selection of the rows, without copying."""
        return type(self)(self.kept, name, which if self.which is None else self.which[which], self.told, self.digest)


class RowLayout(Protocol):
    """File layout of rows: `add` appends one to `parts`, which are written and cleared when they are `full`."""

    files: dict[str, torch.dtype]
    rows: int

    @property
    def parts(self) -> dict[str, Any]: ...

    @property
    def full(self) -> bool: ...

    def add(self, row: Any) -> None: ...

    def clear(self) -> None: ...

    def facts(self, sizes: ColumnSizes, tally: BadRecordPolicy) -> dict[str, Any]:
        """Further entries of the JSON: columns, and notices under "told"."""
        ...

    def sizes(self, known: dict[str, Any]) -> ColumnSizes:
        """The file sizes that this JSON implies."""
        ...

    def built(self, known: dict[str, Any], files: dict[str, Tensor]) -> StoredRows | None:
        """The stored rows; None if the files do not match."""
        ...


@dataclass(frozen=True)
class StoreJob:
    """A build of rows: their maker, layout and progress callback."""

    made: RowMaker
    layout: Callable[[], RowLayout]
    bad: OnBadRecord
    progress: Progress

    def gathering(self, layout: RowLayout, tally: BadRecordPolicy) -> Iterator[dict[str, Any]]:
        """Yield the next parts of the files until all rows are written."""
        for row in self.made(tally):
            layout.add(row)
            if layout.full:
                yield layout.parts
                layout.clear()
                self.progress(layout.rows)
        yield layout.parts
        self.progress(layout.rows)


def store_rows(
    job: StoreJob, about: dict[str, Any], folder: Path, name: str, notice: Notice
) -> tuple[StoredRows, tuple[str, ...]]:
    """The rows of the content key `about`, from the cache or built now and stored; and their notices."""
    path = folder / content_cache.content_key(about)
    found = map_rows(path, about, job.layout())
    if found is None:
        try:
            write_rows(path, about, job)
            found = map_rows(path, about, job.layout())
        except OSError as problem:
            notice(uncached_notice(folder, problem))
    kept, told = found or rows_in_memory(job)
    if not kept.count:
        raise DataError(f"{name}: no records to train on; name a source that has some")
    for line in told:
        notice(f"{name}: {line}")
    return kept, told


def write_rows(path: Path, about: dict[str, Any], job: StoreJob) -> None:
    """Write the files in parallel, then the JSON."""
    path.with_suffix(".json").unlink(missing_ok=True)
    layout, tally = job.layout(), BadRecordPolicy(job.bad)
    with ExitStack() as stack:
        files = {name: stack.enter_context(atomic.open_atomic(path.with_suffix(f".{name}"))) for name in layout.files}
        for parts in job.gathering(layout, tally):
            for name, file in files.items():
                file.write(parts[name])
        sizes = {name: file.tell() // layout.files[name].itemsize for name, file in files.items()}
    known = {**about, "count": layout.rows, **layout.facts(sizes, tally)}
    atomic.write_file(path.with_suffix(".json"), [json.dumps(known, indent=1).encode()])


def map_rows(path: Path, about: dict[str, Any], layout: RowLayout) -> tuple[StoredRows, tuple[str, ...]] | None:
    """Memory-map the cached files; None if they are missing or damaged."""
    known = content_cache.read_json_or_none(path.with_suffix(".json"))
    if not isinstance(known, dict) or {name: known.get(name) for name in about} != json.loads(json.dumps(about)):
        return None
    try:
        sizes, told = layout.sizes(known), tuple(map(str, known["told"]))
        found = {name: map_file(path.with_suffix(f".{name}"), sizes[name], kind) for name, kind in layout.files.items()}
    except STRANGE:  # lack of memory for the mapping is raised instead
        return None
    files = {name: file for name, file in found.items() if file is not None}
    try:
        kept = layout.built(known, files) if len(files) == len(layout.files) else None
    except (*STRANGE, RuntimeError):  # invalid sizes
        return None
    return None if kept is None else (kept, told)


def rows_in_memory(job: StoreJob) -> tuple[StoredRows, tuple[str, ...]]:
    layout, tally, whole = job.layout(), BadRecordPolicy(job.bad), job.layout().parts
    for parts in job.gathering(layout, tally):
        for name, part in parts.items():
            whole[name].extend(part)
    files = {name: torch.frombuffer(whole[name], dtype=kind) if whole[name] else torch.empty(0, dtype=kind)
             for name, kind in layout.files.items()}  # fmt: skip
    known = {"count": layout.rows, **layout.facts({name: len(file) for name, file in files.items()}, tally)}
    kept = layout.built(known, files)
    assert kept is not None
    return kept, tuple(known["told"])
