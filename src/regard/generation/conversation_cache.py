"""Conversation cache: a session takes over the KV cache of the one before it, as far as their texts begin alike.

read before    Hello , who are you ?   I am a model .
to be read     Hello , who are you ?   I am a model .   Whose ?
               └──────────── kept ─────────────────┘    └ read ┘
"""

from collections.abc import Sequence
from itertools import takewhile

import torch

from regard.config.errors import ConfigError
from regard.core.cache import KVCache
from regard.generation.session import DecodeSession, inference_mode, prefill_chunks
from regard.models.heads import last_token_logits


class ConversationCache:
    """What a session of one row has read, for the next one."""

    def __init__(self) -> None:
        self.cache: KVCache | None = None
        self.ids: list[int] = []

    def store(self, session: DecodeSession) -> None:
        """The newest token of a session has been said and not read."""
        self.cache, self.ids = session.cache, session.texts[0][: session.used]

    def forget(self) -> None:
        self.cache, self.ids = None, []

    def take(self, session: DecodeSession) -> int:
        """Let a session that has read nothing go on from here; how many tokens it need not read.

        While it reads, cache and ids do not match: a caller that is interrupted must call `ConversationCache.forget`.
        """
        [text], cache = session.texts, self.cache
        if cache is None or not (cache.reach or len(text) <= cache.capacity):
            return 0
        if session.window is not None and len(text) > session.window:
            return 0
        kept = common_prefix(self.ids, text[:-1])  # the last one is always read: what comes after it is wanted
        new = torch.tensor([text[kept:]], device=session.device)
        with inference_mode(session.modules):
            if not self.give_back(cache, kept):
                return 0
            for part in prefill_chunks(cache, new.shape[1] - 1):
                last_token_logits(session.model, new[:, :-1][:, part], cache=cache)
        session.cache, session.used, session.last = cache, len(text) - 1, new[:, -1].tolist()
        return kept

    def give_back(self, cache: KVCache, kept: int) -> bool:
        """Forget what was read beyond the part kept; a ring has written over it, and a state sums it all up."""
        if kept == len(self.ids):
            return True
        if not kept or cache.reach:
            return False
        try:
            cache.truncate(kept)
        except ConfigError:
            return False
        return True


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two texts have in common from the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
