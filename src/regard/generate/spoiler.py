"""The spoiler effect: the likeliest token may speak for a minority, when the majority has many words for one thing.

    "The holiday was ..."     awful 0.24  │  lovely 0.20  wonderful 0.19  great 0.17  splendid 0.12  pleasant 0.08
                              bad:  0.24  │  good: 0.76, shared by five words

Greedy choosing says "awful", as an election by first choices may elect whom most voters like least. Drawing among the
few likeliest says something good three times out of four.
"""

import torch
from torch import Tensor

from regard import config
from regard.generate.filters import filtered

GROUPS = {
    "bad": {"awful": 0.24},
    "good": {"lovely": 0.20, "wonderful": 0.19, "great": 0.17, "splendid": 0.12, "pleasant": 0.08},
}
WORDS = {word: chance for group in GROUPS.values() for word, chance in group.items()}


def logits() -> Tensor:
    """(1, V) of the distribution above."""
    return torch.tensor([list(WORDS.values())], dtype=torch.float64).log()


def shares(**settings: object) -> dict[str, float]:
    """How likely each group is to be spoken for, by the settings of `config.Sampling`."""
    c = config.make(config.Sampling, settings)
    left = filtered(logits(), c)[0]
    chances = left.softmax(-1) if c.temperature else (torch.arange(len(left)) == left.argmax()).double()
    each = dict(zip(WORDS, chances.tolist(), strict=True))
    return {name: sum(each[word] for word in group) for name, group in GROUPS.items()}
