"""Terminal output: control characters in text of others are shown as ^[ and the like, never obeyed.

A file name, a tensor's name, a template's message, a column or the text of a model may hold characters that a terminal
takes for commands: move the cursor, change the title, answer as if typed, write from right to left. `filter_terminal`
escapes them in all that a command writes to a terminal; what goes to a file or a pipe is left as it is.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# C0 but for tab and line feed, delete, C1, and the marks that turn the direction of a text
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# Our own: faint and plain, on stderr; and what progress bars write, a line begun again or the cursor a line up
STYLE = re.compile("(\x1b\\[[02]m)")
MOVES = re.compile("(?:\n|\x1b\\[A)*")


def escape_controls(text: str) -> str:
    """The text with every character that commands a terminal made visible; line feeds and tabs stay."""
    return CONTROLS.sub(lambda found: f"^{chr(ord(found[0]) ^ 64)}" if found[0] < "\x80" else "\ufffd", text)


class TerminalFilter:
    """A stream to a terminal that shows control characters; with `moves`, lines may be begun again and be faint."""

    def __init__(self, stream: Any, moves: bool = False) -> None:
        self.stream, self.moves = stream, moves

    def write(self, text: str) -> int:
        self.stream.write(self.escape(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def escape(self, text: str) -> str:
        if not self.moves or not CONTROLS.search(text):
            return escape_controls(text)
        if MOVES.fullmatch(text):
            return text
        inner = text.strip("\r")
        start = len(text) - len(text.lstrip("\r"))
        parts = STYLE.split(inner)  # every second one is our own
        plain = "".join(part if place % 2 else escape_controls(part) for place, part in enumerate(parts))
        return text[:start] + plain + text[start + len(inner) :]

    def __getattr__(self, name: str) -> Any:  # isatty, flush, fileno, encoding, ...
        return getattr(self.stream, name)


@contextmanager
def filter_terminal() -> Iterator[None]:
    """Show control characters in all that is written to a terminal, by whichever library, while the block lasts."""
    before = sys.stdout, sys.stderr
    for name, stream, moves in (("stdout", before[0], False), ("stderr", before[1], True)):
        if stream is not None and not isinstance(stream, TerminalFilter) and stream.isatty():
            setattr(sys, name, TerminalFilter(stream, moves))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def unfiltered_stream(stream: Any) -> Any:
    """The terminal itself, for a library that draws on it; what it is given to draw must be escaped first."""
    return stream.stream if isinstance(stream, TerminalFilter) else stream
