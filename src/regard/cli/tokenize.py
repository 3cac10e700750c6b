"""regard tokenize: learn a vocabulary, turn text into ids, ids into text."""

from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.output import Json, Specials, as_json, as_rows, exactly, in_options, in_specials, spoken, text_in

Source = Annotated[str, typer.Argument(metavar="TOKENIZER", help="A tokenizer.json, or a folder with one.")]
LEARNT: Any = config.Characters | config.Bytes | config.Words | config.Pieces


def train(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="char, byte, word, bpe, wordpiece or unigram.")],
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Texts, folders, or - for standard input.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where tokenizer.json goes.")],
    vocab: Annotated[int | None, typer.Option(help="How many tokens to learn (word, bpe, wordpiece, unigram).")] = None,
    lower: Annotated[bool, typer.Option("--lower", help="Read capitals as small letters (the same kinds).")] = False,
    json: Json = False,
) -> None:
    """Learn a vocabulary from texts and write it as tokenizer.json."""
    given = {"kind": kind} | ({"vocab": vocab} if vocab is not None else {}) | ({"lower": True} if lower else {})
    setting = in_options(LEARNT, given, words={"kind": "KIND"})
    from regard import data, text

    learnt = text.train(setting, (document.text for document in data.read_texts(tuple(files))))
    out.mkdir(parents=True, exist_ok=True)
    learnt.save(out)
    if json:
        return as_json({"out": out, "kind": kind, "vocab": len(learnt), "roles": learnt.roles})
    as_rows([("tokenizer", str(out / "tokenizer.json")), ("vocabulary", f"{len(learnt):,}")])


def encode(
    tokenizer: Source,
    words: Annotated[str, typer.Argument(metavar="TEXT", help="The text; - or nothing reads standard input.")] = "-",
    specials: Specials = "parse",
    json: Json = False,
) -> None:
    """Turn a text into ids."""
    from regard.text import Tokenizer

    known = Tokenizer.load(Path(tokenizer), in_specials(specials))
    ids = known.encode(text_in("-") if words == "-" else spoken(words, "TEXT"))
    if json:
        return as_json({"ids": ids, "pieces": [known.piece(id) for id in ids]})
    print(*ids)


def decode(
    tokenizer: Source,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="The ids; - reads them from standard input.")],
    json: Json = False,
) -> None:
    """Turn ids into the text they came from."""
    given = text_in("-").split() if ids == ["-"] else [word for given in ids for word in given.split()]
    numbers = [number(word) for word in given]
    from regard.text import Tokenizer

    known = Tokenizer.load(Path(tokenizer))
    for id in numbers:
        if id >= len(known):
            raise config.DataError(f"ID {id}: {tokenizer} has only 0 to {len(known) - 1}; use the id's own")
    if json:
        return as_json({"text": known.decode(numbers)})
    exactly(known.decode(numbers))


def number(word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) < 12):
        raise config.ConfigError(f"ID {word!r}: expected a whole number from 0 up, such as tokenize encode prints")
    return int(word)
