"""Where guesses come from: a small model that reads along, or the text itself, which often says a thing again.

    draft       another model with the same vocabulary says the next tokens, by the same settings
    lookup      ... the cat sat on │ ... then the cat ─► sat on      what came after the same words before
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from regard import config
from regard.core.cache import Cache
from regard.generate.choosing import Chooser
from regard.generate.filters import draw
from regard.generate.limits import window
from regard.generate.reread import alike
from regard.generate.session import DAMAGED, PIECE, bucket, still

Guess = tuple[int, Tensor | None]  # a token, and the chances (V,) by which it was drawn; None if it was not


class Guesser(Protocol):
    def guess(self, chooser: Chooser, most: int, ends: frozenset[int]) -> list[Guess]:
        """At most so many tokens that may come next in the one text of a chooser."""
        ...


class Lookup:
    """Guesses what came after the last `size` tokens when they stood in the text before; or after fewer of them.

    Every run of up to `size` tokens is remembered with the place behind the last time that it was there.
    """

    def __init__(self, size: int) -> None:
        self.size, self.places, self.read = size, dict[tuple[int, ...], int](), 0

    def guess(self, chooser: Chooser, most: int, ends: frozenset[int]) -> list[Guess]:
        [text] = chooser.texts
        for end in range(self.read + 1, len(text)):  # the last token has nothing behind it yet
            self.places |= {tuple(text[end - size : end]): end for size in range(1, min(self.size, end) + 1)}
        self.read = max(self.read, len(text) - 1)
        runs = (tuple(text[-size:]) for size in range(min(self.size, len(text)), 0, -1))
        place = next((self.places[run] for run in runs if run in self.places), len(text))
        return [(id, None) for id in text[place : place + most]]


class Draft:
    """Guesses what a small model would say, by the same settings and with random numbers of its own."""

    def __init__(self, model: Any, seed: int) -> None:
        self.model, self.modules = model, list(model.modules())
        self.follower, self.stream = Follower(model), Generator().manual_seed(seed)

    def guess(self, chooser: Chooser, most: int, ends: frozenset[int]) -> list[Guess]:
        branch, found = chooser.copy(), list[Guess]()
        while len(found) < most and not (found and found[-1][0] in ends):
            with still(self.modules):
                logits = fitted(self.follower.after(branch.texts[0]), len(chooser.barred)).to(chooser.barred.device)
            if not logits.amax().isfinite():
                raise config.RunError(f"draft: {DAMAGED}")
            left = branch.left(logits[None])
            if left.amax() == -torch.inf:
                break  # nothing may be said
            chances = left.softmax(-1)
            id = int(left.argmax() if chooser.c.temperature == 0 else draw(chances, [self.stream]))
            found.append((id, chances[0]))
            branch.tell([id])
        return found


class Follower:
    """A model that reads along with a text which grows, and from time to time takes something back."""

    def __init__(self, model: Any) -> None:
        self.model, self.window = model, window(model, model.limits)
        self.device = next(model.parameters()).device
        self.cache: Cache | None = None
        self.held, self.start = list[int](), 0  # what the cache holds: the text from `start` on

    def after(self, text: Sequence[int]) -> Tensor:  # (V,)
        """The logits after a text, of which only the new part is read."""
        if self.cache is None or not 0 < len(text) - self.start <= self.cache.capacity:
            self.anew(len(text))
        assert self.cache is not None
        seen = list(text[self.start :])
        same = len(self.held) if self.held == seen[: len(self.held)] else alike(self.held, seen)
        kept = min(same, len(seen) - 1)
        kept = kept if kept >= self.cache.first else 0  # tokens that see each other are read together
        if kept < len(self.held):
            self.cache.rewind(kept)
        for part in torch.tensor([seen[kept:]], device=self.device).split(PIECE, dim=1):
            logits: Tensor = self.model(part, cache=self.cache)
        self.held = seen
        return logits[0, -1]

    def anew(self, length: int) -> None:
        """An empty cache, for the newest part of a text that is longer than what the model reads at once."""
        kept = length if self.window is None or length <= self.window else max(self.window // 2, 1)
        room = bucket(kept) if self.window is None else min(bucket(kept), self.window)
        self.cache, self.held, self.start = self.model.cache(1, room), [], length - kept


def fitted(logits: Tensor, vocab: int) -> Tensor:  # (v,) -> (V,)
    """As many as the model's own: tables of one vocabulary may be padded to different sizes."""
    return F.pad(logits[:vocab], (0, max(vocab - len(logits), 0)), value=-torch.inf)


def check_draft(model: Any, draft: Any) -> None:
    """A draft goes on from texts, in the same tokens."""
    if not hasattr(draft, "limits") or not hasattr(draft, "speaks"):
        raise config.ConfigError(f"draft: expected a model, as regard.load gives it, got {type(draft).__name__}")
    if draft.encoder is not None:
        raise config.ConfigError("draft: it reads one text and writes another; name a model that goes on from a text")
    if model.speaks is None or draft.speaks is None:
        ours, theirs = (int(each.head.out_features) for each in (model, draft))
        same, differ = ours == theirs, f"it has {theirs:,} tokens, and the model {ours:,}"
    else:
        same, differ = words(model) == words(draft), "its tokens are not those of the model"
    if not same:
        raise config.ConfigError(f"draft: {differ}; it guesses in the model's own words, so name a smaller model of "
                                 "the same family")  # fmt: skip


def words(model: Any) -> dict[str, int]:
    found: dict[str, int] = model.speaks.inner.get_vocab()
    return found
