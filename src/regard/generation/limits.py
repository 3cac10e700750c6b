"""Limits of generation: the context window, barred and end tokens, and checks of prompts against the model."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard import config
from regard.core.cache import KVCache, LayerKV
from regard.core.masks import CAUSAL, And, Mask, Window, mask
from regard.core.model import Transformer

# Position encodings that depend on distance alone, and those that are defined at every absolute position.
FAR = (
    config.NoPosition,
    config.RotaryPosition,
    config.AlibiPosition,
    config.T5Bias,
    config.ShawPosition,
    config.RelativeBias,
)
FREE = (config.SinusoidalPosition,)


@dataclass(frozen=True, kw_only=True)
class GenerationLimits:
    """The model's limits on generation: `context` tokens at once, ids below `known`, `ends` as end tokens.

    Ids in `never` are barred, those in `begin` as the first token. Texts of a beam search begin with the id `first` and
    end with `last` where they reach the token limit.
    """

    context: int | None = None
    known: int | None = None
    ends: frozenset[int] = frozenset()
    never: frozenset[int] = frozenset()
    begin: frozenset[int] = frozenset()
    first: int | None = None
    last: int | None = None


NO_LIMITS = GenerationLimits()


def context_window(model: Transformer, limits: GenerationLimits) -> int | None:
    """The largest number of tokens in one forward pass, by the model's positions and its training context."""
    return trunk_context(model.c.trunk, limits)


def trunk_context(trunk: config.Trunk | config.RecurrentStack, limits: GenerationLimits) -> int | None:
    """The context window of one trunk: an encoder may have a longer one than its decoder."""
    if isinstance(trunk, config.RecurrentStack):  # a recurrent state has no limit
        return None
    position, lengths = trunk.position, [] if limits.context is None else [limits.context]
    if isinstance(position, config.LearnedPosition | config.OneHotPosition):
        lengths += position.length if isinstance(position.length, tuple) else [position.length]
    return min(lengths, default=None)


def ring_length(model: Transformer, limits: GenerationLimits, empty: KVCache | None = None) -> int:
    """The lookback of a ring cache: how many tokens a token attends to, itself included; 0 where no ring is possible.

    Every layer must have a sliding window, and positions beyond those of the training must be meaningful, as distances
    are. A recurrent layer needs no slots at all.
    """
    trunk, states = model.c.trunk, [not isinstance(entry, LayerKV) for entry in (empty or probe_cache(model)).entries]
    if isinstance(trunk, config.RecurrentStack):
        return 1
    if not isinstance(model, Transformer):  # a model with an image or a sound before the text
        return 0
    if not isinstance(trunk.position, FAR) and (limits.context is not None or not isinstance(trunk.position, FREE)):
        return 0
    if all(states):
        return 1 if limits.context is None else 0
    seen = [mask_lookback(mask(text)) for text in trunk.masks]
    return 0 if any(states) or not all(seen) else max(seen)


def mask_lookback(mask: Mask) -> int:
    """The lookback of an attention mask in tokens, the token itself included; 0 where there is no limit."""
    terms = mask.terms if isinstance(mask, And) else ()
    windows = [term.radius + 1 for term in terms if isinstance(term, Window)]
    return min(windows) if windows and CAUSAL in terms else 0


def barred_tokens(model: Transformer, limits: GenerationLimits) -> Tensor:
    """Mask (V,) of the ids that are never generated: those without a token in the tokenizer, and padding."""
    ids: Tensor = torch.arange(int(model.head.out_features))  # type: ignore[arg-type]
    known = ids < (len(ids) if limits.known is None else limits.known)
    known[[id for id in limits.never if id < len(ids)]] = False
    return ~known if model.c.embed.pad_id is None else ~known | (ids == model.c.embed.pad_id)


def min_prompt_tokens(model: Transformer) -> int:
    """The least number of prompt tokens: a prefix mask reads so many together. Refuses a model that cannot generate."""
    return max(probe_cache(model).first, 1)


def probe_cache(model: Transformer) -> KVCache:
    """A small cache that shows the kinds of layers. Refuses a model that cannot generate."""
    if model.c.head.kind != "lm":
        raise config.ConfigError(f"head.kind: {model.c.head.kind!r} has no vocabulary logits; generation needs 'lm'")
    try:
        return model.cache(1, 1)
    except config.ConfigError as problem:
        raise config.ConfigError(f"this model is not autoregressive: {problem}") from problem


def check_prompts(model: Transformer, texts: Sequence[Sequence[int]], few: int | None = None) -> None:
    """Check that every row has at least `few` tokens (by default the model's minimum) and ids within the vocabulary."""
    vocab, few = model.c.embed.vocab, few or min_prompt_tokens(model)
    for text in texts:
        if len(text) < few:
            raise config.DataError(f"prompt: {len(text)} tokens are too few; this model needs {few} or more")
        if (stranger := next((id for id in text if not 0 <= id < vocab), None)) is not None:
            raise config.DataError(
                f"prompt: id {stranger} is outside the model's vocabulary of {vocab}; use the tokenizer of its training"
            )


def check_fits_context(
    model: Transformer, limits: GenerationLimits, texts: Sequence[Sequence[int]], new: Sequence[int]
) -> None:
    """Check that prompt and new tokens fit the context window: beams do not slide. The last token is not fed."""
    most = context_window(model, limits)
    for text, more in zip(texts, new, strict=True):
        if most is not None and len(text) + more - 1 > most:
            room = most - len(text) + 1
            remedy = f"set max_new_tokens to {room} or less" if room > 0 else "shorten the prompt"
            raise config.ConfigError(
                f"max_new_tokens: {more} tokens after a prompt of {len(text)} exceed the context window of {most}, "
                f"and beam search cannot slide it; {remedy}"
            )


def check_source(model: Transformer, source: Tensor | None, rows: int) -> None:
    """Check that an encoder-decoder has one source for each row, and that a model without encoder has none."""
    if model.encoder is None and source is not None:
        raise config.ConfigError("source: this model has no encoder; put it into the prompt")
    if model.encoder is not None and (source is None or len(source) != rows):
        given = "none" if source is None else f"{len(source)}"
        raise config.ConfigError(f"source: {given} given for {rows} rows; an encoder-decoder needs source ids (B, S)")
