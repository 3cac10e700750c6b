"""Sampler: chooses one token a row, for rows that share their settings, and keeps the token history of each.

    logits (B, V) ── choose ──► one id a row ──► update ──► seen, counted, forbidden
          ▲                                        │
          └────────────── the next step ◄──────────┘

Each row has its own random generator, so its tokens do not depend on the other rows.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Protocol, Self

import torch
from torch import Generator, Tensor

from regard import config
from regard.generation.logits_process import (
    TokenHistory,
    greedy_tokens,
    process_logits,
    repeated_ngrams,
    row_generators,
    sample_tokens,
    seen_tokens,
)

NOTHING_ALLOWED = "every token is forbidden: use the tokenizer of the training, or forbid fewer tokens"


class TokenConstraint(Protocol):
    """A constraint on the tokens of one row, advanced by each token that is chosen."""

    def allowed_tokens(self) -> Tensor:
        """Mask (V,) on the CPU of the ids that may come next, an end token among them where the text may end."""
        ...

    def advance(self, id: int) -> None: ...

    def copy(self) -> "TokenConstraint": ...


class Sampler:
    """Samples one token for each row, and keeps the token history that the logits processors need.

    `barred` (V,) ids are never sampled, those in `begin` not as the first token, and the `ends` not before
    `min_new_tokens`. `is_greedy` is True where sampling is an argmax without processors.
    """

    def __init__(
        self,
        c: config.SamplingParams,
        texts: Sequence[Sequence[int]],
        barred: Tensor,
        *,
        ends: frozenset[int] = frozenset(),
        seed: int,
        rules: Sequence[TokenConstraint | None] = (),
        begin: frozenset[int] = frozenset(),
    ) -> None:
        if bool(barred.all()):
            raise config.ConfigError(NOTHING_ALLOWED)
        self.c, self.barred, vocab, device = c, barred, len(barred), barred.device
        self.texts, self.generated_count = [list(text) for text in texts], [0] * len(texts)
        self.rules: list[TokenConstraint | None] = list(rules) or [None] * len(texts)
        self.generators = row_generators(seed, len(texts))
        self.over, self.ends = ends, id_mask(ends, vocab).to(device) if ends and c.min_new_tokens else None
        self.begin = id_mask(begin, vocab).to(device) if begin else None  # (V,)
        self.added = bias_vector(c.logit_bias, vocab).to(device) if c.logit_bias else None  # (V,)
        self.seen_tokens = (
            seen_tokens(pad_left(self.texts, device), vocab) if c.repetition_penalty != 1 else None
        )  # (B, V)
        penalised = c.frequency_penalty != 0 or c.presence_penalty != 0
        self.counts = torch.zeros(len(texts), vocab, device=device) if penalised else None  # (B, V)
        apart = (self.ends, self.begin, self.added, self.seen_tokens, self.counts, c.no_repeat_ngram_size, *self.rules)
        self.is_greedy = c.temperature == 0 and all(one is None for one in apart)

    def choose(self, logits: Tensor) -> Tensor:  # (B, V) -> (B,)
        """One id a row, on the device of the logits: -1 where they are not finite, -2 where every token is forbidden.

        It synchronises with the device only if a constraint is evaluated.
        """
        if self.is_greedy:
            return greedy_tokens(logits, self.barred)
        return sample_tokens(logits.masked_fill(self.barred, -torch.inf), self.c, self.generators, self.memory())

    def filtered_logits(self, logits: Tensor) -> Tensor:  # (B, V)
        """The logits after all processors: their softmax is the distribution that is sampled."""
        return process_logits(logits.masked_fill(self.barred, -torch.inf), self.c, self.memory())

    def update(self, ids: Sequence[int | None]) -> None:
        """Append the chosen ids, in order of the rows; None for a row that has ended."""
        said = [(row, id) for row, id in enumerate(ids) if id is not None]
        for row, id in said:
            self.generated_count[row] += 1
            self.texts[row].append(id)
            if (rule := self.rules[row]) is not None:
                rule.advance(id)
                self.rules[row] = None if id in self.over else rule  # a finished text needs no constraint
        if not said or self.seen_tokens is None and self.counts is None:
            return
        rows, new = torch.tensor(said, device=self.barred.device).unbind(1)
        if self.seen_tokens is not None:
            self.seen_tokens[rows, new] = True
        if self.counts is not None:
            self.counts[rows, new] += 1

    def memory(self) -> TokenHistory:
        """The token history for the logits processors."""
        return TokenHistory(
            seen=self.seen_tokens, counts=self.counts, added=self.added, forbidden=self.forbidden_tokens()
        )

    def forbidden_tokens(self) -> dict[str, Tensor]:  # (B, V) each
        found: dict[str, Tensor] = {}
        if self.c.no_repeat_ngram_size is not None:
            found["no_repeat_ngram_size"] = repeated_ngrams(
                pad_left(self.texts, self.barred.device), self.c.no_repeat_ngram_size, len(self.barred)
            )
        if self.ends is not None and min(self.generated_count) < self.c.min_new_tokens:
            found["min_new_tokens"] = self.ends & self.rows(
                made < self.c.min_new_tokens for made in self.generated_count
            )
        if self.begin is not None and not all(self.generated_count):
            found["begin"] = self.begin & self.rows(made == 0 for made in self.generated_count)
        if any(rule is not None for rule in self.rules):
            every = torch.ones(len(self.barred), dtype=torch.bool)
            allowed = torch.stack([every if rule is None else rule.allowed_tokens() for rule in self.rules])
            found["json_schema" if self.c.json_schema is not None else "regex"] = ~allowed.to(self.barred.device)
        return found

    def rows(self, claims: Iterable[bool]) -> Tensor:  # (B, 1)
        return torch.tensor(list(claims), device=self.barred.device)[:, None]

    def copy(self) -> Self:
        """A copy with the same history, and generators in the same state."""
        return self.branch(range(len(self.texts)))

    def branch(self, rows: Sequence[int]) -> Self:
        """A copy in which row i is what row rows[i] is here."""
        other, chosen = copy(self), [self.rules[row] for row in rows]
        other.texts, other.generated_count = (
            [list(self.texts[row]) for row in rows],
            [self.generated_count[row] for row in rows],
        )
        other.rules = [None if rule is None else rule.copy() for rule in chosen]
        other.generators = [clone_generator(self.generators[row]) for row in rows]
        other.seen_tokens, other.counts = (
            None if table is None else table[list(rows)] for table in (self.seen_tokens, self.counts)
        )
        return other

    def reseed(self, seed: int) -> None:
        """New random generators, one for each row."""
        self.generators = row_generators(seed, len(self.texts))


def clone_generator(stream: Generator) -> Generator:
    """A copy of a generator in the same state."""
    other = Generator()
    other.set_state(stream.get_state())
    return other


def pad_left(texts: Sequence[Sequence[int]], device: torch.device) -> Tensor:  # (B, N)
    """All texts as one tensor, padded on the left with -1."""
    longest = max(map(len, texts), default=0)
    rows = [[-1] * (longest - len(text)) + list(text) for text in texts]
    return torch.tensor(rows, dtype=torch.long, device=device)


def id_mask(ids: Iterable[int], vocab: int) -> Tensor:  # (V,)
    """Mask (V,) that is True at these ids."""
    marks = torch.zeros(vocab, dtype=torch.bool)
    marks[[id for id in ids if id < vocab]] = True
    return marks


def bias_vector(bias: Sequence[config.LogitBias], vocab: int) -> Tensor:  # (V,)
    """Logit bias as a vector: what is added to the logit of each token."""
    added = torch.zeros(vocab)
    for nudge in bias:
        if nudge.token_id >= vocab:
            raise config.ConfigError(f"logit_bias: token {nudge.token_id} is outside the model's vocabulary of "
                                     f"{vocab}; use an id of its tokenizer")  # fmt: skip
        added[nudge.token_id] = nudge.bias
    return added
