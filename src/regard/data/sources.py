"""Sources: where text and records come from, by name.

    shakespeare, tatoeba-en-fr:test    packaged         a.txt, a.jsonl.gz, a.csv, a.parquet   files, by their suffix
    folder, folder/*.jsonl             several files    a.en + a.fr                           lines that go together
    -, -.jsonl                         standard input   toy:sort(20), hf:owner/name:split     made, or fetched
    pets/cat/1.png, pets/dog/2.png     files as records, by a folder's name (folders.py)

What is read as text is UTF-8: line ends stay as they are and a byte order mark is dropped. A folder gives the files
that it has of one kind in the order of their paths, without hidden or empty ones. `find` gives texts and `tables`
gives records, of the same names: a record's text is one of its columns, and a text's records are its lines.
"""

import codecs
import glob
import hashlib
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import IO, NoReturn

from regard.config import PACKAGED, ConfigError, Data, DataError
from regard.config.names import did_you_mean
from regard.data.columns import Column, Document
from regard.data.emoji import EMOJI, emoji
from regard.data.folders import Files, column_of, files
from regard.data.formats import FORMATS, Filed, Parallel
from regard.data.packing import PACKERS, format_of, readable, unpacking
from regard.data.parquet import Parquet
from regard.data.records import Table, Tally
from regard.data.tables import HERE, HUB, SETS, Hub, packaged
from regard.data.toys import TOY, toy
from regard.data.utf8 import binary, foreign

BLOCK = 1 << 18  # bytes read at a time; training a tokenizer holds 256 of them
TEXTS = (".txt", ".md")
RECORDS = (*FORMATS, ".parquet")
STANDARD = "-"
SPOKEN: "weakref.WeakKeyDictionary[IO[bytes], IO[bytes]]" = weakref.WeakKeyDictionary()  # what standard input said


@dataclass(frozen=True)
class Source:
    """One text, which can be read in parts and more than once; `held` keeps what standard input says only once."""

    name: str
    path: Path
    held: IO[bytes] | None = None

    def documents(self, tally: Tally) -> Iterator["Source"]:
        yield self

    def parts(self) -> Iterator[str]:
        """The text, a block at a time; no character is split, and none lost."""
        decoder, read, lines = codecs.getincrementaldecoder("utf-8-sig")(), 0, 1
        for block in chain(self.blocks(), [b""]):
            read += len(block)
            if (zero := block.find(b"\0")) >= 0:
                raise DataError(f"{self.name}: {binary(block, read - len(block) + zero)}")
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as problem:
                raise DataError(f"{self.name}: {foreign(problem, read - len(problem.object), lines)}") from None
            lines += text.count("\n")
            if text:
                yield text

    def blocks(self) -> Iterator[bytes]:
        with readable(self.name), self.open() as file:
            while block := file.read(BLOCK):
                yield block

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        if self.held is not None:
            self.held.seek(0)
            yield self.held
        else:
            with unpacking(self.path) as file:
                yield file

    @cached_property
    def digest(self) -> str:
        """The sha256 of what is read."""
        found = hashlib.sha256()
        for block in self.blocks():
            found.update(block)
        return found.hexdigest()

    @property
    def empty(self) -> bool:
        with readable(self.name), self.open() as file:
            return file.read(len(codecs.BOM_UTF8) + 1) in (b"", codecs.BOM_UTF8)


# Formats that are no text enter themselves here, by how a name ends (unpacked: ".npz" of a.npz and of a.npz.xz); of
# names joined by " + " the first one decides.
SUFFIXES: dict[str, Callable[[Source], Table]] = {}
JOINED: dict[str, Callable[[Sequence[Source]], Table]] = {}
PREFIXES: dict[str, Callable[[str], Table]] = {}  # or by how it begins, as "graphs:"


