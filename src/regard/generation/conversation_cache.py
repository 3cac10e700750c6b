"""Conversation cache: a session reuses the KV cache of the previous one for the common prefix of their texts.

in the cache   Hello , who are you ?   I am a model .
new prompt     Hello , who are you ?   I am a model .   Whose ?
               └──────────── kept ─────────────────┘    └ prefill ┘
"""

from collections.abc import Sequence
from itertools import takewhile

import torch

from regard.config.errors import ConfigError
from regard.core.cache import KVCache
from regard.generation.session import DecodeSession, inference_mode, prefill_chunks
from regard.models.heads import last_token_logits


class ConversationCache:
    """The KV cache and the token ids of a session of one row, for the next session."""

    def __init__(self) -> None:
        self.cache: KVCache | None = None
        self.ids: list[int] = []

    def store(self, session: DecodeSession) -> None:
        """Keep the cache of a session; its newest token is not in it, since it was sampled and not fed."""
        self.cache, self.ids = session.cache, session.texts[0][: session.used]

    def forget(self) -> None:
        self.cache, self.ids = None, []

    def take(self, session: DecodeSession) -> int:
        """Give the cache to a session that has no prefill yet; returns the number of tokens that need none.

        During the prefill cache and ids do not match: a caller that is interrupted must call
        `ConversationCache.forget`.
        """
        [text], cache = session.texts, self.cache
        if cache is None or not (cache.reach or len(text) <= cache.capacity):
            return 0
        if session.window is not None and len(text) > session.window:
            return 0
        kept = common_prefix(self.ids, text[:-1])  # the last token is always fed: its logits are needed
        new = torch.tensor([text[kept:]], device=session.device)
        with inference_mode(session.modules):
            if not self.give_back(cache, kept):
                return 0
            for part in prefill_chunks(cache, new.shape[1] - 1):
                last_token_logits(session.model, new[:, :-1][:, part], cache=cache)
        session.cache, session.used, session.last = cache, len(text) - 1, new[:, -1].tolist()
        return kept

    def give_back(self, cache: KVCache, kept: int) -> bool:
        """Truncate the cache to the kept prefix. False for a ring, which overwrites slots, or a recurrent state."""
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
    """The length of the common prefix of two sequences of ids."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
