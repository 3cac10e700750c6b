"""Incremental detokenizer: emits text as soon as it is certain, while ids arrive one by one.

A token may be a part of a character, and a decoder may add a space that depends on the next token. Emitted text never
changes, and all of it together equals `decode` of the same ids.
"""

import codecs
from collections.abc import Callable
from typing import Protocol

HALF = "\ufffd"  # what decoders write for incomplete characters


class Detokenizer(Protocol):
    def put(self, id: int) -> str:
        """Add an id; returns the text that is now certain, possibly none."""
        ...

    def flush(self) -> str:
        """The remaining text at the end."""
        ...


class ByteDetokenizer:
    """Detokenizer for byte-level tokens: emits a character with its last byte."""

    def __init__(self, spell: Callable[[int], bytes]) -> None:
        self.spell, self.decoder = spell, codecs.getincrementaldecoder("utf-8")("replace")

    def put(self, id: int) -> str:
        return self.decoder.decode(self.spell(id))

    def flush(self) -> str:
        return self.decoder.decode(b"", final=True)


class RollingDetokenizer:
    """Detokenizer for any other decoder: decodes the last ids with and without the newest, and emits the difference.

    ids   ... │ emitted, as context │ not emitted yet
              start                 seen
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self.decode, self.ids, self.seen = decode, list[int](), 0

    def put(self, id: int) -> str:
        self.ids.append(id)
        new = self.news()
        if not new or new.endswith(HALF):
            return ""
        self.ids, self.seen = self.ids[self.seen :], len(self.ids) - self.seen
        return new

    def flush(self) -> str:
        new, self.seen = self.news(), len(self.ids)
        return new

    def news(self) -> str:
        return self.decode(self.ids)[len(self.decode(self.ids[: self.seen])) :]
