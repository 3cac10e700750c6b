"""Cuts: one long sound and a table of what is where in it, "train.flac + train.tsv.gz".

    digit  speaker  start  length        {"digit": "0", "speaker": "george", "sound": "train.flac#5145+5148"}
    0      george   5145   5148

Columns `start` and `length` are in samples of the sound; the others are a record's own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from regard.config import Data, DataError
from regard.data import store
from regard.data.folders import SOUNDS
from regard.data.formats import FORMATS, Filed
from regard.data.packing import format_of
from regard.data.records import Record, Tally
from regard.data.sounds import opened
from regard.data.sources import JOINED, Source

COLUMN = "sound"


@dataclass(frozen=True)
class Cuts:
    """The records of a table, each with its stretch of the sound."""

    sound: Source
    table: Filed

    @property
    def name(self) -> str:
        return f"{self.sound.name} + {self.table.name}"

    @property
    def heeds(self) -> dict[str, Any]:
        return self.table.heeds

    @cached_property
    def digest(self) -> str:
        return store.key(["cuts", self.sound.digest, self.table.digest])

    def records(self, tally: Tally) -> Iterator[Record]:
        with opened(self.sound.path, self.sound.name) as file:
            count = file.count
        for record in self.table.records(tally):
            try:
                yield self.cut(record, count)
            except DataError as problem:
                tally.bad(problem)

    def cut(self, record: Record, count: int) -> Record:
        start, length = whole(record, "start"), whole(record, "length")
        if start + length > count:
            raise DataError(f"{record.where}: samples {start:,} to {start + length:,}, and {self.sound.name} has "
                            f"{count:,}; mend start and length")  # fmt: skip
        rest = {name: value for name, value in record.items() if name not in ("start", "length")}
        return Record({COLUMN: f"{self.sound.path}#{start}+{length}", **rest}, record.where)


def whole(record: Record, name: str) -> int:
    """A count of samples; none is no sound, which whoever reads it says."""
    said = str(record[name]).strip()
    if not said.isdecimal():
        raise DataError(f"{record.where}: column {name!r} holds {said!r:.40}; expected a whole number of samples")
    return int(said)


def cuts(sources: Sequence[Source]) -> Cuts:
    """A sound and its table, in this order."""
    names = " + ".join(source.name for source in sources)
    if len(sources) != 2 or format_of(sources[1].name) not in FORMATS:
        raise DataError(f"{names}: expected a sound and the table of its cuts, such as a.flac + a.tsv with columns "
                        "start and length")  # fmt: skip
    return Cuts(sources[0], Filed(sources[1], Data()))


JOINED.update(dict.fromkeys(SOUNDS, cuts))