def ending(name: str, known: Iterable[str]) -> str | None:
    """How a file's name ends, among the endings that are known; the longest counts."""
    plain = name.lower()
    plain = plain.removesuffix(Path(plain).suffix) if Path(plain).suffix in PACKERS else plain
    return max((each for each in known if plain.endswith(each)), key=len, default=None)


def read_texts(sources: Sequence[str], how: Data | None = None) -> Iterator[Document]:
    """The texts of the sources one after the other, each whole."""
    tally = Tally(how.bad if how else "stop")
    for source in find(sources, how):
        for document in source.documents(tally):
            yield Document(document.name, "".join(document.parts()))


def find(names: Sequence[str], how: Data | None = None) -> list[Source | Column]:
    """The texts that are there by these names; DataError where there is none."""
    how = how or Data()
    things = (thing for name in names for thing in found(name, how, TEXTS))
    return [thing if isinstance(thing, Source) else Column(thing, how.column, how.bad) for thing in things]


def tables(names: Sequence[str], how: Data | None = None) -> list[Table]:
    """The records that are there by these names; those of a text are its lines."""
    how = how or Data()
    things = (thing for name in names for thing in found(name, how, RECORDS))
    return [Filed(thing, how) if isinstance(thing, Source) else thing for thing in things]


def few(names: Sequence[str]) -> str:
    """What several sources are called together."""
    return ", ".join([*names[:3], *["..."] * (len(names) > 3)])


def heeded(how: Data, things: Sequence[Source | Column | Table]) -> None:
    """No setting is passed over in silence."""
    told = [thing.table if isinstance(thing, Column) else thing for thing in things]
    known = {name for thing in told if not isinstance(thing, Source) for name in thing.heeds}
    takers = {"columns": "files that do not name their columns (.csv, .tsv, pairs)", "documents": "lines of text"}
    for name, taker in takers.items():
        if getattr(how, name) and name not in known:
            raise ConfigError(f"data.{name}: it is for {taker}, and there are no such records here; leave it out")


def found(name: str, how: Data, kind: tuple[str, ...]) -> list[Source | Table]:
    """What a name stands for; `kind` is what a folder is searched for first."""
    if name.startswith(TOY):
        return [toy(name)]
    if name.startswith(HUB):
        return [Hub(name)]
    if made := [make for prefix, make in PREFIXES.items() if name.startswith(prefix)]:
        return [made[0](name)]
    if name == STANDARD or (name.startswith("-.") and name[1:] in FORMATS):
        return [typed(filled(spooled(name)), how, kind)]
    if name.partition(":")[0] == EMOJI:
        return [emoji(name)]
    if name in PACKAGED:
        return [Source(name, HERE / f"{name}.txt.gz")]
    if (known := packaged(name)) is not None:
        source = Source(known[0].name, known[0])
        other = ending(source.name, SUFFIXES)
        named = replace(how, columns=how.columns or known[1])
        return [Filed(source, named) if other is None else SUFFIXES[other](source)]
    path = Path(name).expanduser()
    if not os.path.lexists(path):
        return elsewhere(name, how, kind)
    if path.is_dir():
        return inside(path, how, kind)
    if path.exists() and not path.is_file():
        raise DataError(f"{name}: not a regular file; to read from a pipe, name - and send the text to standard input")
    return [typed(filled(Source(name, path)), how, kind)]


def typed(source: Source, how: Data, kind: tuple[str, ...]) -> Source | Table:
    """A file as what its name says that it is."""
    if format_of(source.name) == ".parquet":
        return Parquet(source.name, source.path)
    if (known := ending(source.name, SUFFIXES)) is not None:
        return SUFFIXES[known](source)
    if kind == RECORDS and column_of(source.path):
        return Files(source.name, source.path.parent, [source.path])
    return Filed(source, how) if format_of(source.name) in FORMATS else source


