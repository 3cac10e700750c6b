"""Sources: texts and records found by name.

    shakespeare, tatoeba-en-fr:test    packaged         a.txt, a.jsonl.gz, a.csv, a.parquet   files, by their suffix
    folder, folder/*.jsonl             several files    a.en + a.fr                           parallel lines
    -, -.jsonl                         standard input   toy:sort(20), hf:owner/name:split     generated, downloaded
    pets/cat/1.png, pets/dog/2.png     files as records, labelled by folder (readers/file_folder.py)

Text is UTF-8: line ends are preserved and a byte order mark is dropped. A folder yields its files of one kind in the
order of their paths, without hidden or empty ones. `find_texts` and `find_records` take the same names: a record's text
is one of its columns, and a text's records are its lines.
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

from regard.config.errors import ConfigError, DataError, did_you_mean
from regard.config.recipe import PACKAGED_TEXTS, Data
from regard.data.builtin import EMOJI, TOY_PREFIX, open_emoji, open_toy
from regard.data.readers.file_folder import FileFolder, column_for_suffix, open_folder
from regard.data.readers.parquet import ParquetFile
from regard.data.readers.tabular import HUB_PREFIX, PACKAGED_DIR, PACKAGED_SETS, HubDataset, find_packaged_set
from regard.data.readers.text_formats import FORMATS, ParallelFiles, RecordFile
from regard.data.records import BadRecordPolicy, Document, RecordSource, TextColumn, explain_binary, explain_encoding
from regard.files.compression import DECOMPRESSORS, file_format, open_decompressed, readable_errors

BLOCK = 1 << 18  # bytes read at a time; training a tokenizer holds 256 of them
TEXT_SUFFIXES = (".txt", ".md")
RECORD_SUFFIXES = (*FORMATS, ".parquet")
STANDARD = "-"
STDIN_COPIES: "weakref.WeakKeyDictionary[IO[bytes], IO[bytes]]" = (
    weakref.WeakKeyDictionary()
)  # copies of standard input


@dataclass(frozen=True)
class TextSource:
    """A text that can be read in parts and more than once; `held` keeps the copy of standard input."""

    name: str
    path: Path
    held: IO[bytes] | None = None

    def documents(self, tally: BadRecordPolicy) -> Iterator["TextSource"]:
        yield self

    def parts(self) -> Iterator[str]:
        """The text in blocks, cut between characters."""
        decoder, read, lines = codecs.getincrementaldecoder("utf-8-sig")(), 0, 1
        for block in chain(self.blocks(), [b""]):
            read += len(block)
            if (zero := block.find(b"\0")) >= 0:
                raise DataError(f"{self.name}: {explain_binary(block, read - len(block) + zero)}")
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as problem:
                raise DataError(
                    f"{self.name}: {explain_encoding(problem, read - len(problem.object), lines)}"
                ) from None
            lines += text.count("\n")
            if text:
                yield text

    def blocks(self) -> Iterator[bytes]:
        with readable_errors(self.name), self.open() as file:
            while block := file.read(BLOCK):
                yield block

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        if self.held is not None:
            self.held.seek(0)
            yield self.held
        else:
            with open_decompressed(self.path) as file:
                yield file

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the text."""
        found = hashlib.sha256()
        for block in self.blocks():
            found.update(block)
        return found.hexdigest()

    @property
    def empty(self) -> bool:
        with readable_errors(self.name), self.open() as file:
            return file.read(len(codecs.BOM_UTF8) + 1) in (b"", codecs.BOM_UTF8)


# Formats other than text are registered here, by suffix after decompression (".npz" for a.npz and a.npz.xz); of
# names joined by " + " the first decides.
SOURCE_SUFFIXES: dict[str, Callable[[TextSource], RecordSource]] = {}
JOINED_SOURCES: dict[str, Callable[[Sequence[TextSource]], RecordSource]] = {}
SOURCE_PREFIXES: dict[str, Callable[[str], RecordSource]] = {}  # or by prefix, such as "graphs:"


def match_suffix(name: str, known: Iterable[str]) -> str | None:
    """The longest known suffix of a file name."""
    plain = name.lower()
    plain = plain.removesuffix(Path(plain).suffix) if Path(plain).suffix in DECOMPRESSORS else plain
    return max((each for each in known if plain.endswith(each)), key=len, default=None)


