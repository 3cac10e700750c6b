"""Bad lines of a batch: they are reported and have no result, while the other lines are processed.

    by default    each bad line is named on stderr, the first few with the reason; its row in the output is empty, and
                  the exit code is 3
    --skip        bad lines are left out of the output and counted; the exit code is 0
    --cut         a text that is too long is truncated to the model's maximum, and counted

A line is bad if it is empty, not UTF-8, not a JSON object in a JSON file, or if the model cannot process it.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.errors import EXIT_DATA, print_stderr
from regard.cli.output import print_json

SHOWN = 5  # of the bad lines
NUMBER = re.compile(r": line (\d+)\b|:(\d+)(?=:|$)")

Skip = Annotated[bool, typer.Option("--skip", help="Leave out lines of a file that are bad, and count them.")]
Cut = Annotated[bool, typer.Option("--cut", help="Cut texts that are longer than the model reads at once, and count.")]


class BadLines:
    """The bad lines of one batch, by number; `strict` raises the first one, as for texts on the command line."""

    def __init__(self, strict: bool, skip: bool = False) -> None:
        if strict and skip:
            raise config.ConfigError("--skip: it is for the lines of a file; give --file FILE, or leave it out")
        self.strict, self.skip = strict, skip
        self.why: dict[int, str] = {}
        self.cuts: list[int] = []

    def add(self, problem: config.DataError, line: int | None = None) -> None:
        """Record a bad line; its number is taken from the message unless given."""
        if self.strict:
            raise problem
        number = line if line is not None else line_number(str(problem))
        if number is None:
            raise problem
        self.why[number] = str(problem)

    def refuse(self, lines: Sequence[int]) -> Any:
        """A callback for bad texts of a batch with these lines; None if the first one raises."""
        return None if self.strict else lambda place, problem: self.add(problem, lines[place])

    def cut(self, lines: Sequence[int]) -> Any:
        return lambda place: self.cuts.append(lines[place])

    def merge_lines(self, lines: Sequence[int]) -> Iterator[tuple[int, int | None]]:
        """Every line in order, with the index of its result, or None if it is bad; --skip leaves out bad lines."""
        places = {line: place for place, line in enumerate(lines) if line not in self.why}
        for line in sorted(places.keys() | ({} if self.skip else self.why).keys()):
            yield line, places.get(line)

    def show(self, line: int, json: bool) -> None:
        """Print the empty result of a bad line."""
        print_json({"line": line, "error": self.why[line]}) if json else print()

    def tell(self, total: int) -> int:
        """Report the bad lines; returns the exit code. `total` counts all lines."""
        if self.cuts:
            many = "1 text was" if len(self.cuts) == 1 else f"{len(self.cuts):,} texts were"
            print_stderr(f"{many} cut to what the model reads at once, the first in line {self.cuts[0]}")
        if not self.why:
            return 0
        first = [self.why[line] for line in sorted(self.why)]
        if self.skip and len(first) < total:
            print_stderr(f"{len(first):,} of {total:,} lines were skipped, the first: {first[0]}")
            return 0
        for each in first[:SHOWN]:
            print_stderr(each)
        if len(first) > SHOWN:
            print_stderr(f"and {len(first) - SHOWN:,} more of {total:,} lines")
        return EXIT_DATA


def line_number(sentence: str) -> int | None:
    """The line number in a message: "texts.txt: line 3: ..." or "texts.jsonl:3: ..."."""
    found = NUMBER.search(sentence)
    return None if found is None else int(found[1] or found[2])
