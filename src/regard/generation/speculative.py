"""Speculative decoding: somebody quick guesses tokens, the model reads them all at once and keeps what it would say.

    text         the  cat  sat │ on   the  mat  .       guessed, one after the other or looked up
    model says              on │ the  dog  ·    ·       after each of them, from one look at all
    kept                       │ on   the  dog          two guesses, and one token of its own

What comes out is what the model says by itself. Greedy: a guess stays if it is the likeliest. Drawn: a guess of chance
q stays with probability min(1, p/q); one that does not is replaced by a draw from max(p - q, 0), which makes the whole
a draw from p (Leviathan et al. 2023; Chen et al. 2023). A guess costs a look at one token more, not a look of its own.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard import config
from regard.core.cache import Cache, Entry
from regard.core.model import Transformer
from regard.generate.choosing import Chooser, Rule
from regard.generate.filters import BROKEN, NOTHING, draw, mixed
from regard.generate.guessing import Draft, Guess, Guesser, Lookup, check_draft
from regard.generate.limits import NO_LIMITS, Limits
from regard.generate.session import DAMAGED, Session, still

GUESS = 5
AHEAD = ("draft", "lookup", "guess")  # settings of guessing, which say nothing of what is said


class Speculation(Session):
    """A session whose rows are guessed ahead, each for itself. `guessed` and `kept` count the tokens of each row."""

    def __init__(
        self, model: Transformer, texts: Sequence[Sequence[int]], c: config.Sampling, limits: Limits = NO_LIMITS, *,
        draft: Any = None, lookup: int | None = None, guess: int = GUESS, rules: Sequence[Rule | None] = (),
    ) -> None:  # fmt: skip
        check(model, draft, lookup, guess)
        super().__init__(model, texts, c, limits)
        self.rows = []
        for row, text in enumerate(self.texts):
            own = replace(c, seed=mixed(self.seed, row))
            guesser = Draft(draft, mixed(own.seed or 0, 1)) if draft is not None else Lookup(lookup or 1)
            rule = rules[row] if rules else None
            self.rows.append(Row(model, text, own, limits, guesser, guess, rule))

    def step(self) -> list[int | None]:
        said = [row.next() if live else None for row, live in zip(self.rows, self.live, strict=True)]
        for row, id in enumerate(said):
            self.live[row] = self.live[row] and id is not None and id not in self.ends
            self.texts[row] += [] if id is None else [id]
        return said

    @property
    def guessed(self) -> list[int]:
        return [row.guessed for row in self.rows]

    @property
    def kept(self) -> list[int]:
        return [row.kept for row in self.rows]


class Row(Session):
    """One text. Its cache holds all of it but the last token, as that of any session does."""

    rings = False  # a guess that does not stay is forgotten again, and a ring cannot go back

    def __init__(
        self, model: Transformer, text: list[int], c: config.Sampling, limits: Limits, guesser: Guesser, guess: int,
        rule: Rule | None,
    ) -> None:  # fmt: skip
        super().__init__(model, [text], c, limits, rules=[rule])
        self.guesser, self.guess, self.ready = guesser, guess, deque[int | None]()
        self.left, self.guessed, self.kept = c.new, 0, 0

    def next(self) -> int | None:
        if not self.ready:
            with still(self.modules):
                full = self.cache is None or self.used == self.cache.capacity
                self.ready.extend(self.own() if full or self.cache is None else self.checked(self.cache))
        return self.ready.popleft()

    def own(self) -> list[int | None]:
        """One token after reading the text anew."""
        return self.judged(self.read(), [])

    def checked(self, cache: Cache) -> list[int | None]:
        """The guesses that stay and one token more; the cache forgets the others."""
        most = min(self.guess, cache.capacity - self.used - 1, self.left - 1)
        guesses = self.guesser.guess(self.chooser, max(most, 0), self.ends)
        ids = torch.tensor([[*self.last, *(id for id, _ in guesses)]], device=self.device)
        logits: Tensor = self.model(ids, cache=cache)
        said = self.judged(logits[0], guesses)
        self.used += len(said)
        if len(said) <= len(guesses):
            cache.rewind(self.used)
        self.guessed += len(guesses)
        self.kept += sum(id == guess for id, (guess, _) in zip(said, guesses, strict=False))
        return said

    def judged(self, logits: Tensor, guesses: list[Guess]) -> list[int | None]:  # (1 + M, V)
        """What is said, up to the first guess that does not stay; None where nothing may be said."""
        said: list[int | None] = []
        for place, (guess, chances) in enumerate([*guesses, (None, None)]):
            id = settled(self.chooser, logits[place : place + 1], guess, chances)
            if id == BROKEN:
                raise config.RunError(DAMAGED)
            said.append(None if id == NOTHING else id)
            if id == NOTHING:
                break
            self.chooser.tell([id])
            self.texts[0].append(id)
            if id != guess or id in self.ends:
                break
        self.left -= len(said)
        self.last = [said[-1] or 0]
        return said


def settled(chooser: Chooser, logits: Tensor, guess: int | None, chances: Tensor | None) -> int:  # (1, V), (V,)
    """The guess, or another token, so that it is drawn as the chooser draws; `chances` are those of the guess."""
    if guess is None or chooser.c.temperature == 0:
        return int(chooser.choose(logits))
    if not logits.amax().isfinite():
        return BROKEN
    left = chooser.left(logits)[0]
    if left.amax() == -torch.inf:
        return NOTHING
    p, [stream] = left.softmax(-1), chooser.streams
    q = torch.zeros_like(p).scatter(0, torch.tensor(guess, device=p.device), 1) if chances is None else chances.to(p)
    if torch.rand(1, generator=stream, dtype=p.dtype).item() * q[guess] < p[guess]:
        return guess
    rest = (p - q).clamp(min=0)
    return int(draw((rest if rest.any() else p)[None], [stream]))  # nothing rests where p and q are the same


def ahead(given: dict[str, Any]) -> bool:
    """Whether tokens are guessed ahead. Settings that are None are taken out."""
    for name in [name for name in AHEAD if name in given and given[name] is None]:
        del given[name]
    names = [name for name in AHEAD if name in given]
    if names == ["guess"]:
        raise config.ConfigError("guess: nobody is there to guess; name a draft model, or set lookup as in lookup=3")
    if names and (source := next((name for name in given if name.startswith("source")), None)):
        raise config.ConfigError(f"{names[0]}: no tokens are guessed for a model that reads a {source}; leave it out")
    return bool(names)


def check(model: Any, draft: Any, lookup: int | None, guess: int) -> None:
    """Refuses what cannot be guessed ahead, or guessed with."""
    if (draft is None) == (lookup is None):
        what = "neither is given" if draft is None else "both are given"
        raise config.ConfigError(f"draft and lookup: {what}; guesses come from one of the two")
    for name, number in (("guess", guess), ("lookup", lookup)):
        if number is not None and (type(number) is not int or number < 1):
            raise config.ConfigError(f"{name}: {number!r} is not a whole number of 1 or more")
    name = "lookup" if draft is None else "draft"
    if model.encoder is not None:
        raise config.ConfigError(f"{name}: this model reads one text and writes another; guesses are made for models "
                                 "that go on from a text")  # fmt: skip
    if draft is not None:
        check_draft(model, draft)
    for each, whose in ((model, "this model"), *([] if draft is None else [(draft, "the draft")])):
        if not rewinds(each):
            raise config.ConfigError(f"{name}: {whose} sums up all tokens before in a state that cannot forget the "
                                     "last ones, so no guess can be taken back; leave it out")  # fmt: skip


def rewinds(model: Any) -> bool:
    try:
        return all(isinstance(entry, Entry) for entry in model.cache(1, 1).entries)
    except ValueError:
        return True  # it does not write from left to right at all, which a session says better
