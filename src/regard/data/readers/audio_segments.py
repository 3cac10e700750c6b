"""Audio segments: one long recording and a table of its segments, "train.flac + train.tsv.gz".

    digit  speaker  start  length        {"digit": "0", "speaker": "george", "sound": "train.flac#5145+5148"}
    0      george   5145   5148

Columns `start` and `length` are in samples of the recording; the others are copied to the record.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from regard.config.errors import DataError
from regard.config.recipe import Data
from regard.data.readers.audio import open_audio
from regard.data.readers.file_folder import AUDIO_SUFFIXES
from regard.data.readers.text_formats import FORMATS, RecordFile
from regard.data.records import BadRecordPolicy, Record
from regard.data.sources import JOINED_SOURCES, TextSource
from regard.files import content_cache
from regard.files.compression import file_format

AUDIO_COLUMN = "sound"


@dataclass(frozen=True)
class AudioSegments:
    """The records of a table, each with its segment of the recording."""

    sound: TextSource
    table: RecordFile

    @property
    def name(self) -> str:
        return f"{self.sound.name} + {self.table.name}"

    @property
    def settings_used(self) -> dict[str, Any]:
        return self.table.settings_used

    @cached_property
    def digest(self) -> str:
        return content_cache.content_key(["cuts", self.sound.digest, self.table.digest])

    def records(self, tally: BadRecordPolicy) -> Iterator[Record]:
        with open_audio(self.sound.path, self.sound.name) as file:
            count = file.count
        for record in self.table.records(tally):
            try:
                yield self.cut(record, count)
            except DataError as problem:
                tally.record_bad(problem)

    def cut(self, record: Record, count: int) -> Record:
        start, length = sample_count(record, "start"), sample_count(record, "length")
        if start + length > count:
            raise DataError(f"{record.where}: samples {start:,} to {start + length:,}, and {self.sound.name} has "
                            f"{count:,}; correct start and length")  # fmt: skip
        rest = {name: value for name, value in record.items() if name not in ("start", "length")}
        return Record({AUDIO_COLUMN: f"{self.sound.path}#{start}+{length}", **rest}, record.where)


def sample_count(record: Record, name: str) -> int:
    """A number of samples; 0 is left to the audio reader to refuse."""
    said = str(record[name]).strip()
    if not said.isdecimal():
        raise DataError(f"{record.where}: column {name!r} holds {said!r:.40}; expected a whole number of samples")
    return int(said)


def open_segments(sources: Sequence[TextSource]) -> AudioSegments:
    """Open a recording and its table, given in this order."""
    names = " + ".join(source.name for source in sources)
    if len(sources) != 2 or file_format(sources[1].name) not in FORMATS:
        raise DataError(f"{names}: expected a sound and the table of its cuts, such as a.flac + a.tsv with columns "
                        "start and length")  # fmt: skip
    return AudioSegments(sources[0], RecordFile(sources[1], Data()))


JOINED_SOURCES.update(dict.fromkeys(AUDIO_SUFFIXES, open_segments))
