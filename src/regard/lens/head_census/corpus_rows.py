"""Corpus of a census: texts, ids, images or files as rows that are run in batches, always in the same order.

A decoder reads a file as one stream of tokens, cut into windows; every other model reads it a text at a time: a line,
or the column text of records.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import config
from regard.config.errors import DataError
from regard.data.prepare import prepare_text
from regard.data.records import BadRecordPolicy
from regard.data.sources import find_records, name_sources
from regard.data.token_shards import TokenShards
from regard.lens.activation_stream import Text, TextRow, text_rows, window_length
from regard.lens.attention_maps import unwrap_model
from regard.lens.prompt import Prompt, read_prompt

IMAGES = 16  # or sounds, in a batch
Corpus = Text | Path | TokenShards | Iterable[Text]


def open_corpus(model: Any, texts: Corpus | Sequence[Path]) -> Text | TokenShards | Iterable[Text]:
    """A corpus as it is; a Path, or a list of them, is read as files, folders or packaged texts."""
    paths = [texts] if isinstance(texts, Path) else texts
    if isinstance(paths, list | tuple) and paths and all(isinstance(each, Path) for each in paths):
        return read_files(model, [str(path) for path in paths])
    return texts  # type: ignore[return-value]


def corpus_rows(
    model: Any, texts: Text | TokenShards | Iterable[Text], context: int | None, batch_tokens: int
) -> Iterator[TextRow]:
    """The rows of a corpus; what is given as a batch is cut where it is more than a batch may have."""
    if isinstance(texts, TokenShards):
        yield from shard_rows(model, texts, context)
        return
    for row in text_rows(model, texts, context):
        x, given = row.prompt.first, row.prompt.given
        most = IMAGES if x.is_floating_point() else max(1, batch_tokens // x[0].numel())
        for start in range(0, len(x), most):
            some = slice(start, start + most)
            part = Prompt(x[some], (), {name: table[some] for name, table in given.items()})
            yield row if len(x) <= most else TextRow(part, row.text + start, row.start)


def name_corpus(texts: Any) -> str:
    """What a corpus is called in a folder; what proves that it is the same is its digest."""
    if isinstance(texts, TokenShards):
        return texts.name
    if isinstance(texts, Path) or isinstance(texts, list | tuple) and any(isinstance(each, Path) for each in texts):
        return name_sources([str(each) for each in ([texts] if isinstance(texts, Path) else texts)])
    return "texts given in Python"


def read_files(model: Any, names: Sequence[str]) -> TokenShards | Iterator[Text]:
    """Files, folders or packaged texts by name, as the model reads them."""
    model = unwrap_model(model)
    if getattr(model, "tokenizer", None) is None:
        raise DataError("this model has no tokenizer for text; give ids, or a model of regard.load")
    if window_length(model, None) is None:
        return read_records(model, names)
    data = config.Data(source=tuple(names), validation=0.0)
    return prepare_text(data, config.ByteTokenizer(), tokenizer=model.tokenizer).train


def read_records(model: Any, names: Sequence[str]) -> Iterator[Text]:
    """The texts of records, or the lines of a text; for an encoder-decoder each with its own translation."""
    found = False
    for table in find_records(names):
        for record in table.records(BadRecordPolicy()):
            if isinstance(text := record.get("text"), str) and text.strip():
                found = True
                yield text if model.c.encoder is None else read_prompt(model, None, source=text)
    if not found:
        raise DataError(f"{', '.join(names)}: no text in it; name a file of lines, or of records with a column text")


def shard_rows(model: Any, shards: TokenShards, context: int | None) -> Iterator[TextRow]:
    """Windows of stored tokens, one after the other."""
    model = unwrap_model(model)
    size, device = window_length(model, context), next(model.parameters()).device
    assert size is not None
    for start in range(0, len(shards), size):
        yield TextRow(Prompt(shards.ids(start, start + size)[None].to(device), ()), 0, start)


def digest_row(digest: str, row: TextRow) -> str:
    """The digest of a corpus after one more row: it tells whether what was read before is read again."""
    found = hashlib.sha256(digest.encode())
    for name, table in {"first": row.prompt.first, **row.prompt.given}.items():
        if isinstance(table, Tensor):
            hash_tensor(found, name, table)
    return found.hexdigest()


def hash_tensor(found: Any, name: str, x: Tensor) -> None:
    """Add a tensor to a hash, with its name, type and shape."""
    from regard.hub.weight_reader import tensor_buffer  # here, since it brings the formats of published models

    found.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
    plain = x.detach().cpu().contiguous()  # named, since a buffer does not keep its tensor alive
    found.update(tensor_buffer(plain))


def row_sequences(rows: Sequence[TextRow]) -> Tensor:
    """(B, 2) the text and the start of each sequence in a batch: a row of several sequences is several texts."""
    places = [(row.text + i, row.start) for row in rows for i in range(len(row.prompt.first))]
    return torch.tensor(places)
