"""Reading again only what is new: the cache of one session, lent to the next whose text begins alike.

    read before    Hello , who are you ?   I am a model .
    to be read     Hello , who are you ?   I am a model .   Whose ?
                   └──────────── kept ─────────────────┘    └ read ┘
"""

from collections.abc import Sequence
from itertools import takewhile

import torch

from regard.core.cache import Cache
from regard.generate.session import Session, pieces, still
from regard.heads import last


class Memory:
    """What a session of one row has read, for the next one."""

    def __init__(self) -> None:
        self.cache: Cache | None = None
        self.ids: list[int] = []

    def keep(self, session: Session) -> None:
        """The newest token of a session has been said and not read."""
        self.cache, self.ids = session.cache, session.texts[0][: session.used]

    def forget(self) -> None:
        self.cache, self.ids = None, []

    def lend(self, session: Session) -> int:
        """Let a session that has read nothing go on from here; how many tokens it need not read.

        While they are read nothing is certain: whoever is interrupted forgets.
        """
        [text], cache = session.texts, self.cache
        if cache is None or not (cache.reach or len(text) <= cache.capacity):
            return 0
        if session.window is not None and len(text) > session.window:
            return 0
        kept = alike(self.ids, text[:-1])  # the last one is always read: what comes after it is wanted
        new = torch.tensor([text[kept:]], device=session.device)
        with still(session.modules):
            if not self.back(cache, kept):
                return 0
            for part in pieces(cache, new.shape[1] - 1):
                last(session.model, new[:, :-1][:, part], cache=cache)
        session.cache, session.used, session.last = cache, len(text) - 1, new[:, -1].tolist()
        return kept

    def back(self, cache: Cache, kept: int) -> bool:
        """Forget what was read beyond the part kept; a ring has written over it, and a state sums it all up."""
        if kept == len(self.ids):
            return True
        if not kept or cache.reach:
            return False
        try:
            cache.rewind(kept)
        except ValueError:
            return False
        return True


def alike(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two texts have in common from the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
