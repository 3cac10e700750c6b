"""Data preparation: sources to a tokenizer and token shards, or to examples, split into training and validation."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from regard import config
from regard.config.errors import DataError
from regard.data.example_store import Example, Examples, store_examples
from regard.data.records import BadRecordPolicy, Record, RecordSource, TextColumn
from regard.data.sources import TextSource, check_settings_used, find_records, find_texts, name_sources
from regard.data.tensor_store import RowLength, TensorRows, store_tensors
from regard.data.token_shards import SHARD_FORMAT, Notice, Progress, TokenShards, no_progress, tokenize_sources
from regard.files import atomic, content_cache
from regard.text.split_points import split_at_borders
from regard.text.tokenizer import Tokenizer
from regard.text.trainers import train_tokenizer

Make = Callable[[Record], Example | list[Example]]
Kind = TypeVar("Kind", Examples, TensorRows)


def prepare_examples(
    data: config.Data, make: Make, about: Any, cache: str | Path | None = None,
    notice: Notice = warnings.warn, progress: Progress = no_progress,
) -> tuple[Examples, Examples | None]:  # fmt: skip
    """Examples that `make` builds from each record, for training and validation; `about` is the cache key of `make`.

    `notice` gets messages about truncated and skipped records, `progress` the number of rows so far.
    """
    return prepare_splits(
        data, make, about, content_cache.cache_dir(cache), partial(store_examples, notice=notice, progress=progress)
    )


def prepare_tensors(
    data: config.Data, make: Make, about: Any, length: RowLength, cache: str | Path | None = None,
    notice: Notice = warnings.warn, progress: Progress = no_progress,
) -> tuple[TensorRows, TensorRows | None]:  # fmt: skip
    """Examples of other modalities, as in `prepare_examples`: tensors of any shape, each worth a number of tokens."""
    keep = partial(store_tensors, notice=notice, progress=progress, length=length)
    return prepare_splits(data, make, about, content_cache.cache_dir(cache), keep)


def prepare_splits(
    data: config.Data, make: Make, about: Any, folder: Path, keep: Callable[..., Kind]
) -> tuple[Kind, Kind | None]:  # fmt: skip
    """The training and the validation rows."""
    sources: Sequence[RecordSource] = find_records(data.sources, data)
    own: Sequence[RecordSource] = find_records(data.validations, data)
    check_settings_used(data, [*sources, *own])

    def store_split(found: Sequence[RecordSource]) -> Kind:
        name = name_sources([table.name for table in found])
        key = {"sources": [table.digest for table in found], "make": about}
        return keep(lambda tally: make_examples(found, make, tally), key, folder, name, data.on_bad_record)

    whole = store_split(sources)
    if isinstance(data.validation, str | tuple):
        return whole, store_split(own)
    return split_rows(whole, data.validation) if data.validation else (whole, None)


def make_examples(tables: Sequence[RecordSource], make: Make, tally: BadRecordPolicy) -> Iterator[Example]:
    for record in (record for table in tables for record in table.records(tally)):
        try:
            some = make(record)
        except DataError as problem:
            tally.record_bad(problem)
        else:
            yield from some if isinstance(some, list) else [some]


def validation_rows(marks: Tensor, share: float) -> Tensor:
    """The validation rows, by the hash of their input."""
    return (marks & 0xFFFFFFFF).double() < share * 2.0**32


def split_rows(whole: Kind, share: float) -> tuple[Kind, Kind]:
    """Split rows into training and validation by a hash of their input: equal inputs are never in both.

    About `share` of the rows are held out, whatever the order of the file, and the same ones when the file grows.
    """
    back = validation_rows(whole.marks(), share)
    train, rest = back.logical_not().nonzero()[:, 0], back.nonzero()[:, 0]
    if not len(train) or not len(rest):
        unlike = len(whole.marks().unique())
        raise DataError(f"{whole.name}: {len(whole):,} rows are too few to keep {share:g} of them for validation "
                        f"({unlike:,} are different); name more, or set data.validation=0")  # fmt: skip
    return whole.part(train, whole.name), whole.part(rest, f"{share:g} of {whole.name}")


def tokenizer_from_records(
    data: config.Data, text: config.Tokenizer, columns: Iterable[str], cache: str | Path | None = None
) -> Tokenizer:  # fmt: skip
    """The configured tokenizer, trained on these columns of the records."""
    found = find_records(data.sources, data)
    return cached_tokenizer(
        text,
        [TextColumn(table, column, data.on_bad_record) for table in found for column in columns],
        content_cache.cache_dir(cache),
    )


@dataclass(frozen=True)
class PreparedText:
    """The text data of a run."""

    tokenizer: Tokenizer
    train: TokenShards
    validation: TokenShards | None


def prepare_text(
    data: config.Data, text: config.Tokenizer, cache: str | Path | None = None,
    tokenizer: Tokenizer | None = None, notice: Notice = warnings.warn, progress: Progress = no_progress,
) -> PreparedText:  # fmt: skip
    """Read the text, train a tokenizer on it unless one is given, and tokenize; results are cached.

    A validation part is taken from the end of the tokens, so the tokenizer was trained on it; on separate validation
    files it was not. `notice` gets messages, `progress` the number of tokens so far.
    """
    folder, sources = content_cache.cache_dir(cache), find_texts(data.sources, data)
    own = find_texts(data.validations, data)
    check_settings_used(data, [*sources, *own])
    tokenizer = (tokenizer or cached_tokenizer(text, sources, folder)).with_specials(text.specials)
    whole = tokenize_sources(sources, tokenizer, folder, notice, progress)
    if isinstance(data.validation, str | tuple):
        return PreparedText(tokenizer, whole, tokenize_sources(own, tokenizer, folder, notice, progress))
    if not data.validation:
        return PreparedText(tokenizer, whole, None)
    return PreparedText(tokenizer, *split_shards(whole, data.validation))


def split_shards(whole: TokenShards, share: float) -> tuple[TokenShards, TokenShards]:
    """Training tokens first, validation tokens last; 0.1 gives the customary split of tinyshakespeare."""
    border = int((1 - share) * len(whole))
    if min(border, len(whole) - border) < 2:
        raise DataError(f"{whole.name}: {len(whole):,} tokens are too few to keep {share:g} of them for validation; "
                        f"name more text, or set data.validation=0")  # fmt: skip
    return whole.part(0, border, whole.name), whole.part(border, None, f"the last {share:g} of {whole.name}")


def cached_tokenizer(setting: config.Tokenizer, sources: Sequence[TextSource | TextColumn], folder: Path) -> Tokenizer:
    """The configured tokenizer: from the cache, or trained now and stored there."""
    if isinstance(setting, config.TokenizerFile | config.ByteTokenizer):  # no training needed
        return train_tokenizer(setting, [])
    learnt = {
        name: value for name, value in config.to_dict(setting).items() if name != "specials"
    }  # the tokenizer trains on all text
    about = {"format": SHARD_FORMAT, "texts": [source.digest for source in sources], "setting": learnt,
             "tokenizers": version("tokenizers")}  # fmt: skip
    path = folder / f"{content_cache.content_key(about)}.tokenizer.json"
    with suppress(DataError):  # not cached, or damaged
        return Tokenizer.load(path, setting.specials)
    made = train_tokenizer(setting, iterate_text(sources))
    with suppress(OSError):  # writing the ids will fail too, and report it
        atomic.write_file(path, [made.text().encode()])
    return made


def iterate_text(sources: Sequence[TextSource | TextColumn]) -> Iterator[str]:
    """All text of the sources, in parts."""
    tally, empty = BadRecordPolicy.of(sources), True
    for document in (document for source in sources for document in source.documents(tally)):
        for part in split_at_borders(document.parts(), "between words"):
            empty = False
            yield part
    if empty:
        names = ", ".join(dict.fromkeys(source.name for source in sources))
        raise DataError(f"{names}: no text in it to train a tokenizer on; name a source that has some")
