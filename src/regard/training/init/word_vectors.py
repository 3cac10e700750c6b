"""Word vectors from a file (GloVe, word2vec, fastText) as the initial embeddings of a model.

    glove.txt  x.vec    the 0.418 0.24968 -0.41242 ...      each line a word and its numbers; fastText and word2vec
                                                            first have a line with the number of words and the width
    x.bin               word2vec binary: that first line, then each word, a space, and its numbers as float32
    x.safetensors       a table (V, D), its rows in the order of token ids

All but the last may be compressed (.gz, .xz, .zst). Files are larger than memory, so only words of the tokenizer are
kept.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import Tensor, nn

from regard import config
from regard.core.model import Transformer
from regard.files.compression import file_format, open_decompressed, readable_errors
from regard.hub import weights
from regard.text.tokenizer import Tokenizer

MARKS = ("Ġ", "▁", "##")  # word boundary or continuation marks of GPT-2, SentencePiece and BERT
MAX_LINE = 1 << 20  # longest line in bytes, a limit against malformed files
FASTTEXT = (793712314).to_bytes(4, "little")  # magic number of fastText's own .bin


@dataclass(frozen=True)
class VectorMatch:
    """How many of the tokenizer's tokens have a vector in the file, and examples of those that have none."""

    path: Path
    count: int
    of: int
    missing: tuple[str, ...] = ()


@torch.no_grad()
def load_word_vectors(model: Transformer, tokenizer: Tokenizer, path: str | Path) -> VectorMatch:  #: S075
    """Initialise token embeddings with the vectors of a file; tokens without a vector keep their initial values.

    A token is looked up as it is, then without its word boundary mark, then in lower case.
    """
    path, table = Path(path), embedding_table(model).weight
    if file_format(path.name) == ".safetensors":
        return load_table(table, tokenizer, path)
    known = {id: token_spellings(tokenizer, id) for id in range(len(tokenizer)) if id not in tokenizer.specials}
    found = read_vectors(path, {word for words in known.values() for word in words}, table.shape[1])
    missing = []
    for id, words in known.items():
        word = next((word for word in words if word in found), None)
        if word is None:
            missing.append(tokenizer.token_text(id))
        else:
            table[id].copy_(found[word])
    if len(missing) == len(known):
        raise config.DataError(f"{path}: has none of the {len(known):,} tokens, such as {', '.join(missing[:3])}; "
                               "set tokenizer.kind to word, or name vectors of such tokens")  # fmt: skip
    longest = sorted(missing, key=len, reverse=True)[:5]  # words are more informative than letters and marks
    return VectorMatch(path, len(known) - len(missing), len(known), tuple(longest))


def embedding_table(model: Transformer) -> nn.Embedding:
    """The input embedding table of the model."""
    table = getattr(model.encoder_embed or model.embed, "tokens", None)
    if not isinstance(table, nn.Embedding):
        raise config.ConfigError(f"train.word_vectors: the front end is {model.c.embed.kind!r}, which reads no words; "
                                 "leave it out")  # fmt: skip
    return table


def token_spellings(tokenizer: Tokenizer, id: int) -> list[str]:
    """The words to look up for a token, most exact first."""
    token = tokenizer.token(id)
    word = token if tokenizer.spelling is None else tokenizer.spelling[id].decode(errors="replace")
    for mark in MARKS:
        word = word.removeprefix(mark)
    word = word.strip()
    return [each for each in dict.fromkeys((token, word, word.lower())) if each]


def load_table(table: Tensor, tokenizer: Tokenizer, path: Path) -> VectorMatch:
    """Load a whole table whose rows are in the order of token ids."""
    held = weights.load_tensors_lazy(path)
    name = "weight" if "weight" in held else next(iter(held), "")
    if name not in held or (len(held) > 1 and name != "weight"):
        raise config.DataError(f"{path}: holds {len(held)} tensors; expected one, or one that is named weight")
    rows = held[name]
    if rows.dim() != 2 or not rows.is_floating_point() or len(rows) < len(tokenizer) or len(rows) > len(table):
        raise config.DataError(f"{path}: {name} is {rows.dtype} {tuple(rows.shape)}; expected a row of numbers for "
                               f"each of the {len(tokenizer):,} tokens")  # fmt: skip
    check_vector_width(path, rows.shape[1], table.shape[1])
    table[: len(rows)].copy_(rows)
    return VectorMatch(path, len(tokenizer), len(tokenizer))


