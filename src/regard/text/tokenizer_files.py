"""Tokenizer files: tokenizer.json and its predecessors, read and written; errors in `tokenizers` become our errors.

A tokenizer.json is untrusted, and the library does not check it: a crafted file can make it panic (which is not an
Exception), fill the memory with padding, or drop tokens at random. This module prevents all of these.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tokenizers

from regard.config.errors import ConfigError, DataError
from regard.files.paths import check_inside
from regard.files.size_limits import LIMIT_VARIABLE, max_bytes
from regard.text.convert_slow import SLOW_FILES, convert_slow_tokenizer, slow_files, slow_kind
from regard.text.tokenizer_limits import check_built_tokenizer, check_tokenizer_size

PARSED = 8  # bytes of memory for a byte of a tokenizer file; the largest published ones have 40 MB
PROBE_TEXT = "Is it a tokenizer? 1, 22, 333: é, 日本, \U0001f642.\r\n\t  " + "a" * 40 + "!"
REMEDY = "name a tokenizer.json or a folder with one"
SLOW_TOKENIZER_FILES = {name for names in SLOW_FILES.values() for name in names}


def read_tokenizer(path: Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """The tokenizer in a file or folder, and the roles of its special tokens from the files beside it."""
    file = path / "tokenizer.json" if path.is_dir() else path
    side = "target_" if file.name.startswith("target_") else ""  # two vocabularies in one folder
    card = read_tokenizer_config(file.parent, side)
    kind = (
        slow_tokenizer_kind(file.parent)
        if file.name in SLOW_TOKENIZER_FILES or (path.is_dir() and not file.exists())
        else None
    )
    if kind is not None:
        with (
            mute_stderr(),
            tokenizer_errors(f"{file.parent}: {', '.join(slow_files(kind))} make no tokenizer that can be used"),
        ):
            inner, card = convert_slow_tokenizer(kind, lambda name: read_bytes(file.parent / name), card, file.stem)
            return check_tokenizer(inner), card
    source = read_bytes(file)
    with mute_stderr(), tokenizer_errors(f"{file}: not a tokenizer.json that can be used"):
        check_tokenizer_size(source)
        return check_tokenizer(tokenizers.Tokenizer.from_buffer(source)), card


def read_tokenizer_config(folder: Path, side: str = "") -> dict[str, Any]:
    """The config in the files beside a tokenizer."""
    card: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        card |= table_beside(folder, f"{side}{name}")
    card.pop("auto_map", None)  # names code to run
    return card


def check_tokenizer(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The tokenizer, after a trial."""
    check_built_tokenizer(inner)
    inner = strip_side_effects(inner)
    embedding_rows(inner.get_vocab())
    probe_tokenizer(inner)
    return inner


def slow_tokenizer_kind(folder: Path) -> str | None:
    """The kind of tokenizer in older files than tokenizer.json, if all of them are present."""
    kind = slow_kind(read_tokenizer_config(folder), table_beside(folder, "config.json"))
    return kind if kind is not None and all((folder / name).is_file() for name in slow_files(kind)) else None


def read_bytes(file: Path) -> bytes:
    try:
        if file.exists() and not file.is_file():
            raise DataError(f"{file}: not a regular file; {REMEDY}")
        if PARSED * (size := file.stat().st_size) > max_bytes():
            raise DataError(f"{file}: {size:,} bytes are more than any tokenizer has; {REMEDY}, or set "
                            f"{LIMIT_VARIABLE} in "
                            "the environment higher")  # fmt: skip
        return file.read_bytes()
    except (OSError, ValueError) as problem:
        if isinstance(problem, DataError | ConfigError):
            raise
        reason = getattr(problem, "strerror", None) or str(problem)
        raise DataError(f"{file}: {reason.lower()}; {REMEDY}") from None


def read_json_table(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty without the file."""
    if not file.exists():
        return {}
    with tokenizer_errors(f"{file}: not a JSON object that can be read"):
        found = json.loads(read_bytes(file))
        if not isinstance(found, dict):
            raise ValueError(f"a {type(found).__name__} is there")
        return found


def table_beside(folder: Path, name: str) -> dict[str, Any]:
    """The JSON object in a file of a folder; a link must not lead out of it."""
    if not (folder / name).exists():
        return {}
    check_inside(folder / name, folder)
    return read_json_table(folder / name)


def write_tokenizer(folder: Path, text: str, card: dict[str, Any], side: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in ("tokenizer.json", text), ("tokenizer_config.json", json.dumps(card, indent=2)):
        (folder / f"{side}{name}").write_text(content + "\n", encoding="utf-8")


def strip_side_effects(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Remove settings that change results silently: truncation, padding, dropout, parsed special tokens."""
    inner.no_truncation()
    inner.no_padding()
    inner.encode_special_tokens = True  # special tokens in a text are text
    if isinstance(inner.model, tokenizers.models.BPE):
        inner.model.dropout = None
    return inner


def embedding_rows(vocabulary: dict[str, int]) -> int:
    """The largest id plus one: the rows of an embedding table. Few ids may be unused."""
    size = max(vocabulary.values(), default=-1) + 1
    if not vocabulary or size > 2 * len(vocabulary) + 1024:
        raise ValueError(f"{len(vocabulary):,} tokens with ids up to {size - 1:,}; expected ids from 0 on")
    return size


def probe_tokenizer(inner: tokenizers.Tokenizer) -> None:
    """Encode and decode a sentence, with and without special tokens, so that a panic of the library happens here."""
    trials = (
        (PROBE_TEXT, None, False),
        (" ", None, False),
        (PROBE_TEXT, None, True),
        (PROBE_TEXT, "a", True),
        ("", None, True),
    )
    for text, other, framed in trials:
        with suppress(Exception):  # a vocabulary need not have these characters
            if ids := inner.encode(text, other, add_special_tokens=framed).ids:
                inner.decode(ids, skip_special_tokens=not framed)


@contextmanager
def tokenizer_errors(what: str | Path) -> Iterator[None]:
    """Any error of the library as a DataError, panics included; Ctrl-C and exits pass."""
    try:
        yield
    except BaseException as problem:
        raise as_data_error(what, problem) from None


def as_data_error(what: str | Path, problem: BaseException) -> BaseException:
    """An error of the library as a DataError; Ctrl-C, exits and our own errors are unchanged."""
    theirs = isinstance(problem, Exception) or type(problem).__name__ == "PanicException"
    if isinstance(problem, DataError) or not theirs:
        return problem
    said = (str(problem) or type(problem).__name__).splitlines()[0]
    return DataError(f"{what}: {said if len(said) < 300 else said[:300] + '…'}")


@contextmanager
def mute_stderr() -> Iterator[None]:
    """Hold back stderr: a panic writes its stack there before it can be caught.

    The output is shown afterwards, unless the block failed.
    """
    try:
        sys.stderr.flush()
        screen = os.dup(2)
    except (OSError, AttributeError, ValueError):  # no error stream
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except DataError:
            held.truncate(0)
            raise
        finally:
            os.dup2(screen, 2)
            os.close(screen)
            held.seek(0)
            if words := held.read():
                os.write(2, words)
