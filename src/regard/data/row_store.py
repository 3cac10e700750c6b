"""Row store: memory-mapped rows, made once for a content and a setting, and made again where they do not fit.

    <cache>/<key>.ids, .ends, ...      what a RowLayout writes, one row after the other
    <cache>/<key>.json                 what they are made from, and how many: written last, so that half is nothing

`example_store` stores lists of ids and `tensor_store` tensors of any shape; what is the same for both is here.
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
RowMaker = Callable[[BadRecordPolicy], Iterable[Any]]  # makes all rows, and tallies the records it cannot use
ColumnSizes = dict[str, int]  # numbers in each file
STRANGE = (KeyError, TypeError, ValueError, AttributeError)  # what comes of JSON that we did not write


class StoredRows(Protocol):
    """Rows that can be read by their number."""

    @property
    def count(self) -> int: ...

    @property
    def marks(self) -> Tensor: ...

    def row(self, row: int) -> Any: ...

    def lengths(self) -> Tensor: ...


class RowSequence(Sequence[Any]):
    """Rows by their number; `which` of all that are kept are meant (none: all, in order).

    `told` is worth a line of a training log: what was cut and what was passed over. `digest` tells what they
    were made from.
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
        """(rows,) how many tokens each will be: of lists the longest."""
        lengths: Tensor = self.kept.lengths()
        return lengths if self.which is None else lengths[self.which]

    def marks(self) -> Tensor:
        """(rows,) the hash of what each asks."""
        marks: Tensor = self.kept.marks
        return marks if self.which is None else marks[self.which]

    def part(self, which: Tensor, name: str) -> Self:
        """Some of the rows; nothing is copied."""
        return type(self)(self.kept, name, which if self.which is None else self.which[which], self.told, self.digest)


class RowLayout(Protocol):
    """How rows become files: `add` puts one into `parts`, which are written and cleared when they are `full`."""

    files: dict[str, torch.dtype]
    rows: int

    @property
    def parts(self) -> dict[str, Any]: ...

    @property
    def full(self) -> bool: ...

    def add(self, row: Any) -> None: ...

    def clear(self) -> None: ...

    def facts(self, sizes: ColumnSizes, tally: BadRecordPolicy) -> dict[str, Any]:
        """What the JSON says beside what the rows are made from: columns, and "told"."""
        ...

    def sizes(self, known: dict[str, Any]) -> ColumnSizes:
        """How large files are of which the JSON says this."""
        ...

    def built(self, known: dict[str, Any], files: dict[str, Tensor]) -> StoredRows | None:
        """The rows; None where the files do not fit together."""
        ...


@dataclass(frozen=True)
class StoreJob:
    """Rows to be made: how, laid out how, and the progress callback."""

    made: RowMaker
    layout: Callable[[], RowLayout]
    bad: OnBadRecord
    progress: Progress

    def gathering(self, layout: RowLayout, tally: BadRecordPolicy) -> Iterator[dict[str, Any]]:
        """The files' next parts, again and again until all rows are in them."""
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
    """The rows that `about` stands for, from the cache or made now and kept there; and what is told of them."""
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
        raise DataError(f"{name}: no records to learn from; name a source that has some")
    for line in told:
        notice(f"{name}: {line}")
    return kept, told


def write_rows(path: Path, about: dict[str, Any], job: StoreJob) -> None:
    """Writes the files side by side, then what they are."""
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
    """The kept files, without reading them; None where they are not there, or not as they should be."""
    known = content_cache.read_json_or_none(path.with_suffix(".json"))
    if not isinstance(known, dict) or {name: known.get(name) for name in about} != json.loads(json.dumps(about)):
        return None
    try:
        sizes, told = layout.sizes(known), tuple(map(str, known["told"]))
        found = {name: map_file(path.with_suffix(f".{name}"), sizes[name], kind) for name, kind in layout.files.items()}
    except STRANGE:  # no room to map them is another matter, and is heard
        return None
    files = {name: file for name, file in found.items() if file is not None}
    try:
        kept = layout.built(known, files) if len(files) == len(layout.files) else None
    except (*STRANGE, RuntimeError):  # sizes that are no table
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