def read_texts(sources: Sequence[str], settings: Data | None = None) -> Iterator[Document]:
    """The texts of the sources one after the other, each as a whole."""
    tally = BadRecordPolicy(settings.on_bad_record if settings else "error")
    for source in find_texts(sources, settings):
        for document in source.documents(tally):
            yield Document(document.name, "".join(document.parts()))


def find_texts(names: Sequence[str], settings: Data | None = None) -> list[TextSource | TextColumn]:
    """Find the texts of these names; DataError for an unknown name."""
    settings = settings or Data()
    things = (thing for name in names for thing in resolve_name(name, settings, TEXT_SUFFIXES))
    return [
        thing if isinstance(thing, TextSource) else TextColumn(thing, settings.text_column, settings.on_bad_record)
        for thing in things
    ]


def find_records(names: Sequence[str], settings: Data | None = None) -> list[RecordSource]:
    """Find the records of these names; the records of a text are its lines."""
    settings = settings or Data()
    things = (thing for name in names for thing in resolve_name(name, settings, RECORD_SUFFIXES))
    return [RecordFile(thing, settings) if isinstance(thing, TextSource) else thing for thing in things]


def name_sources(names: Sequence[str]) -> str:
    """A joint name for several sources."""
    return ", ".join([*names[:3], *["..."] * (len(names) > 3)])


def check_settings_used(settings: Data, things: Sequence[TextSource | TextColumn | RecordSource]) -> None:
    """Refuse settings that none of the sources uses."""
    told = [thing.table if isinstance(thing, TextColumn) else thing for thing in things]
    known = {name for thing in told if not isinstance(thing, TextSource) for name in thing.settings_used}
    takers = {
        "column_names": "files that do not name their columns (.csv, .tsv, pairs)",
        "blank_line_ends_document": "lines of text",
    }
    for name, taker in takers.items():
        if getattr(settings, name) and name not in known:
            raise ConfigError(f"data.{name}: it is for {taker}, and there are no such records here; leave it out")


def resolve_name(name: str, settings: Data, kind: tuple[str, ...]) -> list[TextSource | RecordSource]:
    """Resolve a name; `kind`: the kinds of file to look for first in a folder."""
    if name.startswith(TOY_PREFIX):
        return [open_toy(name)]
    if name.startswith(HUB_PREFIX):
        return [HubDataset(name)]
    if made := [make for prefix, make in SOURCE_PREFIXES.items() if name.startswith(prefix)]:
        return [made[0](name)]
    if name == STANDARD or (name.startswith("-.") and name[1:] in FORMATS):
        return [open_by_suffix(check_not_empty(spool_stdin(name)), settings, kind)]
    if name.partition(":")[0] == EMOJI:
        return [open_emoji(name)]
    if name in PACKAGED_TEXTS:
        return [TextSource(name, PACKAGED_DIR / f"{name}.txt.gz")]
    if (known := find_packaged_set(name)) is not None:
        source = TextSource(known[0].name, known[0])
        other = match_suffix(source.name, SOURCE_SUFFIXES)
        named = replace(settings, column_names=settings.column_names or known[1])
        return [RecordFile(source, named) if other is None else SOURCE_SUFFIXES[other](source)]
    path = Path(name).expanduser()
    if not os.path.lexists(path):
        return resolve_pattern(name, settings, kind)
    if path.is_dir():
        return list_folder(path, settings, kind)
    if path.exists() and not path.is_file():
        raise DataError(f"{name}: not a regular file; to read from a pipe, name - and send the text to standard input")
    return [open_by_suffix(check_not_empty(TextSource(name, path)), settings, kind)]


def open_by_suffix(source: TextSource, settings: Data, kind: tuple[str, ...]) -> TextSource | RecordSource:
    """Open a file by its suffix."""
    if file_format(source.name) == ".parquet":
        return ParquetFile(source.name, source.path)
    if (known := match_suffix(source.name, SOURCE_SUFFIXES)) is not None:
        return SOURCE_SUFFIXES[known](source)
    if kind == RECORD_SUFFIXES and column_for_suffix(source.path):
        return FileFolder(source.name, source.path.parent, [source.path])
    return RecordFile(source, settings) if file_format(source.name) in FORMATS else source