def elsewhere(name: str, how: Data, kind: tuple[str, ...]) -> list[Source | Table]:
    """A name that is no path: a pattern, several files that belong together, or a slip of the pen."""
    if " + " in name:
        paths = [Path(part.strip()).expanduser() for part in name.split(" + ")]
        if (known := ending(paths[0].name, JOINED)) is not None:
            return [JOINED[known]([filled(Source(str(path), path)) for path in paths])]
        columns = how.columns or ("source", "target")
        if len(paths) != len(columns):
            raise DataError(f"{name}: {len(paths)} files and {len(columns)} columns ({', '.join(columns)}); name as "
                            "many by data.columns")  # fmt: skip
        return [Parallel([filled(Source(str(path), path)) for path in paths], columns)]
    if glob.has_magic(name):
        paths = [Path(found) for found in glob.glob(str(Path(name).expanduser()), recursive=True)]
        return those(name, [path for path in paths if path.is_file()], how, kind, "no file matches this pattern")
    near = did_you_mean(name, (*PACKAGED, *SETS, EMOJI))
    pair = " (files that belong together are named with a space on both sides of the +)" if "+" in name else ""
    what = "a text" if kind == TEXTS else "a file"
    raise DataError(f"{name}: no such file or folder{pair}{near} name {what}, or a packaged one "
                    f"({', '.join((*PACKAGED, *SETS, EMOJI))})")  # fmt: skip


def inside(folder: Path, how: Data, kind: tuple[str, ...]) -> list[Source | Table]:
    """The files in a folder and the folders in it: texts, or else records; the other way round for records.

    Where there is neither, files that are records themselves: pictures, sounds.
    """
    paths: list[Path] = []
    with readable(str(folder)):
        for here, folders, names in os.walk(folder, onerror=refuse):
            folders[:] = [name for name in folders if not name.startswith(".")]
            paths += [Path(here, name) for name in names if not name.startswith(".")]
    texts = [path for path in paths if format_of(path.name) in TEXTS]
    records = [path for path in paths if format_of(path.name) in RECORDS or ending(path.name, SUFFIXES) is not None]
    if kind == TEXTS and texts and records:
        raise DataError(f"{folder}: both texts ({texts[0].name}) and records ({records[0].name}) in this folder; name "
                        f"the files, or a pattern such as {folder}/*{records[0].suffix}")  # fmt: skip
    first = records or texts if kind == RECORDS else texts or records
    if not records and (kind == RECORDS or not texts) and (whole := [path for path in paths if column_of(path)]):
        return [files(folder, whole)]
    return those(str(folder), first, how, kind, f"no .txt or .md files in this folder, nor {', '.join(RECORDS)}, nor "
                 "pictures or sounds")  # fmt: skip


def those(name: str, paths: Sequence[Path], how: Data, kind: tuple[str, ...], none: str) -> list[Source | Table]:
    """Each file that is not empty, in the order of their paths."""
    sources = [source for path in sorted(paths) if not (source := Source(str(path), path)).empty]
    if not sources:
        what = "only empty texts in it" if paths else none
        raise DataError(f"{name}: {what}; name one with texts, or the files themselves")
    return [typed(source, how, kind) for source in sources]


def filled(source: Source) -> Source:
    if source.empty:
        raise DataError(f"{source.name}: empty; there must be some text to read")
    return source


def spooled(name: str) -> Source:
    """Standard input, kept in a nameless file: it will be read more than once, and may be larger than memory."""
    source = Source(f"standard input{name[1:]}", Path(STANDARD))
    with readable(source.name):
        if sys.stdin is None or sys.stdin.closed:
            raise OSError(0, "closed")
        said = sys.stdin.buffer
        if said not in SPOKEN:  # whoever asks again hears the same
            SPOKEN[said] = held = tempfile.TemporaryFile()  # noqa: SIM115  open for as long as its input
            weakref.finalize(said, held.close)
            shutil.copyfileobj(said, held, BLOCK)
    return replace(source, held=SPOKEN[said])


def refuse(problem: OSError) -> NoReturn:
    raise problem
