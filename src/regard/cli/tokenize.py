"""regard tokenize: train a tokenizer, encode text to ids, decode ids to text."""

from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.output import (
    JsonOption,
    Specials,
    check_specials_option,
    check_surrogates,
    config_from_options,
    print_exact,
    print_json,
    print_rows,
    read_text_argument,
)

Source = Annotated[str, typer.Argument(metavar="TOKENIZER", help="A tokenizer.json, or a folder with one.")]
LEARNT: Any = config.CharTokenizer | config.ByteTokenizer | config.WordTokenizer | config.SubwordTokenizer


def train(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="char, byte, word, bpe, wordpiece or unigram.")],
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Texts, folders, or - for standard input.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where tokenizer.json goes.")],
    vocab: Annotated[
        int | None, typer.Option("--vocab-size", help="How many tokens to learn (word, bpe, wordpiece, unigram).")
    ] = None,
    lower: Annotated[
        bool, typer.Option("--lowercase", help="Read capitals as small letters (the same kinds).")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Learn a vocabulary from texts and write it as tokenizer.json."""
    given = {"kind": kind} | ({"vocab": vocab} if vocab is not None else {}) | ({"lowercase": True} if lower else {})
    setting = config_from_options(LEARNT, given, words={"kind": "KIND", "vocab": "--vocab-size"})
    from regard import data, text

    learnt = text.train_tokenizer(setting, (document.text for document in data.read_texts(tuple(files))))
    out.mkdir(parents=True, exist_ok=True)
    learnt.save(out)
    if json:
        return print_json({"out": out, "kind": kind, "vocab": len(learnt), "roles": learnt.special_ids})
    print_rows([("tokenizer", str(out / "tokenizer.json")), ("vocabulary", f"{len(learnt):,}")])


def encode(
    tokenizer: Source,
    words: Annotated[str, typer.Argument(metavar="TEXT", help="The text; - or nothing reads standard input.")] = "-",
    specials: Specials = "parse",
    json: JsonOption = False,
) -> None:
    """Turn a text into ids."""
    from regard.text.tokenizer import Tokenizer

    known = Tokenizer.load(Path(tokenizer), check_specials_option(specials))
    ids = known.encode(read_text_argument("-") if words == "-" else check_surrogates(words, "TEXT"))
    if json:
        return print_json({"ids": ids, "pieces": [known.token_text(id) for id in ids]})
    print(*ids)


def decode(
    tokenizer: Source,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="The ids; - reads them from standard input.")],
    json: JsonOption = False,
) -> None:
    """Turn ids into the text they came from."""
    given = read_text_argument("-").split() if ids == ["-"] else [word for given in ids for word in given.split()]
    numbers = [parse_id(word) for word in given]
    from regard.text.tokenizer import Tokenizer

    known = Tokenizer.load(Path(tokenizer))
    for id in numbers:
        if id >= len(known):
            raise config.DataError(f"ID {id}: {tokenizer} has only 0 to {len(known) - 1}; use the id's own")
    if json:
        return print_json({"text": known.decode(numbers)})
    print_exact(known.decode(numbers))


def parse_id(word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) < 12):
        raise config.ConfigError(f"ID {word!r}: expected a whole number from 0 up, such as tokenize encode prints")
    return int(word)
