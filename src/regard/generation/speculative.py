"""Speculative decoding: candidate tokens are proposed cheaply, and the model verifies them all in one forward pass.

    text         the  cat  sat │ on   the  mat  .       candidates
    the model               on │ the  dog  ·    ·       its choice after each, from one pass
    kept                       │ on   the  dog          two candidates, and one token of its own

Candidates come from a draft model with the same vocabulary and settings, or from prompt lookup:

    lookup      ... the cat sat on │ ... then the cat ─► sat on      what followed the same tokens before

The output is distributed as without speculation. Greedy: a candidate is accepted if it is the argmax. Sampled: a
candidate of probability q is accepted with probability min(1, p/q); a rejected one is replaced by a sample from max(p -
q, 0), so that the result is a sample from p (Leviathan et al. 2023; Chen et al. 2023). A candidate costs one more token
in a forward pass, not a pass of its own.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from regard import config
from regard.core.cache import KVCache, LayerKV
from regard.core.model import Transformer
from regard.generation.conversation_cache import common_prefix
from regard.generation.limits import NO_LIMITS, GenerationLimits, context_window
from regard.generation.logits_process import NO_TOKEN, NOT_FINITE, row_seed, sample_from
from regard.generation.sampler import Sampler, TokenConstraint
from regard.generation.session import DAMAGED_LOGITS, PREFILL_CHUNK, DecodeSession, cache_bucket, inference_mode

Candidate = tuple[int, Tensor | None]  # a token, and the distribution (V,) it was sampled from; None if looked up


class CandidateGenerator(Protocol):
    """A source of candidate tokens for speculative decoding."""

    def guess(self, chooser: Sampler, most: int, ends: frozenset[int]) -> list[Candidate]:
        """Propose at most `most` next tokens for the one text of a sampler."""
        ...


class PromptLookup:
    """Prompt lookup: proposes what followed the last `size` tokens, or fewer of them, earlier in the text.

    Every run of up to `size` tokens is indexed with the position after its last occurrence.
    """

    def __init__(self, size: int) -> None:
        self.size, self.places, self.read = size, dict[tuple[int, ...], int](), 0

    def guess(self, chooser: Sampler, most: int, ends: frozenset[int]) -> list[Candidate]:
        [text] = chooser.texts
        for end in range(self.read + 1, len(text)):  # nothing follows the last token yet
            self.places |= {tuple(text[end - size : end]): end for size in range(1, min(self.size, end) + 1)}
        self.read = max(self.read, len(text) - 1)
        runs = (tuple(text[-size:]) for size in range(min(self.size, len(text)), 0, -1))
        place = next((self.places[run] for run in runs if run in self.places), len(text))
        return [(id, None) for id in text[place : place + most]]


class DraftModel:
    """Draft model: proposes tokens of a small model, sampled with the same settings and a generator of its own."""

    def __init__(self, model: Any, seed: int) -> None:
        self.model, self.modules = model, list(model.modules())
        self.follower, self.stream = IncrementalReader(model), Generator().manual_seed(seed)

    def guess(self, chooser: Sampler, most: int, ends: frozenset[int]) -> list[Candidate]:
        branch, found = chooser.copy(), list[Candidate]()
        while len(found) < most and not (found and found[-1][0] in ends):
            with inference_mode(self.modules):
                logits = fit_vocab(self.follower.logits_after(branch.texts[0]), len(chooser.barred)).to(
                    chooser.barred.device
                )
            if not logits.amax().isfinite():
                raise config.RunError(f"draft_model: {DAMAGED_LOGITS}")
            left = branch.filtered_logits(logits[None])
            if left.amax() == -torch.inf:
                break  # every token is forbidden
            chances = left.softmax(-1)
            id = int(left.argmax() if chooser.c.temperature == 0 else sample_from(chances, [self.stream]))
            found.append((id, chances[0]))
            branch.update([id])
        return found


class IncrementalReader:
    """Incremental forward passes of the draft model over a text that grows, and that loses rejected tokens again."""

    def __init__(self, model: Any) -> None:
        self.model, self.window = model, context_window(model, model.generation_limits)
        self.device = next(model.parameters()).device
        self.cache: KVCache | None = None
        self.held, self.start = list[int](), 0  # the ids in the cache: the text from `start` on

    def logits_after(self, text: Sequence[int]) -> Tensor:  # (V,)
        """The logits after a text, of which only the new tokens are fed."""
        if self.cache is None or not 0 < len(text) - self.start <= self.cache.capacity:
            self.reset_cache(len(text))
        assert self.cache is not None
        seen = list(text[self.start :])
        same = len(self.held) if self.held == seen[: len(self.held)] else common_prefix(self.held, seen)
        # at least one token is fed: its logits are wanted
        kept = min(same, len(seen) - 1)
        kept = kept if kept >= self.cache.first else 0  # tokens that attend to each other are fed together
        if kept < len(self.held):
            self.cache.truncate(kept)
        for part in torch.tensor([seen[kept:]], device=self.device).split(PREFILL_CHUNK, dim=1):
            logits: Tensor = self.model(part, cache=self.cache)
        self.held = seen
        return logits[0, -1]

    def reset_cache(self, length: int) -> None:
        """An empty cache, for the newest part of a text that exceeds the context window."""
        kept = length if self.window is None or length <= self.window else max(self.window // 2, 1)
        room = cache_bucket(kept) if self.window is None else min(cache_bucket(kept), self.window)
        self.cache, self.held, self.start = self.model.cache(1, room), [], length - kept


def fit_vocab(logits: Tensor, vocab: int) -> Tensor:  # (v,) -> (V,)
    """Logits cut or padded to the vocabulary of the model: one vocabulary may be padded to different sizes."""
    return F.pad(logits[:vocab], (0, max(vocab - len(logits), 0)), value=-torch.inf)


def check_draft_model(model: Any, draft: Any) -> None:
    """Check that a draft model is a decoder with the vocabulary of the model."""
    if not hasattr(draft, "generation_limits") or not hasattr(draft, "output_tokenizer"):
        raise config.ConfigError(f"draft_model: expected a model, as regard.load gives it, got {type(draft).__name__}")
    if draft.encoder is not None:
        raise config.ConfigError("draft_model: it is an encoder-decoder; choose a "
                                 "decoder")  # fmt: skip
    if model.output_tokenizer is None or draft.output_tokenizer is None:
        ours, theirs = (int(each.head.out_features) for each in (model, draft))
        same, differ = ours == theirs, f"it has {theirs:,} tokens, and the model {ours:,}"
    else:
        same, differ = vocabulary_of(model) == vocabulary_of(draft), "its tokens are not those of the model"
    if not same:
        raise config.ConfigError(f"draft_model: {differ}; a draft model needs the model's vocabulary; choose a smaller "
                                 "model of the same family")  # fmt: skip


def vocabulary_of(model: Any) -> dict[str, int]:
    found: dict[str, int] = model.output_tokenizer.inner.get_vocab()
    return found


PROPOSED = 5  # candidates in a pass
SPECULATION_SETTINGS = ("draft_model", "prompt_lookup", "num_speculative_tokens")  # they change no text


class SpeculativeSession(DecodeSession):
    """A decode session with speculative decoding, each row by itself. `guessed` and `kept` count the candidates of each
    row, proposed and accepted."""

    def __init__(
        self,
        model: Transformer,
        texts: Sequence[Sequence[int]],
        c: config.SamplingParams,
        limits: GenerationLimits = NO_LIMITS,
        *,
        draft_model: Any = None,
        prompt_lookup: int | None = None,
        num_speculative_tokens: int = PROPOSED,
        rules: Sequence[TokenConstraint | None] = (),
    ) -> None:
        check_speculation(model, draft_model, prompt_lookup, num_speculative_tokens)
        super().__init__(model, texts, c, limits)
        self.rows = []
        for row, text in enumerate(self.texts):
            own = replace(c, seed=row_seed(self.seed, row))
            drafts = None if draft_model is None else DraftModel(draft_model, row_seed(own.seed or 0, 1))
            rule = rules[row] if rules else None
            self.rows.append(
                SpeculativeRow(
                    model, text, own, limits, drafts or PromptLookup(prompt_lookup or 1), num_speculative_tokens, rule
                )
            )

    def step(self) -> list[int | None]:
        said = [row.next() if live else None for row, live in zip(self.rows, self.active, strict=True)]
        for row, id in enumerate(said):
            self.active[row] = self.active[row] and id is not None and id not in self.ends
            self.texts[row] += [] if id is None else [id]
        return said

    @property
    def guessed(self) -> list[int]:
        return [row.guessed for row in self.rows]

    @property
    def kept(self) -> list[int]:
        return [row.kept for row in self.rows]


class SpeculativeRow(DecodeSession):
    """Speculative decoding of one text. As in any session, its cache holds all tokens but the last."""

    rings = False  # rejected candidates are truncated, which a ring cannot do

    def __init__(
        self,
        model: Transformer,
        text: list[int],
        c: config.SamplingParams,
        limits: GenerationLimits,
        guesser: CandidateGenerator,
        guess: int,
        rule: TokenConstraint | None,
    ) -> None:
        super().__init__(model, [text], c, limits, rules=[rule])
        self.guesser, self.guess, self.ready = guesser, guess, deque[int | None]()
        self.left, self.guessed, self.kept = c.max_new_tokens, 0, 0

    def next(self) -> int | None:
        if not self.ready:
            with inference_mode(self.modules):
                full = self.cache is None or self.used == self.cache.capacity
                self.ready.extend(self.reread() if full or self.cache is None else self.verify_guesses(self.cache))
        return self.ready.popleft()

    def reread(self) -> list[int | None]:
        """Prefill a new cache, and choose one token."""
        return self.accept_guesses(self.prefill(), [])

    def verify_guesses(self, cache: KVCache) -> list[int | None]:
        """Verify the candidates in one forward pass: the accepted ones and one token more. The others are truncated."""
        # the newest token is fed with the candidates, and each pass gives one token more than it accepts
        most = min(self.guess, cache.capacity - self.used - 1, self.left - 1)
        guesses = self.guesser.guess(self.sampler, max(most, 0), self.ends)
        ids = torch.tensor([[*self.last, *(id for id, _ in guesses)]], device=self.device)
        logits: Tensor = self.model(ids, cache=cache)
        said = self.accept_guesses(logits[0], guesses)
        self.used += len(said)
        if len(said) <= len(guesses):
            cache.truncate(self.used)
        self.guessed += len(guesses)
        self.kept += sum(id == guess for id, (guess, _) in zip(said, guesses, strict=False))
        return said

    def accept_guesses(self, logits: Tensor, guesses: list[Candidate]) -> list[int | None]:  # (1 + M, V)
        """The chosen tokens, up to the first rejected candidate; None where every token is forbidden."""
        said: list[int | None] = []
        for place, (guess, chances) in enumerate([*guesses, (None, None)]):
            id = accept_or_resample(self.sampler, logits[place : place + 1], guess, chances)
            if id == NOT_FINITE:
                raise config.RunError(DAMAGED_LOGITS)
            said.append(None if id == NO_TOKEN else id)
            if id == NO_TOKEN:
                break
            self.sampler.update([id])
            self.texts[0].append(id)
            if id != guess or id in self.ends:
                break
        self.left -= len(said)
        self.last = [said[-1] or 0]
        return said


def accept_or_resample(
    chooser: Sampler, logits: Tensor, guess: int | None, chances: Tensor | None
) -> int:  # (1, V), (V,)
    """The candidate, or another token in its place, distributed as the sampler samples; `chances` is the draft's
    distribution."""
    if guess is None or chooser.c.temperature == 0:
        return int(chooser.choose(logits))
    if not logits.amax().isfinite():
        return NOT_FINITE
    left = chooser.filtered_logits(logits)[0]
    if left.amax() == -torch.inf:
        return NO_TOKEN
    p, [stream] = left.softmax(-1), chooser.generators
    q = torch.zeros_like(p).scatter(0, torch.tensor(guess, device=p.device), 1) if chances is None else chances.to(p)
    if torch.rand(1, generator=stream, dtype=p.dtype).item() * q[guess] < p[guess]:
        return guess
    rest = (p - q).clamp(min=0)
    return int(sample_from((rest if rest.any() else p)[None], [stream]))  # no mass is left where p and q are equal


def wants_speculation(given: dict[str, Any]) -> bool:
    """Whether the settings ask for speculative decoding. Settings that are None are removed."""
    for name in [name for name in SPECULATION_SETTINGS if name in given and given[name] is None]:
        del given[name]
    names = [name for name in SPECULATION_SETTINGS if name in given]
    if names == ["num_speculative_tokens"]:
        raise config.ConfigError(
            "num_speculative_tokens: no drafting method is set; set draft_model, or prompt_lookup as in prompt_lookup=3"
        )
    if names and (source := next((name for name in given if name.startswith("source")), None)):
        raise config.ConfigError(f"{names[0]}: speculative decoding does not take a {source}; leave it out")
    return bool(names)


def check_speculation(model: Any, draft: Any, lookup: int | None, guess: int) -> None:
    """Refuse settings and models that speculative decoding does not support."""
    if (draft is None) == (lookup is None):
        what = "neither is given" if draft is None else "both are given"
        raise config.ConfigError(f"draft_model and prompt_lookup: {what}; tokens are proposed by one of the two")
    for name, number in (("num_speculative_tokens", guess), ("prompt_lookup", lookup)):
        if number is not None and (type(number) is not int or number < 1):
            raise config.ConfigError(f"{name}: {number!r} is not a whole number of 1 or more")
    name = "prompt_lookup" if draft is None else "draft_model"
    if model.encoder is not None:
        raise config.ConfigError(f"{name}: this model is an encoder-decoder; speculative decoding needs a "
                                 "decoder")  # fmt: skip
    if draft is not None:
        check_draft_model(model, draft)
    for each, whose in ((model, "this model"), *([] if draft is None else [(draft, "the draft model")])):
        if not can_rewind(each):
            raise config.ConfigError(f"{name}: {whose} has a cache that cannot be rolled back to reject draft "
                                     "tokens, such as a recurrent state; leave it out")  # fmt: skip


def can_rewind(model: Any) -> bool:
    try:
        return all(isinstance(entry, LayerKV) for entry in model.cache(1, 1).entries)
    except config.ConfigError:
        return True  # not an autoregressive model, for which the session has a better message
