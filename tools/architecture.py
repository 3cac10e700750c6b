"""The page docs/architecture.md: the rooms of the package, what each knows, and five journeys through the files.

The order of the rooms and who alone may import a library come from tests/rooms.py, what a room knows from the first
sentence of its docstring, the journeys from docs/journeys.toml. `python tools/architecture.py` writes the page;
`--check` writes nothing and exits 1 when the page is stale. Numbers of files and lines that only changed are no
staleness: they are put right whenever the page is written.
"""

import argparse
import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))

from rooms import ONLY, OWNERS, ROOMS, files, room_of  # noqa: E402  what holds the order is what draws it

JOURNEYS, PAGE = "docs/journeys.toml", "docs/architecture.md"
MOST_REASONS = 12  # entries of a journey that run and are not opened
SLACK = 10  # files by which a journey may differ from the number that is written down

HEAD = """\
# Architecture: the rooms, and five journeys through them

Made by `make map` from the order in [tests/rooms.py](../tests/rooms.py), the docstrings of the packages and
[journeys.toml](journeys.toml); do not edit it by hand.
"""
ROOMS_TEXT = """\
## The rooms

A room is a package in [src/regard](../src/regard). It may import the rooms above it in this table, never one below; an
import inside a function counts. `python tests/rooms.py` draws which room uses which, and `make check` fails on a line
that breaks the order. Lines are rounded.
"""
LIBRARIES_TEXT = """\
## Who alone may import a library
"""
RULE = """\
## Where a new thing lives

Ask in this order; the first yes decides.

1. Is it a setting? `config`. Is it about files as such? `files`.
2. Does every transformer need it, and does it fit into what is read in an hour? `core`.
3. Does it turn text into ids? `text`. Files into batches, without a model? `data`. A modality into Tokens? `inputs`.
4. Is it another way to compute attention? `attention` in torch, `gpu` in Triton, `native` in C. Is it another module,
   or does it change a model? `models`.
5. Is it a format of another project? `hub`. Is it a ready-made model as data? `zoo`.
6. Does it say a number about a model? `measure`. Does it look inside? `lens`.
7. Does it define what a model is trained for and how that is scored? `tasks`.
8. Does it run a finished model? One batch of ids: `generation`. Many requests: `engine`. Texts, images, sounds, tables
   in and answers out: `inference`. Conversations: `chat`.
9. Does it change weights? `training`. Score: `evaluation`. Find faults: `doctor`. Compare several trainings: `studies`.
10. Does it make a page? `report`. Move bytes over HTTP? `web`. Implement OpenAI's API? `serve`. Read a command line and
    print? `cli`.

So inference never lives in `training`, and the room that reads a format also writes it. Within a room, a file is what a
reader would search for by the word that papers, PyTorch or `transformers` use: one family, one kernel, one task, one
verb is one file, however small. Anything else with a single importer and under 100 lines belongs to its importer.
"""
JOURNEYS_TEXT = f"""\
## Five journeys

The files that a reader opens on the main line, from a call to its result. Many more are executed on the way; they are
named below each list with one word on why they need not be opened, in at most {MOST_REASONS} entries: a file, the other
files of a folder (`a/*`), or those of its folders too (`a/**`). A test,
[test_architecture.py](../tests/test_architecture.py), takes every journey for real on tiny data and compares: each file
of a list is executed, each file that is executed is on the list or covered by an entry, and their number is the one
given to within {SLACK}. Code that runs while a module is imported does not count.
"""


def page(root: Path) -> str:
    """The whole of docs/architecture.md."""
    journeys = [format_journey(journey) for journey in read_journeys(root).values()]
    parts = [HEAD, ROOMS_TEXT, rooms_table(root / "src" / "regard"), LIBRARIES_TEXT, libraries_table(), RULE,
             JOURNEYS_TEXT, *journeys]  # fmt: skip
    return "\n".join(parts)


