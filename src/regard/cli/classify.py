"""regard classify: the likeliest classes, or the number, of texts, images and recordings; with --labels zero-shot.

With --labels a language model ranks labels by how likely each comes next, after examples or without any.
"""

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from regard import config
from regard.cli.bad_lines import BadLines, Skip, line_number
from regard.cli.output import (
    CheckpointArgument,
    Dtype,
    JsonOption,
    Specials,
    WeightsOption,
    add_config_options,
    check_specials_option,
    import_torch,
    print_json,
)
from regard.cli.text_args import open_model, records_of_file, show_progress, text_records

TEMPLATE = "Text: {text}\\nLabel: {label}"


@dataclass(frozen=True, kw_only=True)
class LabelOptions:
    """How labels are put to a language model. In `template` and `separator`, \\n is a newline."""

    labels: str | None = None
    template: str = TEMPLATE
    separator: str = "\\n\\n"
    examples: str | None = None
    shots: int | None = None
    seed: int | None = None
    example_order: Literal["drawn", "given"] = "drawn"
    score_per: Literal["label", "token", "character"] = "label"
    calibration_prompt: str | None = None

    def __post_init__(self) -> None:
        if self.labels is None and self.examples is None:
            raise ValueError("labels: none is given; give some, or examples that have them")
        lonely = next((name for name in ("shots", "seed") if getattr(self, name) is not None), None)
        if self.examples is None and lonely is not None:
            raise ValueError(f"{lonely}: there are no examples to choose from; name a file of them")


LABEL_HELP = {
    "labels": "Labels, with commas between, that a language model chooses from by probability.",
    "template": "The prompt for a text and its label, the label last.",
    "separator": "The text between examples.",
    "examples": "A file of texts with their labels (.jsonl, .csv, ...), to be shown before the question.",
    "shots": "Number of examples in the prompt; by default all that fit.",
    "seed": "Draw the examples at random; by default the first ones are used.",
    "example_order": "Show drawn examples as they were drawn, or as given in the file.",
    "score_per": "Compare labels as a whole, per token or per character.",
    "calibration_prompt": "A text without content, such as N/A: labels that are likely after it count for less.",
}


class LabelClassifier:
    """Label classifier by a language model, with the results of `regard classify`."""

    def __init__(self, model: Any, c: LabelOptions) -> None:
        from regard.inference.few_shot import PromptTemplate, choose_examples

        self.model, self.c = model, c
        self.template = PromptTemplate(unescape(c.template), unescape(c.separator))
        given = [] if c.examples is None else records_of_file(c.examples, self.template.fields[0])
        self.examples = choose_examples(given, c.shots, c.seed, c.example_order)
        answers = [str(record.get(self.template.answer, "")) for record in given]
        names = answers if c.labels is None else c.labels.split(",")
        self.labels = list(dict.fromkeys(name.strip() for name in names))

    def __call__(self, words: Sequence[str] | None, file: str | None, top_k: int | None) -> Iterator[dict[str, Any]]:
        from regard.inference.likelihood import rank_labels

        records, column = text_records(words, file), self.template.fields[0]
        questions = [{column: record["text"], **record} for record in records]
        calibration = self.c.calibration_prompt
        calibration = None if calibration is None else self.prompt_text({column: calibration})
        with show_progress(len(records)) as told:
            found = rank_labels(self.model, [self.prompt_text(each) for each in questions], self.labels,
                             score_per=self.c.score_per, calibration_prompt=calibration, progress=told)  # fmt: skip
        for record, shares in zip(records, found, strict=True):
            yield {"of": record["text"], "classes": dict(list(shares.items())[: top_k or 1])}

    def prompt_text(self, question: dict[str, Any]) -> str:
        from regard.inference.few_shot import build_prompt, fits_context

        longest = max(len(self.model.output_tokenizer.encode(label)) for label in self.labels if label)
        return build_prompt(self.template, self.examples, question, fits=fits_context(self.model, longest)).text


def unescape(text: str) -> str:
    """Interpret \\n and \\t as typed in a shell."""
    return text.replace("\\n", "\n").replace("\\t", "\t")


def parse_label_options(settings: dict[str, Any]) -> LabelOptions | None:
    """The label options, checked; None if none was given."""
    from regard.cli.output import config_from_options
    from regard.config.overrides import parse_value

    said = {name: word for name, word in settings.items() if word is not None}
    numbers = {name: parse_value(word) for name, word in said.items() if name in ("shots", "seed")}
    if not said:
        return None
    if said.keys() & {"labels", "examples"}:
        return config_from_options(LabelOptions, said | numbers)  # type: ignore[no-any-return]
    name = next(iter(said))
    raise config.ConfigError(f"--{name.replace('_', '-')}: a setting of zero-shot labels; give --labels as well")


