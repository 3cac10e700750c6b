"""Token shards: token ids in a memory-mapped file, made once for each text and tokenizer.

    <cache>/<key>.ids      the ids, each 1, 2 or 4 bytes, little endian
    <cache>/<key>.json     format, dtype, count, and the sha256 of the texts and of the tokenizer

The JSON is written last and has the length of the ids: if the two do not match, both are written again. If the cache is
not writable, the ids stay in memory, with a notice.
"""

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import DataError
from regard.data.records import BadRecordPolicy, TextColumn
from regard.data.sources import TextSource, name_sources
from regard.files import atomic, content_cache
from regard.text.post_processor import without_post_processor
from regard.text.tokenizer import Tokenizer, UnknownCharacter

SHARD_FORMAT = 1
# Name of a dtype, array's code for it, torch's dtype. (torch supports uint32 poorly; ids below 2³¹ fit int32.)
TYPES = {"uint8": ("B", torch.uint8), "uint16": ("H", torch.uint16), "uint32": ("I", torch.int32)}

Notice = Callable[[str], object]
Progress = Callable[[int], object]  # called with the progress: tokens of a text, rows of records


def no_progress(done: int) -> None:
    pass


class TokenShards:
    """The ids of a text, in a file or in memory; `name` is for display, `digest` identifies them."""

    def __init__(self, data: Tensor, name: str = "the text", digest: str = "") -> None:
        self.data, self.name, self.digest = data, name, digest

    def __len__(self) -> int:
        return len(self.data)

    def ids(self, start: int = 0, stop: int | None = None) -> Tensor:
        """(N,) the ids from `start` to `stop`, read now."""
        return self.data[start:stop].long()

    def part(self, start: int, stop: int | None, name: str) -> "TokenShards":
        """A slice of the same ids, without copying."""
        return TokenShards(self.data[start:stop], name, self.digest and f"{self.digest}[{start}:{stop}]")


def tokenize_sources(
    sources: Sequence[TextSource | TextColumn],
    tokenizer: Tokenizer,
    folder: Path,
    notice: Notice,
    progress: Progress = no_progress,
) -> TokenShards:
    """The ids of the texts: from the cache, or tokenized now and stored there."""
    dtype = smallest_int_type(len(tokenizer))
    about = {"format": SHARD_FORMAT, "dtype": dtype, "texts": [source.digest for source in sources],
             "tokenizer": tokenizer_key(tokenizer)}  # fmt: skip
    path = folder / f"{content_cache.content_key(about)}.ids"
    data, tally = map_shards(path, about), BadRecordPolicy.of(sources)
    if data is None:
        try:
            write_shards(path, about, encode_documents(sources, tokenizer, tally, progress), tally)
            data = map_shards(path, about)
        except OSError as problem:
            notice(uncached_notice(folder, problem))
    if data is None:
        tally = BadRecordPolicy.of(sources)
        data = shards_in_memory(dtype, encode_documents(sources, tokenizer, tally, progress))
    if told := tally.summary or skipped_notice(path):
        notice(told)
    return TokenShards(data, name_sources([source.name for source in sources]), content_cache.content_key(about))


def tokenizer_key(tokenizer: Tokenizer) -> str:
    """The cache key of a tokenizer: a digest of its file, and whether it parses special tokens.

    The post-processor is left out: it adds tokens around a task's texts, and none to these ids.
    """
    text = without_post_processor(tokenizer)
    return content_cache.content_key([text, "parse"] if tokenizer.parses_specials else text)


def uncached_notice(folder: Path, problem: OSError) -> str:
    return (f"{folder}: {(problem.strerror or str(problem)).lower()}; the tokens stay in memory this time, "
            f"set REGARD_CACHE to a folder that can be written")  # fmt: skip


def skipped_notice(path: Path) -> str:
    """The notice about bad records when the ids were made."""
    known = content_cache.read_json_or_none(path.with_suffix(".json"))
    return str(known.get("passed over", "")) if isinstance(known, dict) else ""


def smallest_int_type(vocabulary: int) -> str:
    return "uint8" if vocabulary <= 1 << 8 else "uint16" if vocabulary <= 1 << 16 else "uint32"


def encode_documents(
    sources: Iterable[TextSource | TextColumn],
    tokenizer: Tokenizer,
    tally: BadRecordPolicy,
    progress: Progress = no_progress,
) -> "Iterator[array[int]]":
    """The ids of all documents, in parts; with the end token between documents and the start token before each, if the
    tokenizer has them."""
    code, count, last = TYPES[smallest_int_type(len(tokenizer))][0], 0, -1
    for number, document in enumerate(document for source in sources for document in source.documents(tally)):
        before, lines, first = 0, 1, True
        for part in tokenizer.cut(document.parts()):
            try:
                ids = array(code, tokenizer.encode(part))
            except UnknownCharacter as problem:
                where = f"character {before + problem.place:,}, line {lines + part.count(chr(10), 0, problem.place):,}"
                raise DataError(f"{document.name}: {part[problem.place]!r} ({where}) {problem.why}") from None
            except DataError as problem:
                raise DataError(f"{document.name}: {problem}") from None
            if first:
                yield array(code, separator_ids(tokenizer, number, last, ids))
            yield ids
            first, last = False, ids[-1] if ids else last
            count, before, lines = count + len(ids), before + len(part), lines + part.count("\n")
            progress(count)
        if first:
            yield array(code, separator_ids(tokenizer, number, last, []))


def separator_ids(tokenizer: Tokenizer, number: int, last: int, ids: Sequence[int]) -> list[int]:
    """Ids between the last id of a document and the ids of the next, of this number. Start and end tokens that a
    document already has, as rendered chats do, are not repeated."""
    end, start = (tokenizer.special_ids.get(role) for role in ("eos", "bos"))
    ended = [] if end is None or not number or last == end else [end]
    return ended if start is None or (ids and ids[0] == start) else [*ended, start]


def write_shards(path: Path, about: dict[str, Any], parts: "Iterable[array[int]]", tally: BadRecordPolicy) -> None:
    """Write the ids, then the JSON with their number."""
    path.with_suffix(".json").unlink(missing_ok=True)
    count = 0
    with atomic.open_atomic(path) as file:
        for part in parts:
            file.write(part)
            count += len(part)
    told = {"passed over": tally.summary} if tally.count else {}
    atomic.write_file(path.with_suffix(".json"), [json.dumps({**about, "count": count, **told}, indent=1).encode()])


def map_shards(path: Path, about: dict[str, Any]) -> Tensor | None:
    """Memory-map the cached ids; None if they are missing or of another number."""
    known, dtype = content_cache.read_json_or_none(path.with_suffix(".json")), TYPES[about["dtype"]][1]
    count = known.get("count") if isinstance(known, dict) else None
    if not isinstance(count, int) or {name: known.get(name) for name in about} != about:
        return None
    return map_file(path, count, dtype)


def map_file(path: Path, count: int, dtype: torch.dtype) -> Tensor | None:
    """Memory-map `count` numbers of a file; None if its size differs."""
    if not path.is_file() or path.stat().st_size != count * dtype.itemsize:
        return None
    return torch.from_file(str(path), shared=False, size=count, dtype=dtype) if count else torch.empty(0, dtype=dtype)


def shards_in_memory(name: str, parts: "Iterable[array[int]]") -> Tensor:
    code, dtype = TYPES[name]
    whole = array(code)
    for part in parts:
        whole.extend(part)
    return torch.frombuffer(whole, dtype=dtype) if whole else torch.empty(0, dtype=dtype)
