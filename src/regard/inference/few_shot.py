"""Few-shot prompts: examples rendered by a template, then the question, which ends where the answer begins.

    form       Review: {text}        Review: A joy.          an example
               Mood: {label}         Mood: good
                                                             `separator`
                                     Review: Far too long.   the question
                                     Mood:

The last field of a form is the answer. A rendered prompt can be parsed back: an example that would be ambiguous is
refused. A prompt that is too long loses whole examples, the first ones.
"""

import re
import warnings
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from string import Formatter
from typing import Any, Literal

from regard.config.errors import ConfigError, DataError

SEPARATOR = "\n\n"


@dataclass(frozen=True)
class PromptTemplate:
    """A prompt template: a `form` with fields in braces, the answer last, and the `separator` of examples."""

    form: str
    separator: str = SEPARATOR
    parts: tuple[tuple[str, str | None], ...] = field(init=False, repr=False)  # literal text, and the field after it

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", parse_template(self.form))
        if not self.separator:
            raise ConfigError("separator: it is empty; give a line break, or a mark")
        if any(self.separator in literal for literal, _ in self.parts):
            raise ConfigError(
                f"separator: {self.separator!r} also occurs in the template {self.form!r}; choose another mark"
            )

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(name for _, name in self.parts if name is not None)

    @property
    def answer(self) -> str:
        return self.fields[-1]

    def render(self, record: Mapping[str, Any], where: str = "example") -> str:
        """Render one example, so that `parse` returns the same fields."""
        values = {name: field_value(record, name, where) for name in self.fields}
        text = "".join(literal + ("" if name is None else values[name]) for literal, name in self.parts)
        ends = (text + self.separator).index(self.separator)  # a separator that begins in the text would end it early
        if ends < len(text) or self.parse(text) != [values]:
            raise DataError(f"{where}: its fields cannot be told apart from {self.form!r} and {self.separator!r} "
                            "around them; choose another template, or another separator")  # fmt: skip
        return text

    def format_question(self, record: Mapping[str, Any], where: str = "question") -> str:
        """Render a question: everything before the answer."""
        *given, (last, _) = [part for part in self.parts if part[1] is not None]
        return "".join(literal + field_value(record, str(name), where) for literal, name in given) + last

    def parse(self, text: str) -> list[dict[str, str]] | None:
        """The fields of each example in a text; None if one does not match the form."""
        held = ((re.escape(literal), "" if name is None else f"(?P<{name}>.*?)") for literal, name in self.parts)
        pattern = "".join(literal + value for literal, value in held)
        found = [re.fullmatch(pattern, part, re.DOTALL) for part in text.split(self.separator)]
        return None if None in found else [match.groupdict() for match in found if match is not None]


@dataclass(frozen=True, kw_only=True)
class FewShotPrompt:
    """A few-shot prompt with its number of examples; `dropped` more did not fit the context window."""

    text: str
    examples: int
    dropped: int = 0


def build_prompt(
    template: PromptTemplate, examples: Sequence[Mapping[str, Any]], question: Mapping[str, Any], *, intro: str = "",
    fits: Callable[[str], bool] | None = None,
) -> FewShotPrompt:  # fmt: skip
    """Build a prompt of examples and a question; if it does not fit, the first examples are dropped, with a warning."""
    said = [template.render(each, getattr(each, "where", f"example {place}")) for place, each in enumerate(examples, 1)]
    where = getattr(question, "where", "question")
    last = template.format_question(question, where)

    def text(dropped: int) -> str:
        return template.separator.join([*([intro] if intro else []), *said[dropped:], last])  #: S111

    few = 0 if fits is None else bisect_left(range(len(said) + 1), True, key=lambda dropped: fits(text(dropped)))
    if few > len(said):
        raise DataError(f"{where}: it exceeds the context window even without examples; shorten it")
    if few:
        warnings.warn(f"examples: the first {few} of {len(said)} are left out, so that the prompt fits into the "
                      "context window", stacklevel=2)  # fmt: skip
    return FewShotPrompt(text=text(few), examples=len(said) - few, dropped=few)


def fits_context(model: Any, room: int) -> Callable[[str], bool]:
    """A check whether a prompt fits the context window, with `room` for that many new tokens."""
    from regard.generation.limits import context_window

    most = context_window(model, model.generation_limits)
    return lambda text: most is None or len(model.encode_prompts([text])[1][0]) + room <= most


def choose_examples(
    examples: Sequence[Any], shots: int | None = None, seed: int | None = None,
    order: Literal["given", "drawn"] = "drawn",
) -> list[Any]:  # fmt: skip
    """Choose `shots` of the examples: the first ones, or with a seed a random sample, in drawn or in given order."""
    if shots is not None and not 0 <= shots <= len(examples):
        raise ConfigError(f"shots: {shots} of {len(examples)} examples; choose a number from 0 to {len(examples)}")
    count = len(examples) if shots is None else shots
    places = list(range(count)) if seed is None else Random(seed).sample(range(len(examples)), count)
    return [examples[place] for place in (sorted(places) if order == "given" else places)]


def parse_template(form: str) -> tuple[tuple[str, str | None], ...]:
    """A form as literal texts and fields; only plain names are allowed in braces."""
    try:
        found = list(Formatter().parse(form))
    except ValueError as problem:
        raise ConfigError(
            f"template: {form!r} cannot be read: {problem}; write {{{{ for a brace that is text itself"
        ) from None
    names = [name for _, name, _, _ in found if name is not None]
    if any(not name.isidentifier() or spec or how for _, name, spec, how in found if name is not None):
        raise ConfigError(f"template: {form!r} has more than a name in braces; write {{text}} and {{label}}")
    if len(names) < 2 or len(set(names)) < len(names):
        raise ConfigError(f"template: {form!r} has the fields {', '.join(names) or 'none'}; name the input and "
                          "the answer, each once, as in 'Review: {text} Mood: {label}'")  # fmt: skip
    joined = merge_text_parts([(literal, name) for literal, name, _, _ in found])
    if any(not literal for literal, name in joined[1:] if name is not None):
        raise ConfigError(f"template: two fields of {form!r} touch each other; put something between them")
    return tuple(joined)


def merge_text_parts(parts: list[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    """Join literal texts that an escaped brace has split."""
    joined: list[tuple[str, str | None]] = []
    for literal, name in parts:
        if joined and joined[-1][1] is None:
            literal = joined.pop()[0] + literal
        joined.append((literal, name))
    return joined


def field_value(record: Mapping[str, Any], name: str, where: str) -> str:
    try:
        value = record[name]
    except (KeyError, DataError):
        there = ", ".join(record) or "nothing"
        raise DataError(f"{where}: no {name!r}, which the template needs; it has {there}") from None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DataError(f"{where}: its {name} is {value!r}, and no text")
    return str(value)