@add_config_options(LabelOptions, LABEL_HELP)
def classify(
    checkpoint: CheckpointArgument,
    things: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE|TEXT", help="Files as the model reads them (pictures, sounds, records), or texts, "
                       "two that belong together with a tab between; - or nothing reads texts from standard input, a "
                       "line each."),
    ] = None,
    *,
    file: Annotated[str | None, typer.Option(metavar="FILE", help="One file more; - is standard input.")] = None,
    pair: Annotated[str | None, typer.Option(metavar="TEXT", help="A second text, to go with each text.")] = None,
    top_k: Annotated[
        int | None,
        typer.Option(help="Number of classes to show, most likely first: one by default; where several may be "
                     "right, all from 0.5 on."),
    ] = None,
    skip: Skip = False,
    weights: WeightsOption = "auto",
    dtype: Dtype = "fp32",
    specials: Specials = "parse",
    json: JsonOption = False,
    **settings: Any,
) -> int:  # fmt: skip
    """Classify files or texts, with probabilities; with --labels or --examples, by a language model."""
    if top_k is not None and top_k < 1:
        raise config.ConfigError(f"--top-k: {top_k} returns no class; choose one or more")
    if file not in (None, "-") and not os.path.exists(file):
        raise FileNotFoundError(errno.ENOENT, "", file)
    if (asked := parse_label_options(settings)) is not None:
        if skip:
            raise config.ConfigError("--skip: it does not go with --labels; leave it out")
        import_torch()
        with open_model(checkpoint, weights, dtype, specials) as model:
            classify_by_labels(model, asked, things, file, pair, top_k, json)
        return 0
    import_torch()
    from regard.inference.classification import Classifier
    from regard.inference.load import load_for_inference

    model = load_for_inference(checkpoint, dtype=dtype, weights=weights, specials=check_specials_option(specials))
    judge = Classifier(model, checkpoint)
    one_file = judge.textual and file not in (None, "-") and not things and pair is None
    bad = BadLines(strict=not one_file, skip=skip)  # lines of a single file are reported by number
    judge.refuse = None if bad.strict else bad.add
    given = [*(things or []), *([] if file is None else [file])] or ["-"]
    if "-" in given:
        if not judge.textual:
            raise config.ConfigError(f"-: {checkpoint} reads no text; name files, such as {judge.example}")
        lines = [line for line in sys.stdin.read().splitlines() if line.strip()]
        given = [each for thing in given for each in (lines if thing == "-" else [thing])]
    found = list(judge(given if pair is None else [f"{thing}\t{pair}" for thing in given], top_k))
    answers = answers_by_line(found, bad)
    print_json({"task": judge.kind, "answers": answers}) if json else show_classes(answers)
    return bad.tell(len(answers) + len(bad.why) * bad.skip)


def answers_by_line(found: list[dict[str, Any]], bad: BadLines) -> list[dict[str, Any]]:
    """Results with their line numbers, and the reason where a line has none."""
    if bad.strict:
        return found
    lines = {line_number(each["where"]) or place: each for place, each in enumerate(found, 1)}
    told = {line: {"line": line, **{name: value for name, value in each.items() if name != "where"}}
            for line, each in lines.items()}  # fmt: skip
    told |= {} if bad.skip else {line: {"line": line, "of": None, "error": why} for line, why in bad.why.items()}
    return [told[line] for line in sorted(told)]


def classify_by_labels(
    model: Any, options: LabelOptions, things: list[str] | None, file: str | None, pair: str | None,
    top_k: int | None, json: bool,
) -> None:  # fmt: skip
    """Classify by the likelihood of each label under a language model."""
    if pair is not None:
        raise config.ConfigError("--pair: a language model reads one text; put the other into --template")
    found = list(LabelClassifier(model, options)(things or ([] if file else ["-"]), file, top_k))
    print_json({"task": "labels", "answers": found}) if json else show_classes(found)


def show_classes(found: list[dict[str, Any]]) -> None:
    """Inputs and results; the input's name is left out if there is only one."""
    wide = max((len(short_name(each["of"])) for each in found if each["of"] is not None), default=0)
    for each in found:
        if "error" in each:
            print()
            continue
        said = f"{each['number']:.4g}" if "number" in each else "   ".join(
            f"{label} {share:.4f}" for label, share in each["classes"].items())  # fmt: skip
        print(said if len(found) == 1 else f"{short_name(each['of']):<{wide}}  {said}")


def short_name(name: str) -> str:
    return name if len(name) <= 48 else f"{name[:47]}…" if not Path(name).suffix else f"…{name[-47:]}"
