"""Terminal output: control characters in foreign text are shown as ^[ and the like, never executed.

A file name, a tensor's name, a template's message, a column or generated text may contain characters that a terminal
interprets as commands: move the cursor, change the title, answer as if typed, write from right to left.
`filter_terminal` escapes them in all terminal output of a command; files and pipes get the text unchanged.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# C0 except tab and line feed, delete, C1, and text direction marks
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# Allowed: faint and plain on stderr; and of progress bars carriage return and cursor up
STYLE = re.compile("(\x1b\\[[02]m)")
MOVES = re.compile("(?:\n|\x1b\\[A)*")


def escape_controls(text: str) -> str:
    """Escape every control character except line feed and tab."""
    return CONTROLS.sub(lambda found: f"^{chr(ord(found[0]) ^ 64)}" if found[0] < "\x80" else "\ufffd", text)


class TerminalFilter:
    """A terminal stream that escapes control characters; with `moves`, carriage returns and faint text are allowed."""

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
        parts = STYLE.split(inner)  # every second part is allowed
        plain = "".join(part if place % 2 else escape_controls(part) for place, part in enumerate(parts))
        return text[:start] + plain + text[start + len(inner) :]

    def __getattr__(self, name: str) -> Any:  # isatty, flush, fileno, encoding, ...
        return getattr(self.stream, name)


@contextmanager
def filter_terminal() -> Iterator[None]:
    """Escape control characters in all terminal output, of any library, within the block."""
    before = sys.stdout, sys.stderr
    for name, stream, moves in (("stdout", before[0], False), ("stderr", before[1], True)):
        if stream is not None and not isinstance(stream, TerminalFilter) and stream.isatty():
            setattr(sys, name, TerminalFilter(stream, moves))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def unfiltered_stream(stream: Any) -> Any:
    """The terminal itself, for a library that draws on it; its input must be escaped first."""
    return stream.stream if isinstance(stream, TerminalFilter) else stream
