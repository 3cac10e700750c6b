"""Write the text that the packaged English models read: everyday sentences and books, a line each.

    python tools/english_corpus.py books.txt --validation books-val.txt --out english
    # english.txt and english.validation.txt, for recipes/english.toml and recipes/english-mlm.toml

The sentences are the English side of the packaged Tatoeba pairs, each once, shuffled, the training part `--times` times
over, since books are eight times as long. A book (Project Gutenberg, a paragraph a line, packed or not) is cut into
lines of whole sentences of at most `--width` characters; titles and headings in capitals are left out.
"""

import argparse
import lzma
import random
import re
from collections.abc import Iterator
from pathlib import Path

from regard import data

SENTENCE_END = re.compile(r'(?<=[.!?]["\')])\s+|(?<=[.!?])\s+')


def everyday_sentences(source: str) -> list[str]:
    [records] = data.find_records([source])
    return sorted({record["en"] for record in records.records(data.BadRecordPolicy())})


def book_lines(path: Path, width: int) -> Iterator[str]:
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf8") as lines:
        for paragraph in map(str.strip, lines):
            if paragraph and not paragraph.startswith("===") and not paragraph.isupper():
                yield from join_sentences(SENTENCE_END.split(paragraph), width)


def join_sentences(sentences: list[str], width: int) -> Iterator[str]:
    line = ""
    for sentence in sentences:
        if line and len(line) + 1 + len(sentence) > width:
            yield line
            line = sentence
        else:
            line = f"{line} {sentence}" if line else sentence
    if line:
        yield line


def write_lines(path: Path, parts: list[list[str]], dice: random.Random) -> None:
    """Parts mixed in blocks of fifty lines, so that any stretch of a book stays a stretch."""
    blocks = [part[start : start + 50] for part in parts for start in range(0, len(part), 50)]
    dice.shuffle(blocks)
    path.write_text("".join(f"{line}\n" for block in blocks for line in block), encoding="utf8")
    print(f"{path}: {sum(map(len, blocks)):,} lines, {path.stat().st_size:,} bytes")


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("books", type=Path)
    ask.add_argument("--validation", type=Path, required=True, help="books that are not trained on")
    ask.add_argument("--out", type=Path, default=Path("english"))
    ask.add_argument("--times", type=int, default=2)
    ask.add_argument("--width", type=int, default=600)
    asked = ask.parse_args()
    dice = random.Random(0)  # noqa: S311
    for suffix, source, books, times in (
        (".txt", "tatoeba-en-fr", asked.books, asked.times),
        (".validation.txt", "tatoeba-en-fr:validation", asked.validation, 1),
    ):
        sentences = everyday_sentences(source)
        parts = [dice.sample(sentences, len(sentences)) for _ in range(times)]
        write_lines(asked.out.with_suffix(suffix), [*parts, list(book_lines(books, asked.width))], dice)


if __name__ == "__main__":
    main()
