"""Config of generation: SamplingParams (temperature, filters, penalties), LogitBias and BeamSearchParams."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import check_fraction, check_minimum, config_class


@config_class
class LogitBias:
    """One token made likelier or less likely: `add` is added to its logit; minus infinity forbids it."""

    id: int
    add: float

    def __post_init__(self) -> None:
        check_minimum(0, id=self.id)
        if math.isnan(self.add) or self.add == math.inf:
            raise ConfigError(f"add: {self.add} for token {self.id} is not a number; -inf forbids a token")


@config_class
class SamplingParams:
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
    bias: tuple[LogitBias, ...] = ()
    regex: str | None = None
    schema: str | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        check_minimum(0, new=self.new, shortest=self.shortest, temperature=self.temperature, seed=self.seed)
        check_minimum(1, top_k=self.top_k, no_repeat=self.no_repeat)
        check_fraction(top_p=self.top_p, min_p=self.min_p, typical=self.typical)
        check_numbers(temperature=self.temperature)
        check_finite(frequency=self.frequency, presence=self.presence)
        check_positive(repetition=self.repetition)
        object.__setattr__(self, "bias", normalize_logit_bias(self.bias))
        if self.typical == 0:
            raise ConfigError("typical: 0 leaves no token; 1 changes nothing")
        if "" in self.stop:
            raise ConfigError("stop: an empty string would stop at once; remove it")
        if self.regex is not None and self.schema is not None:
            raise ConfigError("schema: there is a regex as well; keep one of the two")


def normalize_logit_bias(bias: "Mapping[int, float] | tuple[LogitBias, ...]") -> tuple[LogitBias, ...]:
    """Each token once, however they were given."""
    found = tuple(LogitBias(id=id, add=add) for id, add in bias.items()) if isinstance(bias, Mapping) else tuple(bias)
    if twice := [id for id, times in Counter(each.id for each in found).items() if times > 1]:
        raise ConfigError(f"bias: token {twice[0]} is given twice; say once what is added to it")
    return found


def check_numbers(**given: float) -> None:
    for name, number in given.items():
        if math.isnan(number):
            raise ConfigError(f"{name}: nan is not a number; leave it out, or give one")


def check_finite(**given: float) -> None:
    for name, number in given.items():
        if not math.isfinite(number):
            raise ConfigError(f"{name}: {number} is not a finite number")


def check_positive(**given: float) -> None:
    check_finite(**given)
    for name, number in given.items():
        if number <= 0:
            raise ConfigError(f"{name}: {number} must be more than zero; 1 changes nothing")


STEEPEST = 10.0  # of length_penalty: beyond it the length alone decides, and soon no number holds the scores


@config_class
class BeamSearchParams:
    """The likeliest texts are looked for, `beams` beginnings at a time; the `best` of those that ended are given.

    A text's score is log p / length^length_penalty, its length the tokens made, the end token among them: 0 compares
    whole probabilities and favours short texts, 1 compares them a token, above 1 favours long texts.
    At most `new` tokens are made, and the end token only after `shortest` others. `repetition`, `no_repeat` and `bias`
    mean what they do in SamplingParams; they change log p, as they do in `transformers`.
    `early_stopping` says when a search that has as many ended texts as beams is over: at once (true), as soon as the
    likeliest beginning is worse than all of them at its present length (false), or at any length (never). These rules
    and the score are those of `transformers`.
    """

    new: int = 200
    shortest: int = 0
    beams: int = 4
    best: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    repetition: float = 1.0
    no_repeat: int | None = None
    bias: tuple[LogitBias, ...] = ()

    def __post_init__(self) -> None:
        check_minimum(0, shortest=self.shortest)
        check_minimum(1, new=self.new, beams=self.beams, best=self.best, no_repeat=self.no_repeat)
        check_finite(length_penalty=self.length_penalty)
        object.__setattr__(self, "bias", normalize_logit_bias(self.bias))
        check_positive(repetition=self.repetition)
        if self.best > self.beams:
            raise ConfigError(f"best: {self.best} texts are more than the {self.beams} that the search keeps; "
                             f"set beams to {self.best} or more")  # fmt: skip
        if abs(self.length_penalty) > STEEPEST:
            raise ConfigError(f"length_penalty: {self.length_penalty} is not between {-STEEPEST} and {STEEPEST}")
        if self.shortest >= self.new:
            raise ConfigError(f"shortest: {self.shortest} tokens and an end are more than new, {self.new}; raise new")
