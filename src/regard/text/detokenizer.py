"""Incremental detokenizer: text as it becomes certain, while ids arrive one by one.

One token may be a third of a character, and a decoder may hang a space on what follows. Text once emitted never
changes, and all of it together is what `decode` makes of the same ids.
"""

import codecs
from collections.abc import Callable
from typing import Protocol

HALF = "\ufffd"  # what decoders write where bytes do not make a character (yet)


class Detokenizer(Protocol):
    def put(self, id: int) -> str:
        """What can be said now that this id is known: nothing, some characters, many."""
        ...

    def flush(self) -> str:
        """What is left when nothing more comes."""
        ...


class ByteDetokenizer:
    """For tokens that are bytes: says a character when its last byte is there."""

    def __init__(self, spell: Callable[[int], bytes]) -> None:
        self.spell, self.decoder = spell, codecs.getincrementaldecoder("utf-8")("replace")

    def put(self, id: int) -> str:
        return self.decoder.decode(self.spell(id))

    def flush(self) -> str:
        return self.decoder.decode(b"", final=True)


class RollingDetokenizer:
    """For any other decoder: decodes the last ids with and without the newest, and says what it added.

    ids   ... │ said, kept as context │ not said yet
              start                   seen
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