def resolve_pattern(name: str, settings: Data, kind: tuple[str, ...]) -> list[TextSource | RecordSource]:
    """Resolve a name that is not a path: a glob pattern, several joined files, or a typing error."""
    if " + " in name:
        paths = [Path(part.strip()).expanduser() for part in name.split(" + ")]
        if (known := match_suffix(paths[0].name, JOINED_SOURCES)) is not None:
            return [JOINED_SOURCES[known]([check_not_empty(TextSource(str(path), path)) for path in paths])]
        columns = settings.column_names or ("source", "target")
        if len(paths) != len(columns):
            raise DataError(f"{name}: {len(paths)} files and {len(columns)} columns ({', '.join(columns)}); name as "
                            "many by data.column_names")  # fmt: skip
        return [ParallelFiles([check_not_empty(TextSource(str(path), path)) for path in paths], columns)]
    if glob.has_magic(name):
        paths = [Path(found) for found in glob.glob(str(Path(name).expanduser()), recursive=True)]
        return open_files(
            name, [path for path in paths if path.is_file()], settings, kind, "no file matches this pattern"
        )
    near = did_you_mean(name, (*PACKAGED_TEXTS, *PACKAGED_SETS, EMOJI))
    pair = " (files that belong together are named with a space on both sides of the +)" if "+" in name else ""
    what = "a text" if kind == TEXT_SUFFIXES else "a file"
    raise DataError(f"{name}: no such file or folder{pair}{near} name {what}, or a packaged one "
                    f"({', '.join((*PACKAGED_TEXTS, *PACKAGED_SETS, EMOJI))})")  # fmt: skip


def list_folder(folder: Path, settings: Data, kind: tuple[str, ...]) -> list[TextSource | RecordSource]:
    """The files in a folder and its subfolders: texts, or else records; with `kind` records, the other way round.

    If there are neither, files that are records themselves, such as images.
    """
    paths: list[Path] = []
    with readable_errors(str(folder)):
        for here, folders, names in os.walk(folder, onerror=raise_data_error):
            folders[:] = [name for name in folders if not name.startswith(".")]
            paths += [Path(here, name) for name in names if not name.startswith(".")]
    texts = [path for path in paths if file_format(path.name) in TEXT_SUFFIXES]
    records = [
        path
        for path in paths
        if file_format(path.name) in RECORD_SUFFIXES or match_suffix(path.name, SOURCE_SUFFIXES) is not None
    ]
    if kind == TEXT_SUFFIXES and texts and records:
        raise DataError(f"{folder}: both texts ({texts[0].name}) and records ({records[0].name}) in this folder; name "
                        f"the files, or a pattern such as {folder}/*{records[0].suffix}")  # fmt: skip
    first = records or texts if kind == RECORD_SUFFIXES else texts or records
    if (
        not records
        and (kind == RECORD_SUFFIXES or not texts)
        and (whole := [path for path in paths if column_for_suffix(path)])
    ):
        return [open_folder(folder, whole)]
    return open_files(str(folder), first, settings, kind, "no .txt or .md files in this folder, nor "
                                                     f"{', '.join(RECORD_SUFFIXES)}, nor "
                 "pictures or sounds")  # fmt: skip


def open_files(
    name: str, paths: Sequence[Path], settings: Data, kind: tuple[str, ...], none: str
) -> list[TextSource | RecordSource]:
    """Open each non-empty file, in the order of their paths."""
    sources = [source for path in sorted(paths) if not (source := TextSource(str(path), path)).empty]
    if not sources:
        what = "only empty texts in it" if paths else none
        raise DataError(f"{name}: {what}; name one with texts, or the files themselves")
    return [open_by_suffix(source, settings, kind) for source in sources]


def check_not_empty(source: TextSource) -> TextSource:
    if source.empty:
        raise DataError(f"{source.name}: empty; there must be some text to read")
    return source


def spool_stdin(name: str) -> TextSource:
    """Copy standard input to a temporary file: it is read more than once, and may be larger than memory."""
    source = TextSource(f"standard input{name[1:]}", Path(STANDARD))
    with readable_errors(source.name):
        if sys.stdin is None or sys.stdin.closed:
            raise OSError(0, "closed")
        said = sys.stdin.buffer
        if said not in STDIN_COPIES:  # a second reader gets the same copy
            STDIN_COPIES[said] = held = tempfile.TemporaryFile()  # noqa: SIM115  open for as long as its input
            weakref.finalize(said, held.close)
            shutil.copyfileobj(said, held, BLOCK)
    return replace(source, held=STDIN_COPIES[said])


def raise_data_error(problem: OSError) -> NoReturn:
    raise problem
