"""A prompt read aloud: repeated before what comes after it, with the odds of each of its tokens.

    log p(token | the tokens before it); the first one, before which nothing stands, has none
"""

import math
from dataclasses import dataclass

import torch

from regard.generate.likelihood import tables
from regard.generate.many import Answers, Token


@dataclass(frozen=True)
class Read:
    """The prompt as text, and its tokens where their odds were asked for."""

    text: str
    tokens: tuple[Token, ...] = ()


def tokens_of(answers: Answers, ids: list[int], top: int) -> tuple[Token, ...]:
    """Each token of a prompt with its odds, and with the `top` likeliest in its place. For the thread of the model."""
    first = answers.token(ids[0], math.nan)
    if not (said := ids[1:]):
        return (first,)
    [odds] = tables(answers.model, [tuple(ids[:-1])])  # (N - 1, V)
    best, own = odds.topk(min(top, odds.shape[-1])), odds[torch.arange(len(said)), said].tolist()
    others = [tuple(zip(*row, strict=True)) for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
    return first, *(answers.token(*each) for each in zip(said, own, others, strict=True))
