"""A chooser: rows that share their settings, and what they remember of their texts in order to choose.

    logits (B, V) ── choose ──► one id a row ──► tell ──► seen, counted, never again
          ▲                                        │
          └────────────── the next step ◄──────────┘

Each row has random numbers of its own, so what it says does not depend on its neighbours.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Protocol, Self

import torch
from torch import Generator, Tensor

from regard import config
from regard.generate.filters import Memory, choose, filtered, likeliest, mentioned, repeated, streams

SILENT = "no text can be said: all tokens are forbidden; use the tokenizer of the training, or forbid less"


class Rule(Protocol):
    """Constrains what one row may say, and hears what it said."""

    def allowed(self) -> Tensor:
        """(V,) bool on the CPU: ids that may come next, an end token among them where the text may end."""
        ...

    def tell(self, id: int) -> None: ...

    def copy(self) -> "Rule": ...


class Chooser:
    """Chooses one token for each row, and remembers what it is told.

    `barred` (V,) ids are never said, those in `begin` not as the first token, and the `ends` not before the shortest
    text that is wanted. Choosing is `plain` where it is greedy and has nothing to remember.
    """

    def __init__(
        self, c: config.Sampling, texts: Sequence[Sequence[int]], barred: Tensor, *, ends: frozenset[int] = frozenset(),
        seed: int, rules: Sequence[Rule | None] = (), begin: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        if bool(barred.all()):
            raise config.ConfigError(SILENT)
        self.c, self.barred, vocab, device = c, barred, len(barred), barred.device
        self.texts, self.made = [list(text) for text in texts], [0] * len(texts)
        self.rules: list[Rule | None] = list(rules) or [None] * len(texts)
        self.streams = streams(seed, len(texts))
        self.over, self.ends = ends, marked(ends, vocab).to(device) if ends and c.shortest else None
        self.begin = marked(begin, vocab).to(device) if begin else None  # (V,)
        self.added = nudged(c.bias, vocab).to(device) if c.bias else None  # (V,)
        self.seen = mentioned(before(self.texts, device), vocab) if c.repetition != 1 else None  # (B, V)
        penalised = c.frequency != 0 or c.presence != 0
        self.counts = torch.zeros(len(texts), vocab, device=device) if penalised else None  # (B, V)
        apart = (self.ends, self.begin, self.added, self.seen, self.counts, c.no_repeat, *self.rules)
        self.plain = c.temperature == 0 and all(one is None for one in apart)

    def choose(self, logits: Tensor) -> Tensor:  # (B, V) -> (B,)
        """One id a row, on the device of the logits: -1 where they are not finite, -2 where nothing may be said.

        Waits for the device only if a rule has to be asked.
        """
        if self.plain:
            return likeliest(logits, self.barred)
        return choose(logits.masked_fill(self.barred, -torch.inf), self.c, self.streams, self.memory())

    def left(self, logits: Tensor) -> Tensor:  # (B, V)
        """The logits that are drawn from, after all filters: their softmax are the chances."""
        return filtered(logits.masked_fill(self.barred, -torch.inf), self.c, self.memory())

    def tell(self, ids: Sequence[int | None]) -> None:
        """What the rows said, in order; None where one has ended."""
        said = [(row, id) for row, id in enumerate(ids) if id is not None]
        for row, id in said:
            self.made[row] += 1
            self.texts[row].append(id)
            if (rule := self.rules[row]) is not None:
                rule.tell(id)
                self.rules[row] = None if id in self.over else rule  # a text that has ended keeps no rule
        if not said or self.seen is None and self.counts is None:
            return
        rows, new = torch.tensor(said, device=self.barred.device).unbind(1)
        if self.seen is not None:
            self.seen[rows, new] = True
        if self.counts is not None:
            self.counts[rows, new] += 1

    def memory(self) -> Memory:
        """What the filters ask of the past."""
        return Memory(seen=self.seen, counts=self.counts, added=self.added, forbidden=self.forbidden())

    def forbidden(self) -> dict[str, Tensor]:  # (B, V) each
        found: dict[str, Tensor] = {}
        if self.c.no_repeat is not None:
            found["no_repeat"] = repeated(before(self.texts, self.barred.device), self.c.no_repeat, len(self.barred))
        if self.ends is not None and min(self.made) < self.c.shortest:
            found["shortest"] = self.ends & self.rows(made < self.c.shortest for made in self.made)
        if self.begin is not None and not all(self.made):
            found["begin"] = self.begin & self.rows(made == 0 for made in self.made)
        if any(rule is not None for rule in self.rules):
            every = torch.ones(len(self.barred), dtype=torch.bool)
            allowed = torch.stack([every if rule is None else rule.allowed() for rule in self.rules])
            found["schema" if self.c.schema is not None else "regex"] = ~allowed.to(self.barred.device)
        return found

    def rows(self, claims: Iterable[bool]) -> Tensor:  # (B, 1)
        return torch.tensor(list(claims), device=self.barred.device)[:, None]

    def copy(self) -> Self:
        """A branch: the same memory, and its own random numbers from the same state on."""
        return self.branch(range(len(self.texts)))

    def branch(self, rows: Sequence[int]) -> Self:
        """A copy in which row i is what row rows[i] is here."""
        other, chosen = copy(self), [self.rules[row] for row in rows]
        other.texts, other.made = [list(self.texts[row]) for row in rows], [self.made[row] for row in rows]
        other.rules = [None if rule is None else rule.copy() for rule in chosen]
        other.streams = [again(self.streams[row]) for row in rows]
        other.seen, other.counts = (None if table is None else table[list(rows)] for table in (self.seen, self.counts))
        return other

    def reseed(self, seed: int) -> None:
        """Other random numbers from here on, for each row its own."""
        self.streams = streams(seed, len(self.texts))


def again(stream: Generator) -> Generator:
    """The same random numbers from here on."""
    other = Generator()
    other.set_state(stream.get_state())
    return other


def before(texts: Sequence[Sequence[int]], device: torch.device) -> Tensor:  # (B, N)
    """All texts as one table, -1 before they begin."""
    longest = max(map(len, texts), default=0)
    rows = [[-1] * (longest - len(text)) + list(text) for text in texts]
    return torch.tensor(rows, dtype=torch.long, device=device)


def marked(ids: Iterable[int], vocab: int) -> Tensor:  # (V,)
    """True for these tokens."""
    marks = torch.zeros(vocab, dtype=torch.bool)
    marks[[id for id in ids if id < vocab]] = True
    return marks


def nudged(bias: Sequence[config.Nudge], vocab: int) -> Tensor:  # (V,)
    """What is added to the logit of each token."""
    added = torch.zeros(vocab)
    for nudge in bias:
        if nudge.id >= vocab:
            raise config.ConfigError(f"bias: token {nudge.id} is outside the model's vocabulary of {vocab}; use an id "
                                     "of its tokenizer")  # fmt: skip
        added[nudge.id] = nudge.add
    return added
