"""Config of generation: SamplingParams (temperature, filters, penalties), LogitBias and BeamSearchParams."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import check_fraction, check_minimum, config_class


@config_class
class LogitBias:
    """A logit bias: `bias` is added to the logit of one token; minus infinity forbids it."""

    token_id: int
    bias: float

    def __post_init__(self) -> None:
        check_minimum(0, token_id=self.token_id)
        if math.isnan(self.bias) or self.bias == math.inf:
            raise ConfigError(f"bias: {self.bias} for token {self.token_id} is not a number; -inf forbids a token")


@config_class
class SamplingParams:
    """Sampling parameters. Temperature 0 is greedy; `stop` strings end the text and are not part of it.

    At most `max_new_tokens` tokens are generated, and an end token only after `min_new_tokens` others.
    `repetition_penalty` applies to all previous tokens, `frequency_penalty` (for each occurrence) and
    `presence_penalty` (once) to those after the prompt. No n-gram of `no_repeat_ngram_size` tokens repeats.
    `logit_bias` may be given as {id: number}. The text matches the `regex`, or is JSON that conforms to the
    `json_schema`, given as JSON text.
    """

    max_new_tokens: int = 200
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    no_repeat_ngram_size: int | None = None
    logit_bias: tuple[LogitBias, ...] = ()
    regex: str | None = None
    json_schema: str | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        check_minimum(
            0,
            max_new_tokens=self.max_new_tokens,
            min_new_tokens=self.min_new_tokens,
            temperature=self.temperature,
            seed=self.seed,
        )
        check_minimum(1, top_k=self.top_k, no_repeat_ngram_size=self.no_repeat_ngram_size)
        check_fraction(top_p=self.top_p, min_p=self.min_p, typical_p=self.typical_p)
        check_numbers(temperature=self.temperature)
        check_finite(frequency_penalty=self.frequency_penalty, presence_penalty=self.presence_penalty)
        check_positive(repetition_penalty=self.repetition_penalty)
        object.__setattr__(self, "logit_bias", normalize_logit_bias(self.logit_bias))
        if self.typical_p == 0:
            raise ConfigError("typical_p: 0 leaves no token; 1 changes nothing")
        if "" in self.stop:
            raise ConfigError("stop: an empty string would stop at once; remove it")
        if self.regex is not None and self.json_schema is not None:
            raise ConfigError("json_schema: there is a regex as well; keep one of the two")


def normalize_logit_bias(bias: "Mapping[int, float] | tuple[LogitBias, ...]") -> tuple[LogitBias, ...]:
    """Each token once, in any form of input."""
    found = (
        tuple(LogitBias(token_id=id, bias=add) for id, add in bias.items())
        if isinstance(bias, Mapping)
        else tuple(bias)
    )
    if twice := [id for id, times in Counter(each.token_id for each in found).items() if times > 1]:
        raise ConfigError(f"logit_bias: token {twice[0]} is given twice; give it one bias")
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


STEEPEST = 10.0  # of length_penalty: beyond it the score depends on the length only, and overflows


@config_class
class BeamSearchParams:
    """Beam search parameters: `num_beams` hypotheses are extended in parallel; the best `num_return_sequences` finished
    ones are returned.

    A text's score is log p / length^length_penalty, its length the generated tokens including the end token: 0 compares
    total probabilities and favours short texts, 1 compares the mean per token, above 1 favours long texts. At most
    `max_new_tokens` tokens are generated, and the end token only after `min_new_tokens` others. `repetition_penalty`,
    `no_repeat_ngram_size` and `logit_bias` are as in SamplingParams; they change log p, as in `transformers`.
    `early_stopping` decides when a search with as many finished texts as beams ends: at once (true), as soon as the
    best hypothesis is worse than all of them at its present length (false), or at any length (never). These rules and
    the score are those of `transformers`.
    """

    max_new_tokens: int = 200
    min_new_tokens: int = 0
    num_beams: int = 4
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int | None = None
    logit_bias: tuple[LogitBias, ...] = ()

    def __post_init__(self) -> None:
        check_minimum(0, min_new_tokens=self.min_new_tokens)
        check_minimum(
            1,
            max_new_tokens=self.max_new_tokens,
            num_beams=self.num_beams,
            num_return_sequences=self.num_return_sequences,
            no_repeat_ngram_size=self.no_repeat_ngram_size,
        )
        check_finite(length_penalty=self.length_penalty)
        object.__setattr__(self, "logit_bias", normalize_logit_bias(self.logit_bias))
        check_positive(repetition_penalty=self.repetition_penalty)
        if self.num_return_sequences > self.num_beams:
            raise ConfigError(f"num_return_sequences: {self.num_return_sequences} texts are more than the "
                              f"{self.num_beams} that the search keeps; set num_beams to {self.num_return_sequences} "
                              "or more")  # fmt: skip
        if abs(self.length_penalty) > STEEPEST:
            raise ConfigError(f"length_penalty: {self.length_penalty} is not between {-STEEPEST} and {STEEPEST}")
        if self.min_new_tokens >= self.max_new_tokens:
            raise ConfigError(
                f"min_new_tokens: {self.min_new_tokens} tokens and an end are more than max_new_tokens, "
                f"{self.max_new_tokens}; raise max_new_tokens"
            )
