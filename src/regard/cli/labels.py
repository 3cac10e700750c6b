"""regard classify --labels: which label a language model would say next, after examples or without any."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from regard import config
from regard.cli.given import filed, texts, watched

FORM = "Text: {text}\\nLabel: {label}"


@dataclass(frozen=True, kw_only=True)
class Labels:
    """How a model that goes on from texts is asked for a label. In `form` and `between`, \\n is a line break."""

    labels: str | None = None
    form: str = FORM
    between: str = "\\n\\n"
    examples: str | None = None
    shots: int | None = None
    seed: int | None = None
    order: Literal["drawn", "given"] = "drawn"
    per: Literal["label", "token", "character"] = "label"
    neutral: str | None = None

    def __post_init__(self) -> None:
        if self.labels is None and self.examples is None:
            raise ValueError("labels: there are none; give some, or examples that have them")
        lonely = next((name for name in ("shots", "seed") if getattr(self, name) is not None), None)
        if self.examples is None and lonely is not None:
            raise ValueError(f"{lonely}: there are no examples to choose from; name a file of them")


ABOUT = {
    "labels": "Ask a language model: which of these labels, with commas between, would it say next?",
    "form": "How a text and its label are said, the label last.",
    "between": "What stands between examples.",
    "examples": "A file of texts with their labels (.jsonl, .csv, ...), to be shown before the question.",
    "shots": "How many of the examples are shown; all that fit, unless said.",
    "seed": "Draw the examples at random; the first ones are shown otherwise.",
    "order": "Show drawn examples as they were drawn, or as given in the file.",
    "per": "Compare labels as a whole, per token or per character.",
    "neutral": "A text that says nothing, such as N/A: labels that are likely after it count for less.",
}


class Asker:
    """Asks a model for labels, in the form of `regard classify`."""

    def __init__(self, model: Any, c: Labels) -> None:
        from regard.generate.prompts import Template, chosen

        self.model, self.c = model, c
        self.template = Template(typed(c.form), typed(c.between))
        given = [] if c.examples is None else filed(c.examples, self.template.fields[0])
        self.examples = chosen(given, c.shots, c.seed, c.order)
        answers = [str(record.get(self.template.answer, "")) for record in given]
        names = answers if c.labels is None else c.labels.split(",")
        self.labels = list(dict.fromkeys(name.strip() for name in names))

    def __call__(self, words: Sequence[str] | None, file: str | None, top: int | None) -> Iterator[dict[str, Any]]:
        from regard.generate.likelihood import labelled

        records, column = texts(words, file), self.template.fields[0]
        questions = [{column: record["text"], **record} for record in records]
        neutral = None if self.c.neutral is None else self.asked({column: self.c.neutral})
        with watched(len(records)) as told:
            found = labelled(self.model, [self.asked(each) for each in questions], self.labels, per=self.c.per,
                             neutral=neutral, progress=told)  # fmt: skip
        for record, shares in zip(records, found, strict=True):
            yield {"of": record["text"], "classes": dict(list(shares.items())[: top or 1])}

    def asked(self, question: dict[str, Any]) -> str:
        from regard.generate.prompts import fitting, prompt

        longest = max(len(self.model.speaks.encode(label)) for label in self.labels if label)
        return prompt(self.template, self.examples, question, fits=fitting(self.model, longest)).text


def typed(text: str) -> str:
    """Line breaks and tabs as they are typed in a shell."""
    return text.replace("\\n", "\n").replace("\\t", "\t")


def given(settings: dict[str, Any]) -> Labels | None:
    """What was said of labels, checked; None if nothing was."""
    from regard.cli.output import in_options
    from regard.config.reader import value_in

    said = {name: word for name, word in settings.items() if word is not None}
    numbers = {name: value_in(word) for name, word in said.items() if name in ("shots", "seed")}
    if not said:
        return None
    if said.keys() & {"labels", "examples"}:
        return in_options(Labels, said | numbers)  # type: ignore[no-any-return]
    name = next(iter(said))
    raise config.ConfigError(f"--{name}: it says how a language model is asked for labels; give --labels as well")
