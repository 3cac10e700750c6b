"""Files: tokenizer.json read and written, and the one place where faults inside `tokenizers` become errors of ours.

A tokenizer.json may come from anywhere, and the library believes what it reads: a crafted file can make it panic (which
is no Exception), fill the memory with padding, or drop tokens at random. Nothing of that may leave this file.
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

from regard.config import DataError

LARGEST = 256 << 20  # bytes; the largest that people publish have 40 MB
TRIAL = "Is it a tokenizer? 1, 22, 333: é, 日本, \U0001f642.\r\n\t  " + "a" * 40 + "!"
REMEDY = "name a tokenizer.json or a folder with one"


def read(path: Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """The tokenizer in a file or folder, and the roles that the files beside it give to its special tokens."""
    file = path / "tokenizer.json" if path.is_dir() else path
    source = contents(file)
    with silence(), calm(f"{file}: not a tokenizer.json that can be used"):
        inner = plain(tokenizers.Tokenizer.from_buffer(source))
        counted(inner.get_vocab())
        tried(inner)
    card: dict[str, Any] = {}
    side = "target_" if file.name.startswith("target_") else ""  # two vocabularies in one folder
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        card |= table(file.parent / f"{side}{name}")
    card.pop("auto_map", None)  # names code to run
    return inner, card


def contents(file: Path) -> bytes:
    try:
        if file.exists() and not file.is_file():
            raise DataError(f"{file}: not a regular file; {REMEDY}")
        if (size := file.stat().st_size) > LARGEST:
            raise DataError(f"{file}: {size:,} bytes are more than any tokenizer has; {REMEDY}")
        return file.read_bytes()
    except (OSError, ValueError) as problem:
        if isinstance(problem, DataError):
            raise
        reason = getattr(problem, "strerror", None) or str(problem)
        raise DataError(f"{file}: {reason.lower()}; {REMEDY}") from None


def table(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty without the file."""
    if not file.exists():
        return {}
    with calm(f"{file}: not a JSON object that can be read"):
        found = json.loads(contents(file))
        if not isinstance(found, dict):
            raise ValueError(f"a {type(found).__name__} stands there")
        return found


def write(folder: Path, text: str, card: dict[str, Any], side: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in ("tokenizer.json", text), ("tokenizer_config.json", json.dumps(card, indent=2)):
        (folder / f"{side}{name}").write_text(content + "\n", encoding="utf-8")


def plain(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Without what a file may add behind one's back: cutting, padding, dropout, special tokens read out of the text."""
    inner.no_truncation()
    inner.no_padding()
    inner.encode_special_tokens = True  # text is text
    if isinstance(inner.model, tokenizers.models.BPE):
        inner.model.dropout = None
    return inner


def counted(vocabulary: dict[str, int]) -> int:
    """One more than the largest id: the rows that a table of vectors needs. Few ids may be left out."""
    size = max(vocabulary.values(), default=-1) + 1
    if not vocabulary or size > 2 * len(vocabulary) + 1024:
        raise ValueError(f"{len(vocabulary):,} tokens with ids up to {size - 1:,}; expected ids from 0 on")
    return size


def tried(inner: tokenizers.Tokenizer) -> None:
    """Says a sentence and reads it back, so that what makes the library panic does so here."""
    with suppress(Exception):  # a vocabulary need not have these characters
        inner.decode(inner.encode_batch_fast([TRIAL], add_special_tokens=False)[0].ids)


@contextmanager
def calm(what: str | Path) -> Iterator[None]:
    """Any fault of the library as a DataError, panics included; Ctrl-C and exits pass."""
    try:
        yield
    except BaseException as problem:
        raise fault(what, problem) from None


def fault(what: str | Path, problem: BaseException) -> BaseException:
    """A fault of the library as a DataError; what is none (Ctrl-C, an exit, an error of ours) stays what it is."""
    theirs = isinstance(problem, Exception) or type(problem).__name__ == "PanicException"
    if isinstance(problem, DataError) or not theirs:
        return problem
    return DataError(f"{what}: {(str(problem) or type(problem).__name__).splitlines()[0]}")


@contextmanager
def silence() -> Iterator[None]:
    """Holds back what is written to the error stream: a panic writes its stack there before anybody can catch it.

    Shown after all, unless the block failed.
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
