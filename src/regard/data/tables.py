"""Tables that are no text files: Parquet, datasets of the Hugging Face hub, and those that come with the package."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from regard.config import DataError
from regard.config.names import did_you_mean
from regard.data import store
from regard.data.packing import needed, readable
from regard.data.records import Record, Tally

HERE = Path(__file__).parent / "texts"
HUB = "hf:"
AT_ONCE = 1024  # rows of a Parquet file in memory
# What comes with the package as records: the columns of files that do not name theirs, and the parts there are.
SETS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "tatoeba-en-fr": ("tatoeba-en-fr.{}.tsv.xz", ("en", "fr"), ("train", "validation", "test")),
    "movie-reviews": ("movie-reviews.{}.tsv.xz", (), ("train", "validation", "test")),
    "digits": ("digits.{}.jsonl.xz", (), ("train", "test")),
    "cora": ("cora.npz", (), ("train",)),
}


def packaged(name: str) -> tuple[Path, tuple[str, ...]] | None:
    """The file and columns of a packaged set, such as "tatoeba-en-fr:test"; without a part, what is to train on."""
    known, _, part = name.partition(":")
    if known not in SETS:
        return None
    file, columns, parts = SETS[known]
    if (part or "train") not in parts:
        raise DataError(f"{name}: no part {part!r}{did_you_mean(part, parts)} there are {', '.join(parts)}")
    return HERE / file.format(part or "train"), columns


@dataclass(frozen=True)
class Parquet:
    """The rows of a Parquet file, a batch of them in memory at a time."""

    name: str
    path: Path

    @property
    def heeds(self) -> dict[str, Any]:
        return {}

    @cached_property
    def digest(self) -> str:
        with readable(self.name), self.path.open("rb") as file:
            return store.key(["parquet", hashlib.file_digest(file, "sha256").hexdigest()])

    def records(self, tally: Tally) -> Iterator[Record]:
        arrow = needed("pyarrow.parquet", f"{self.name}: a Parquet file", "or save it as .jsonl")
        try:
            with arrow.ParquetFile(self.path) as file:
                rows = (row for batch in file.iter_batches(AT_ONCE) for row in batch.to_pylist())
                for number, row in enumerate(rows, 1):
                    yield Record(row, f"{self.name}:{number}")
        except (OSError, ValueError) as problem:  # what pyarrow raises is one of the two
            if isinstance(problem, DataError):
                raise
            reason = str(problem).partition("\n")[0].rstrip(".")
            raise DataError(f"{self.name}: not a whole Parquet file ({reason}); write it again") from None


@dataclass(frozen=True)
class Hub:
    """A dataset of the Hugging Face hub: "hf:owner/name", with "/config" or ":split" if it has several."""

    name: str

    @property
    def heeds(self) -> dict[str, Any]:
        return {}

    @cached_property
    def rows(self) -> Any:
        """What `datasets` has kept of it, or fetches now; no code of the dataset runs."""
        library = needed("datasets", f"{self.name}: a dataset of the hub", "or name a file")
        path, _, split = self.name.removeprefix(HUB).partition(":")
        owner, _, rest = path.partition("/")
        known, _, inner = rest.partition("/")
        try:
            return library.load_dataset(f"{owner}/{known}", inner or None, split=split or "train")
        except Exception as problem:  # of many kinds: no network, no such name, no such split, a script
            reason = next((line.strip() for line in str(problem).splitlines() if line.strip()), type(problem).__name__)
            raise DataError(f"{self.name}: cannot be had ({reason.rstrip('.')}); check its name and the network, or "
                            "name a file") from None  # fmt: skip

    @cached_property
    def digest(self) -> str:
        found = hashlib.sha256()
        for record in self.records(Tally()):
            found.update(json.dumps(record, sort_keys=True, default=str).encode())
        return store.key(["hub", found.hexdigest()])

    def records(self, tally: Tally) -> Iterator[Record]:
        for number, row in enumerate(self.rows, 1):
            yield Record(row, f"{self.name}:{number}")
