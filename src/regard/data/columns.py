"""Columns of records, read as text: each record is a document of its own."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from regard.config import DataError
from regard.data import store
from regard.data.records import Record, Table, Tally


@dataclass(frozen=True)
class Document:
    """One text, whole, and where it stood."""

    path: str
    text: str

    @property
    def name(self) -> str:
        return self.path

    def parts(self) -> Iterator[str]:
        yield self.text


@dataclass(frozen=True)
class Column:
    """The texts in one column; those that are empty are left out."""

    table: Table
    column: str
    bad: Literal["stop", "skip"] = "stop"

    @property
    def name(self) -> str:
        return self.table.name

    @cached_property
    def digest(self) -> str:
        return store.key([self.table.digest, self.column, self.bad])

    def documents(self, tally: Tally) -> Iterator[Document]:
        for record in self.table.records(tally):
            try:
                document = Document(record.where, text_in(record, self.column))
            except DataError as problem:
                tally.bad(problem)
            else:
                if document.text:
                    yield document


def text_in(record: Record, column: str) -> str:
    """A text, or words in a list."""
    found = record[column]
    if isinstance(found, list) and all(isinstance(word, str) for word in found):
        return " ".join(found)
    if not isinstance(found, str):
        raise DataError(f"{record.where}: {column!r} is {found!r:.40} and no text; name one that is by "
                        "data.column or in task, or pass it over by data.bad=skip")  # fmt: skip
    return found
