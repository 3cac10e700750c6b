"""Datasets other than user files: those of the Hugging Face hub, and the packaged ones."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from regard.config.errors import DataError, did_you_mean
from regard.data.records import BadRecordPolicy, Record
from regard.files import content_cache
from regard.files.compression import require_package

PACKAGED_DIR = Path(__file__).parent.parent / "texts"
HUB_PREFIX = "hf:"
# Packaged record sets: column names of files without a header, and their parts.
PACKAGED_SETS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "tatoeba-en-fr": ("tatoeba-en-fr.{}.tsv.xz", ("en", "fr"), ("train", "validation", "test")),
    "movie-reviews": ("movie-reviews.{}.tsv.xz", (), ("train", "validation", "test")),
    "digits": ("digits.{}.jsonl.xz", (), ("train", "test")),
    "cora": ("cora.npz", (), ("train",)),
}


def find_packaged_set(name: str) -> tuple[Path, tuple[str, ...]] | None:
    """The file and columns of a packaged set, such as "tatoeba-en-fr:test"; the training part by default."""
    known, _, part = name.partition(":")
    if known not in PACKAGED_SETS:
        return None
    file, columns, parts = PACKAGED_SETS[known]
    if (part or "train") not in parts:
        raise DataError(f"{name}: no part {part!r}{did_you_mean(part, parts)} there are {', '.join(parts)}")
    return PACKAGED_DIR / file.format(part or "train"), columns


@dataclass(frozen=True)
class HubDataset:
    """A dataset of the Hugging Face hub: "hf:owner/name", with "/config" or ":split" if it has several."""

    name: str

    @property
    def settings_used(self) -> dict[str, Any]:
        return {}

    @cached_property
    def rows(self) -> Any:
        """The cached dataset, or download it; no code of the dataset runs."""
        library = require_package("datasets", f"{self.name}: a dataset of the hub", "or name a file")
        path, _, split = self.name.removeprefix(HUB_PREFIX).partition(":")
        owner, _, rest = path.partition("/")
        known, _, inner = rest.partition("/")
        try:
            # explicit: before version 4 an environment variable could allow remote code
            return library.load_dataset(f"{owner}/{known}", inner or None, split=split or "train",
                                        trust_remote_code=False)  # fmt: skip
        except Exception as problem:  # many types: no network, unknown name or split, a script
            reason = next((line.strip() for line in str(problem).splitlines() if line.strip()), type(problem).__name__)
            raise DataError(f"{self.name}: cannot be loaded ({reason.rstrip('.')}); check its name and the network, or "
                            "name a file") from None  # fmt: skip

    @cached_property
    def digest(self) -> str:
        found = hashlib.sha256()
        for record in self.records(BadRecordPolicy()):
            found.update(json.dumps(record, sort_keys=True, default=str).encode())
        return content_cache.content_key(["hub", found.hexdigest()])

    def records(self, tally: BadRecordPolicy) -> Iterator[Record]:
        for number, row in enumerate(self.rows, 1):
            yield Record(row, f"{self.name}:{number}")
