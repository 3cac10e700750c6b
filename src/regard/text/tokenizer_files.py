"""Files: tokenizer.json and those before it, and the one place where faults inside `tokenizers` become errors of ours.

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

from regard.config import ConfigError, DataError
from regard.config.limits import VARIABLE, max_bytes
from regard.config.paths import check_inside
from regard.text.expansion import check_file
from regard.text.pieces import FILES, files_of, kind_of, made

PARSED = 8  # bytes of memory that a byte of a tokenizer takes; the largest that people publish have 40 MB
TRIAL = "Is it a tokenizer? 1, 22, 333: é, 日本, \U0001f642.\r\n\t  " + "a" * 40 + "!"
REMEDY = "name a tokenizer.json or a folder with one"
EARLIER = {name for names in FILES.values() for name in names}


def read(path: Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """The tokenizer in a file or folder, and the roles that the files beside it give to its special tokens."""
    file = path / "tokenizer.json" if path.is_dir() else path
    side = "target_" if file.name.startswith("target_") else ""  # two vocabularies in one folder
    card = card_in(file.parent, side)
    kind = kind_in(file.parent) if file.name in EARLIER or (path.is_dir() and not file.exists()) else None
    if kind is not None:
        with silence(), calm(f"{file.parent}: {', '.join(files_of(kind))} make no tokenizer that can be used"):
            inner, card = made(kind, lambda name: contents(file.parent / name), card, file.stem)
            return usable(inner), card
    source = contents(file)
    with silence(), calm(f"{file}: not a tokenizer.json that can be used"):
        check_file(source)
        return usable(tokenizers.Tokenizer.from_buffer(source)), card


def card_in(folder: Path, side: str = "") -> dict[str, Any]:
    """What the files beside a tokenizer say of it."""
    card: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        card |= table_beside(folder, f"{side}{name}")
    card.pop("auto_map", None)  # names code to run
    return card


def usable(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The tokenizer, after a first try."""
    inner = plain(inner)
    counted(inner.get_vocab())
    tried(inner)
    return inner


def kind_in(folder: Path) -> str | None:
    """Which tokenizer the files make that came before tokenizer.json, where all of them are there."""
    kind = kind_of(card_in(folder), table_beside(folder, "config.json"))
    return kind if kind is not None and all((folder / name).is_file() for name in files_of(kind)) else None


def contents(file: Path) -> bytes:
    try:
        if file.exists() and not file.is_file():
            raise DataError(f"{file}: not a regular file; {REMEDY}")
        if PARSED * (size := file.stat().st_size) > max_bytes():
            raise DataError(f"{file}: {size:,} bytes are more than any tokenizer has; {REMEDY}, or set {VARIABLE} in "
                            "the environment higher")  # fmt: skip
        return file.read_bytes()
    except (OSError, ValueError) as problem:
        if isinstance(problem, DataError | ConfigError):
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


def table_beside(folder: Path, name: str) -> dict[str, Any]:
    """The JSON object in a file of a folder, which may be no link that leads out of it."""
    if not (folder / name).exists():
        return {}
    check_inside(folder / name, folder)
    return table(folder / name)


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
    """Says a sentence and reads it back, alone and framed, so that what makes the library panic does so here."""
    trials = ((TRIAL, None, False), (" ", None, False), (TRIAL, None, True), (TRIAL, "a", True), ("", None, True))
    for text, other, framed in trials:
        with suppress(Exception):  # a vocabulary need not have these characters
            if ids := inner.encode(text, other, add_special_tokens=framed).ids:
                inner.decode(ids, skip_special_tokens=not framed)


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
    said = (str(problem) or type(problem).__name__).splitlines()[0]
    return DataError(f"{what}: {said if len(said) < 300 else said[:300] + '…'}")


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
