"""From idea to line to test: joins docs/ideas.toml, anchors in the code and marks on the tests into docs/map.md.

    q = self.q(x)                              #: S001 S011        an anchor; alone on a line it means the next one
    @pytest.mark.spec("S001")                                      a mark; `pytestmark = ...` marks the whole file

`python tools/map.py` writes the page; `--check` writes nothing and exits 1 when the page is stale: when a row, an idea,
a file or a test came or went. Lines that only moved are no staleness: they are put right whenever the page is written.
Either way a row that code or a test names and docs/ideas.toml does not have is an error.
"""

import argparse
import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
IDEAS, PAGE = "docs/ideas.toml", "docs/map.md"

# A section and its last row.
SECTIONS = {
    "A. Attention": 19,
    "B. Masks": 28,
    "C. Position": 37,
    "D. Block": 49,
    "E. Models": 71,
    "F. Tokens": 83,
    "G. Objectives": 94,
    "H. Optimisation": 103,
    "I. Generation": 113,
    "J. Efficient attention": 123,
    "K. Baselines": 132,
    "L. Domains": 138,
    "M. Cost": 148,
    "N. Inside": 158,
    "O. Doctor": 163,
    "P. Evaluation": 168,
    "Q. Worked examples": 178,
    "R, S. Claims": 199,
}
ANCHOR = re.compile(r"#:((?:[\s,]*\bS\d+\b)+)")

HEAD = """\
# The map: from idea to line to test

Made by `make map` from [ideas.toml](ideas.toml), the `#: S002` anchors in the code and the `spec` marks on the tests.
A dash says that there is none yet. Errata say where a lecture's slide differs from what is built here, and why.
"""
COLUMNS = "| row | idea | formula | code | tests | erratum |\n|---|---|---|---|---|---|\n"


class Place(NamedTuple):
    """Where a row is named. `text` is what the reader clicks on."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"[{self.text}](../{self.file}#L{self.line})"


def page(root: Path) -> str:
    """The whole of docs/map.md."""
    ideas, code, tests = read_ideas(root), gather(anchors(root)), gather(marks(root))
    parts = [HEAD]
    for title, rows in sections(ideas):
        lines = [table_line(row, ideas[row], code[row], tests[row]) for row in rows]
        parts.append(f"## {title}\n\n{COLUMNS}{''.join(lines)}")
    parts.append(f"{len(ideas)} rows; {count(ideas, code)} have code, {count(ideas, tests)} have a test.\n")
    return "\n".join(parts)


def table_line(row: str, idea: dict[str, str], code: list[Place], tests: list[Place]) -> str:
    formula = f"`{idea['formula']}`" if "formula" in idea else ""
    cells = [row, idea["idea"], formula, links(code), links(tests), idea.get("erratum", "")]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def links(places: list[Place]) -> str:
    return "<br>".join(map(str, places)) or "–"


def sections(ideas: dict[str, dict[str, str]]) -> Iterator[tuple[str, list[str]]]:
    first = 0
    for title, last in SECTIONS.items():
        if rows := [row for row in sorted(ideas) if first < int(row[1:]) <= last]:
            yield title, rows
        first = last


def count(ideas: dict[str, dict[str, str]], places: dict[str, list[Place]]) -> int:
    return sum(bool(places[row]) for row in ideas)


def problems(root: Path) -> list[str]:
    """Rows that code or tests name and ideas.toml does not have, and ideas that are not well formed."""
    ideas = read_ideas(root)
    unknown = [
        f"{place.file}:{place.line}: {row} is not in {IDEAS}"
        for row, place in [*anchors(root), *marks(root)]
        if row not in ideas
    ]
    nameless = [f"{IDEAS}: {row} has no idea" for row in ideas if not ideas[row].get("idea")]
    strange = [
        f"{IDEAS}: {row}.{key}: no such key; there are idea, formula, erratum"
        for row in ideas
        for key in ideas[row]
        if key not in ("idea", "formula", "erratum")
    ]
    outside = [
        f"{IDEAS}: {row} is no row; rows run from S001 to S{max(SECTIONS.values())}"
        for row in ideas
        if not (re.fullmatch(r"S\d{3}", row) and 1 <= int(row[1:]) <= max(SECTIONS.values()))
    ]
    return outside or unknown + nameless + strange


def read_ideas(root: Path) -> dict[str, dict[str, str]]:
    return tomllib.loads((root / IDEAS).read_text(encoding="utf8"))


def anchors(root: Path) -> Iterator[tuple[str, Place]]:
    """Every `#: S002 S005` in the library and the examples, with the line it speaks of."""
    for path in [*python(root / "src"), *python(root / "examples")]:
        lines = path.read_text(encoding="utf8").splitlines()
        name = path.relative_to(root).as_posix()
        for number, line in enumerate(lines):
            if found := ANCHOR.search(line):
                at = number if line[: found.start()].strip() else following(lines, number)
                for row in re.findall(r"S\d+", found[1]):
                    yield row, Place(name, at + 1, f"{name.removeprefix('src/regard/')}:{at + 1}")


def following(lines: list[str], number: int) -> int:
    """The next line of code: comments and empty lines may stand between it and its anchor."""
    for at in range(number + 1, len(lines)):
        if (text := lines[at].strip()) and not text.startswith("#"):
            return at
    return number


def marks(root: Path) -> Iterator[tuple[str, Place]]:
    """Every `spec(...)` mark on a test function, a test class or, as `pytestmark`, a file."""
    for path in python(root / "tests"):
        name = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                place, where = Place(name, node.lineno, node.name), node.decorator_list
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                place, where = Place(name, node.lineno, path.name), [node.value]
            else:
                continue
            yield from ((row, place) for each in where for row in rows_of(each))


def rows_of(mark: ast.expr) -> Iterator[str]:
    """The rows that an expression marks: `pytest.mark.spec("S002", "S005")`, `spec("S002")`, or a list of marks."""
    for node in ast.walk(mark):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("pytest.mark.spec", "mark.spec", "spec"):
            yield from (row.value for row in node.args if isinstance(row, ast.Constant))


def gather(pairs: Iterator[tuple[str, Place]]) -> dict[str, list[Place]]:
    """Places by row, each once, in the order of files and lines."""
    places = defaultdict(list)
    for row, place in sorted(set(pairs)):
        places[row].append(place)
    return places


def python(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def unnumbered(text: str) -> str:
    """The page without the numbers of its lines."""
    return re.sub(r"(?<=\.py)(:|#L)\d+", "", text)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Write docs/map.md.")
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