def describe_match(found: VectorMatch) -> str:
    """A line on the matched word vectors, for the start of the run."""
    rest = f"; without one: {', '.join(found.missing)}" if found.missing else ""
    return f"vectors from {found.path}: for {found.count:,} of {found.of:,} tokens{rest}"


# ---------------------------------------------------------------- file formats


def read_vectors(path: str | Path, wanted: set[str], dim: int) -> dict[str, Tensor]:
    """The vectors of the wanted words in a file; the first one counts if a word occurs twice."""
    path, names, found = Path(path), {word.encode(): word for word in wanted}, dict[str, Tensor]()
    reader = READERS.get(file_format(path.name))
    if reader is None:
        raise config.DataError(f"{path}: unknown suffix; expected {', '.join(READERS)} or .safetensors")
    with readable_errors(str(path)), open_decompressed(path) as file:
        for name, vector in reader(file, path, dim, names.__contains__):
            if not vector.isfinite().all():
                raise config.DataError(
                    f"{path}: the vector of {printable_bytes(name)} has a value that is not finite; fix or remove it"
                )
            found.setdefault(names[name], vector)
    return found


Wanted = Callable[[bytes], bool]
Vectors = Iterator[tuple[bytes, Tensor]]


def parse_text_vectors(file: IO[bytes], path: Path, dim: int, wanted: Wanted) -> Vectors:
    """Text format: a word and its numbers on each line. GloVe has words with spaces, so numbers count from the end."""
    for place, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), 1):
        line = line.rstrip(b" \r\n")
        spaces = line.count(b" ")
        if place == 1:
            counted = parse_header(line)
            check_vector_width(path, counted or spaces or dim, dim)
            if counted:
                continue
        if spaces < dim:
            raise config.DataError(
                f"{path}:{place}: {spaces} numbers in {printable_bytes(line)}; expected a word and {dim}"
            )
        word = line.rsplit(b" ", dim)[0] if spaces > dim else line.partition(b" ")[0]
        if wanted(word):
            yield word, parse_numbers(line[len(word) + 1 :], f"{path}:{place}")


def parse_header(line: bytes) -> int | None:
    """The width of the vectors, if this line is a header with the number of words and the width."""
    words = line.split()
    return int(words[1]) if len(words) == 2 and all(word.isdigit() for word in words) else None


def parse_numbers(text: bytes, where: str) -> Tensor:
    try:
        return torch.tensor([float(number) for number in text.split(b" ")])
    except ValueError:
        raise config.DataError(
            f"{where}: {printable_bytes(text)} is not all numbers; correct or remove the line"
        ) from None


def parse_binary_vectors(file: IO[bytes], path: Path, dim: int, wanted: Wanted) -> Vectors:
    """word2vec's binary format: a word, a space, its numbers as little-endian float32; newlines are ignored."""
    first = file.readline(MAX_LINE)
    if first.startswith(FASTTEXT):
        raise config.DataError(f"{path}: a whole model of fastText; name the .vec file with its vectors")
    if (width := parse_header(first)) is None:
        raise config.DataError(
            f"{path}: begins with {printable_bytes(first)}; expected how many words and how many numbers each"
        )
    check_vector_width(path, width, dim)
    count, size, held, at = int(first.split()[0]), 4 * dim, b"", 0
    for place in range(count):
        while (end := held.find(b" ", at)) < 0 or len(held) <= end + size:
            more = file.read(MAX_LINE)
            if not more or len(held) - at > 2 * MAX_LINE + size:
                raise config.DataError(f"{path}: ends in word {place + 1:,} of {count:,}; fetch it again")
            held, at = held[at:] + more, 0
        word, at = held[at:end].lstrip(b"\n"), end + 1 + size
        if wanted(word):
            yield word, torch.frombuffer(bytearray(held[end + 1 : at]), dtype=torch.float32)


READERS: dict[str, Callable[[IO[bytes], Path, int, Wanted], Vectors]] = {
    ".txt": parse_text_vectors,
    ".vec": parse_text_vectors,
    ".bin": parse_binary_vectors,
}


def check_vector_width(path: Path, count: int, dim: int) -> None:
    if count != dim:
        raise config.DataError(f"{path}: its vectors have {count:,} numbers, and the model's words {dim:,}; set "
                               f"model.trunk.embed_dim={count}, or name other vectors")  # fmt: skip


def printable_bytes(text: bytes) -> str:
    return repr(text[:30].decode(errors="replace")) + ("..." if len(text) > 30 else "")
