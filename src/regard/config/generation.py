"""What can be said about choosing the next token: what is likelier, what is forbidden, what is left to chance."""

import math
from collections import Counter
from collections.abc import Mapping

from regard.config.checks import at_least, fraction
from regard.config.setting import setting


@setting
class Nudge:
    """One token made likelier or less likely: `add` is added to its logit; minus infinity forbids it."""

    id: int
    add: float

    def __post_init__(self) -> None:
        at_least(0, id=self.id)
        if math.isnan(self.add) or self.add == math.inf:
            raise ValueError(f"add: {self.add} for token {self.id} is not a number; -inf forbids a token")


@setting
class Sampling:
    """How the next token is chosen. Temperature 0 is greedy; `stop` strings end the text and are not part of it.

    At most `new` tokens are made, and an end token only after `shortest` others. `repetition` is paid for all tokens
    before, `frequency` (for each time) and `presence` (once) for those that were said after the prompt. No run of
    `no_repeat` tokens comes twice. `bias` may be given as {id: number}. What is said matches the `regex`, or is JSON
    that keeps to the `schema`, itself a text in JSON.
    """

    new: int = 200
    shortest: int = 0
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical: float | None = None
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    no_repeat: int | None = None
    bias: tuple[Nudge, ...] = ()
    regex: str | None = None
    schema: str | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        at_least(0, new=self.new, shortest=self.shortest, temperature=self.temperature, seed=self.seed)
        at_least(1, top_k=self.top_k, no_repeat=self.no_repeat)
        fraction(top_p=self.top_p, min_p=self.min_p, typical=self.typical)
        numbers(temperature=self.temperature)
        finite(frequency=self.frequency, presence=self.presence)
        positive(repetition=self.repetition)
        object.__setattr__(self, "bias", nudges(self.bias))
        if self.typical == 0:
            raise ValueError("typical: 0 leaves no token; 1 changes nothing")
        if "" in self.stop:
            raise ValueError("stop: an empty string would stop at once; remove it")
        if self.regex is not None and self.schema is not None:
            raise ValueError("schema: there is a regex as well; keep one of the two")


def nudges(bias: "Mapping[int, float] | tuple[Nudge, ...]") -> tuple[Nudge, ...]:
    """Each token once, however they were given."""
    found = tuple(Nudge(id=id, add=add) for id, add in bias.items()) if isinstance(bias, Mapping) else tuple(bias)
    if twice := [id for id, times in Counter(each.id for each in found).items() if times > 1]:
        raise ValueError(f"bias: token {twice[0]} is given twice; say once what is added to it")
    return found


def numbers(**given: float) -> None:
    for name, number in given.items():
        if math.isnan(number):
            raise ValueError(f"{name}: nan is not a number; leave it out, or give one")


def finite(**given: float) -> None:
    for name, number in given.items():
        if not math.isfinite(number):
            raise ValueError(f"{name}: {number} is not a finite number")


def positive(**given: float) -> None:
    finite(**given)
    for name, number in given.items():
        if number <= 0:
            raise ValueError(f"{name}: {number} must be more than zero; 1 changes nothing")
