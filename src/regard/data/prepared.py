"""Preparing: the text of a recipe becomes a tokenizer, and token ids to train and to validate on."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from regard import config
from regard.config import DataError
from regard.data import store
from regard.data.columns import Column
from regard.data.records import Tally
from regard.data.shards import FORMAT, Notice, Progress, Shards, quiet, tokenized
from regard.data.sources import Source, find, heeded
from regard.text import Tokenizer, train
from regard.text.borders import cut


@dataclass(frozen=True)
class Prepared:
    """What a run reads."""

    tokenizer: Tokenizer
    train: Shards
    validation: Shards | None


def prepare(
    data: config.Data, text: config.Text, cache: str | Path | None = None,
    tokenizer: Tokenizer | None = None, notice: Notice = warnings.warn, progress: Progress = quiet,
) -> Prepared:  # fmt: skip
    """Reads the text, trains a tokenizer on it unless one is given, and tokenizes; a second time it is all there.

    A validation part is taken from the end of the tokens, so the tokenizer knows its words; files for validation it
    has not seen. `notice` is told what is worth a line, `progress` how many tokens there are so far.
    """
    folder, sources = store.place(cache), find(data.sources, data)
    own = find(data.validations, data)
    heeded(data, [*sources, *own])
    tokenizer = (tokenizer or trained(text, sources, folder)).with_specials(text.specials)
    whole = tokenized(sources, tokenizer, folder, notice, progress)
    if isinstance(data.validation, str | tuple):
        return Prepared(tokenizer, whole, tokenized(own, tokenizer, folder, notice, progress))
    if not data.validation:
        return Prepared(tokenizer, whole, None)
    return Prepared(tokenizer, *parted(whole, data.validation))


def parted(whole: Shards, share: float) -> tuple[Shards, Shards]:
    """The first tokens to train on and the last to validate on; with 0.1 the customary parts of tinyshakespeare."""
    border = int((1 - share) * len(whole))
    if min(border, len(whole) - border) < 2:
        raise DataError(f"{whole.name}: {len(whole):,} tokens are too few to keep {share:g} of them for validation; "
                        f"name more text, or set data.validation=0")  # fmt: skip
    return whole.part(0, border, whole.name), whole.part(border, None, f"the last {share:g} of {whole.name}")


def trained(setting: config.Text, sources: Sequence[Source | Column], folder: Path) -> Tokenizer:
    """The tokenizer that a setting asks for: from the cache, or trained now and kept there."""
    if isinstance(setting, config.Saved | config.Bytes):  # nothing to learn
        return train(setting, [])
    learnt = {name: value for name, value in config.tree(setting).items() if name != "specials"}  # learns from all text
    about = {"format": FORMAT, "texts": [source.digest for source in sources], "setting": learnt,
             "tokenizers": version("tokenizers")}  # fmt: skip
    path = folder / f"{store.key(about)}.tokenizer.json"
    with suppress(DataError):  # none there, or damaged
        return Tokenizer.load(path, setting.specials)
    made = train(setting, spoken(sources))
    with suppress(OSError):  # the ids will meet the same trouble, and say so
        store.put(path, [made.text().encode()])
    return made


def spoken(sources: Sequence[Source | Column]) -> Iterator[str]:
    """All that the sources say, in parts."""
    tally, empty = Tally.of(sources), True
    for document in (document for source in sources for document in source.documents(tally)):
        for part in cut(document.parts(), "between words"):
            empty = False
            yield part
    if empty:
        names = ", ".join(dict.fromkeys(source.name for source in sources))
        raise DataError(f"{names}: no text in it to learn words from; name a source that has some")