def rooms_table(package: Path) -> str:
    rows = ["| room | what it knows | files | lines |", "|---|---|---:|---:|"]
    for room in ROOMS:
        paths = [path for path in files(package) if room_of(path, package) == room]
        lines = sum(len(path.read_text(encoding="utf8").splitlines()) for path in paths)
        knows = first_sentence(package / room / "__init__.py")
        rows.append(f"| [{room}](../src/regard/{room}) | {knows} | {len(paths)} | {round(lines, -2):,} |")
    return "\n".join(rows) + "\n"


def first_sentence(path: Path) -> str:
    """The first sentence of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf8"))) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph)[0].replace("|", "\\|")


def libraries_table() -> str:
    rows = ["| library | room |", "|---|---|"]
    by_rooms: dict[tuple[str, ...], list[str]] = {}
    for library, owners in OWNERS.items():
        by_rooms.setdefault(tuple(room for room in ROOMS if room in owners), []).append(library)
    for owners, libraries in by_rooms.items():
        where = ", ".join(f"`{room}`" for room in owners) or "none: tests alone"
        rows.append(f"| {', '.join(f'`{name}`' for name in libraries)} | {where} |")
    few = [f"`{room}` has {' and '.join([*(f'`{name}`' for name in sorted(ONLY[room])), 'the standard library'])}"
           for room in ROOMS if room in ONLY]  # fmt: skip
    return "\n".join(rows) + f"\n\n{', '.join(few)}, and no other library.\n"


def format_journey(journey: dict[str, Any]) -> str:
    listed = journey["files"]
    steps = [f"{number}. [{file}](../src/regard/{file}): {clause}" for number, (file, clause) in enumerate(listed, 1)]
    reasons = ", ".join(f"`{pattern}` {reason}" for pattern, reason in journey["unlisted"].items())
    return "\n".join([
        f"### {journey['title']}: {len(listed)} files", "",
        f"`{journey['call']}`, {journey['span']}: at most {journey['limit']} to open, about "
        f"{journey['executed']} executed.", "",
        *steps, "",
        f"Executed and not opened: {reasons}.", "",
    ])  # fmt: skip


def problems(root: Path) -> list[str]:
    """What is wrong with the journeys before any of them is taken, and rooms that do not say what they know."""
    package, found = root / "src" / "regard", []
    for name, journey in read_journeys(root).items():
        listed = [file for file, _ in journey["files"]]
        where = f"{JOURNEYS}: {name}"
        found += [f"{where}: there is no {file}" for file in listed if not (package / file).is_file()]
        found += [f"{where}: {file} is listed twice" for file in sorted(set(listed)) if listed.count(file) > 1]
        found += [f"{where}: {reason!r} is no single word" for reason in journey["unlisted"].values()
                  if not reason.isalpha()]  # fmt: skip
        if len(listed) > journey["limit"]:
            found.append(f"{where}: {len(listed)} files; at most {journey['limit']}")
        if len(journey["unlisted"]) > MOST_REASONS:
            found.append(f"{where}: {len(journey['unlisted'])} entries are unlisted; at most {MOST_REASONS}")
    silent = [room for room in ROOMS if not first_sentence(package / room / "__init__.py")]
    return found + [f"src/regard/{room}/__init__.py: has no docstring that says what the room knows" for room in silent]


def read_journeys(root: Path) -> dict[str, dict[str, Any]]:
    return tomllib.loads((root / JOURNEYS).read_text(encoding="utf8"))


def unnumbered(text: str) -> str:
    """The page without the sizes of the rooms."""
    return re.sub(r"\| \d+ \| [\d,]+ \|$", "", text, flags=re.MULTILINE)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Write docs/architecture.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the page is stale")
    asked = parser.parse_args(arguments)
    if wrong := problems(root):
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    target, text = root / PAGE, page(root)
    if not asked.check:
        target.write_text(text, encoding="utf8")
    elif not target.exists() or unnumbered(target.read_text(encoding="utf8")) != unnumbered(text):
        print(f"{PAGE} is stale; run `make map`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
