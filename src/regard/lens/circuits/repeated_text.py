"""Repeated text: random tokens, said twice, and what a model is asked of the two halves.

    a b c d a b c d        of the second half all but the first token can be copied; of the first half none

Random, so that nothing but the text itself says what comes next: neither grammar, nor what a model knows of words.
"""

from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.lens.patching.logit_metrics import IGNORED
from regard.lens.prompt import Prompt, read_prompt
from regard.lens.residual import find_head
from regard.lens.roles import repeated_ids


def repeated_prompt(model: Any, length: int, texts: int, seed: int, vocabulary: Tensor | None) -> Prompt:
    """Random ids, said twice, after the token that begins a text, if the model has one."""
    words = known_words(model) if vocabulary is None else vocabulary.cpu()
    if len(words) < 2:
        raise ConfigError(f"vocabulary: {len(words)} ids that are not special; induction takes two or more")
    ids = repeated_ids(words, length, texts, seed)
    begin = getattr(getattr(model, "tokenizer", None), "special_ids", {}).get("bos")
    return read_prompt(model, ids if begin is None else torch.cat([torch.full((texts, 1), begin), ids], 1))


def known_words(model: Any) -> Tensor:
    """The ids that stand for text: those of the tokenizer, where there is one, but for special ones."""
    tokenizer, front = getattr(model, "tokenizer", None), model.embed.c
    count = min(front.vocab, find_head(model).out_features)
    special = {each for each in (front.pad_id, front.eos_id) if each is not None}
    if tokenizer is not None:
        count, special = min(count, len(tokenizer)), special | set(tokenizer.special_ids.values())
    words = torch.arange(count)
    return words[~torch.isin(words, torch.tensor(sorted(special), dtype=torch.long))]


def second_half_targets(ids: Tensor, length: int) -> Tensor:  # (B, N)
    """The next token of each, where both it and this one have been said before."""
    targets = torch.full_like(ids, IGNORED)
    targets[:, -length:-1] = ids[:, 1 - length :]
    return targets


def first_half_targets(ids: Tensor, length: int) -> Tensor:  # (B, N)
    """The next token of each in the first half."""
    targets = torch.full_like(ids, IGNORED)
    targets[:, -2 * length : -length - 1] = ids[:, 1 - 2 * length : -length]
    return targets
