"""From records to examples: what an objective asks, to train and to validate on."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from regard import config
from regard.config import DataError
from regard.data import store
from regard.data.arrays import Arrays, Length, kept_arrays
from regard.data.columns import Column
from regard.data.examples import Example, Examples, kept
from regard.data.prepared import trained
from regard.data.records import Record, Table, Tally
from regard.data.shards import Notice, Progress, quiet
from regard.data.sources import few, heeded, tables
from regard.text import Tokenizer

Make = Callable[[Record], Example | list[Example]]
Kind = TypeVar("Kind", Examples, Arrays)


def ask(
    data: config.Data, make: Make, about: Any, cache: str | Path | None = None,
    notice: Notice = warnings.warn, progress: Progress = quiet,
) -> tuple[Examples, Examples | None]:  # fmt: skip
    """What `make` makes of each record, to train and to validate on; `about` tells this make from any other.

    `notice` hears what was cut and what was passed over, `progress` how many rows there are so far.
    """
    return both(data, make, about, store.place(cache), partial(kept, notice=notice, progress=progress))


def sense(
    data: config.Data, make: Make, about: Any, length: Length, cache: str | Path | None = None,
    notice: Notice = warnings.warn, progress: Progress = quiet,
) -> tuple[Arrays, Arrays | None]:  # fmt: skip
    """The same for what is no text: tensors of any shape, which are so many tokens each."""
    keep = partial(kept_arrays, notice=notice, progress=progress, length=length)
    return both(data, make, about, store.place(cache), keep)


def both(
    data: config.Data, make: Make, about: Any, folder: Path, keep: Callable[..., Kind]
) -> tuple[Kind, Kind | None]:  # fmt: skip
    """What is to train on, and to validate on."""
    sources: Sequence[Table] = tables(data.sources, data)
    own: Sequence[Table] = tables(data.validations, data)
    heeded(data, [*sources, *own])

    def those(found: Sequence[Table]) -> Kind:
        name = few([table.name for table in found])
        key = {"sources": [table.digest for table in found], "make": about}
        return keep(lambda tally: made(found, make, tally), key, folder, name, data.bad)

    whole = those(sources)
    if isinstance(data.validation, str | tuple):
        return whole, those(own)
    return parted(whole, data.validation) if data.validation else (whole, None)


def made(tables: Sequence[Table], make: Make, tally: Tally) -> Iterator[Example]:
    for record in (record for table in tables for record in table.records(tally)):
        try:
            some = make(record)
        except DataError as problem:
            tally.bad(problem)
        else:
            yield from some if isinstance(some, list) else [some]


def kept_back(marks: Tensor, share: float) -> Tensor:
    """Which rows are to validate on, by the hash of what they ask."""
    return (marks & 0xFFFFFFFF).double() < share * 2.0**32


def parted(whole: Kind, share: float) -> tuple[Kind, Kind]:
    """Rows to train and to validate on, by a hash of what they ask: the same question is never in both.

    So about `share` of the rows are kept back, whatever the order of the file, and the same ones when it grows.
    """
    back = kept_back(whole.marks(), share)
    train, rest = back.logical_not().nonzero()[:, 0], back.nonzero()[:, 0]
    if not len(train) or not len(rest):
        unlike = len(whole.marks().unique())
        raise DataError(f"{whole.name}: {len(whole):,} rows are too few to keep {share:g} of them for validation "
                        f"({unlike:,} are different); name more, or set data.validation=0")  # fmt: skip
    return whole.part(train, whole.name), whole.part(rest, f"{share:g} of {whole.name}")


def learned(
    data: config.Data, text: config.Text, columns: Iterable[str], cache: str | Path | None = None
) -> Tokenizer:  # fmt: skip
    """The tokenizer that a setting asks for, trained on these columns of the records."""
    found = tables(data.sources, data)
    return trained(text, [Column(table, column, data.bad) for table in found for column in columns], store.place(cache))
