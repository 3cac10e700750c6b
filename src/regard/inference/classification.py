"""Classification with a trained model: class probabilities, or a number, for texts, images, recordings and records.

    one of several classes    softmax: the probabilities sum to 1
    several at a time         a sigmoid for each: problem_type "multi_label_classification" in config.json
    a number                  as it is: problem_type "regression", or one output alone

    regard.load("runs/digits").classify(["three.png"], top_k=2)        [{"3": 0.98, "5": 0.01}]

Texts are passed as strings; other inputs as files, as values of a record's column (PIL images, arrays, samples), or as
records. A file of records (.jsonl, .csv, ...) stands for all of them.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from regard import config, tasks
from regard.config.errors import ConfigError, DataError
from regard.data.batching import batch_to_device, seeded_generator
from regard.data.records import BadRecordPolicy, Record
from regard.data.sources import RECORD_SUFFIXES, TEXT_SUFFIXES, find_records
from regard.files.compression import file_format
from regard.inference.batching import count_inputs, in_chunks, run_batched
from regard.inference.model import Model
from regard.inference.objective import build_objective, number_classes, reads_text
from regard.inference.record_inputs import input_record
from regard.inference.text_inputs import (
    OnBadInput,
    TextInputs,
    architecture_ends_with,
    check_is_list,
    number_texts,
    try_each,
)
from regard.inputs.processors import TensorExample, build_processor
from regard.tasks import columns
from regard.tasks.classification import classify_batch
from regard.tasks.columns import with_input_column
from regard.tasks.losses import model_outputs

SEVERAL = "multi_label_classification"


def config_json_of(model: Any) -> Mapping[str, Any]:
    """The config.json that a model was loaded with; empty for a model built here."""
    return {} if model.source_folder is None else model.source_folder.said


def label_names(model: Any, count: int) -> tuple[str, ...]:
    """The names of the classes: those of training, of id2label, or numbers; duplicates are numbered."""
    known = getattr(model.task, "classes", ())
    if len(known) == count:
        return tuple(known)
    table = config_json_of(model).get("id2label")
    table = table if isinstance(table, dict) else {}
    told = [str(table.get(str(place), f"LABEL_{place}")) for place in range(count)]
    times = Counter(told)
    return tuple(f"{name} ({place})" if times[name] > 1 else name for place, name in enumerate(told))


def is_multi_label(model: Any) -> bool:
    """Whether several classes may apply to one input."""
    return config_json_of(model).get("problem_type") == SEVERAL and model.task is None


def is_regression(model: Any) -> bool:
    """Whether the model predicts a number instead of a class."""
    if model.task is not None:
        return isinstance(model.task, config.Regression)
    return model.c.head.out == 1 and config_json_of(model).get("problem_type") != SEVERAL


def check_classifier(model: Any) -> None:
    """Refuse a model without one prediction for the whole input."""
    head, task = model.c.head, model.task
    trained = task is None or isinstance(task, config.Classification | config.Regression)
    vectors = architecture_ends_with(model, "WithProjection") or isinstance(
        model.c, config.DualEncoder
    )  # vectors, which are compared
    if not trained or vectors or not isinstance(head, config.PoolingHead) or head.out is None:
        kind = head.kind if task is None else task.kind
        raise ConfigError(f"this model was trained for {kind!r} and has no classification head; name one trained for "
                          "classify or regress (ForSequenceClassification)")  # fmt: skip


def classify_texts(
    model: "Model",
    texts: Sequence[str],
    others: Sequence[str] | None = None,
    *,
    names: Sequence[str] | None = None,
    progress: Callable[[int], object] | None = None,
    refuse: OnBadInput | None = None,
) -> list[Any]:
    """For each text, or pair, the probability of every class by name, the most probable first; or the predicted number.

    A text that cannot be encoded raises, or is None where `refuse` handles the error.
    """
    check_classifier(model)
    reader = TextInputs.of(model)

    def forward(given: dict[str, Tensor]) -> list[Any]:
        return [label_probabilities(model, row) for row in model_outputs(model, given).float().cpu()]

    return reader.run(model, reader.frames(texts, others, names, refuse), forward, count_inputs(progress))


def classify_inputs(
    model: Model, inputs: Sequence[Any], pairs: Sequence[str] | None = None, *, top_k: int | None = None
) -> list[Any]:
    """For each input the probability of every class, or of the `top_k` most probable; or the predicted number."""
    check_is_list(inputs)
    if top_k is not None and top_k < 1:
        raise ConfigError(f"top_k: {top_k} returns no class; choose one or more")
    classifier = Classifier(model)
    found = [answer for _, _, answer in classifier.predict(classifier.inputs(inputs, pairs))]
    return [dict(islice(each.items(), top_k)) if isinstance(each, dict) else each for each in found]


def label_probabilities(model: Any, row: Tensor) -> dict[str, float] | float:  # (out,)
    if is_regression(model):
        return float(row[0])
    shares = row.sigmoid() if is_multi_label(model) else row.softmax(-1)
    names = label_names(model, len(row))
    return {names[place]: float(shares[place]) for place in shares.argsort(descending=True, stable=True).tolist()}


INPUTS_AT_ONCE, TEXTS_AT_ONCE = 64, 4096  # inputs, and texts, in memory at once; texts of similar length share a batch
LIKELY = 0.5  # threshold of multi-label classes that are reported
PAIR = "pair"  # the column of a second text, where a published model names none


def looks_like_file(thing: str) -> bool:
    """Whether a text looks like the name of a file that does not exist."""
    return " " not in thing.strip() and file_format(thing) in (*RECORD_SUFFIXES, *TEXT_SUFFIXES)


class SkipBadRecords(BadRecordPolicy):
    """Bad-record policy that skips records and passes each error to `refuse`."""

    def __init__(self, refuse: Callable[[DataError], object]) -> None:
        super().__init__("skip")
        self.refuse = refuse

    def record_bad(self, problem: DataError) -> None:
        self.refuse(problem)


def text_columns(record: Record, names: Sequence[str]) -> list[str]:
    return [columns.get_text(record, name) for name in names]


class Classifier:
    """A classification or regression model with its inputs; `name` stands in error messages."""

    def __init__(
        self, model: Model, name: str = "this model", refuse: Callable[[DataError], object] | None = None
    ) -> None:
        self.model, self.name, self.textual = model, name, reads_text(model)
        self.paired = False  # whether every text has a second one
        self.refuse = refuse  # handles the error of each bad input; without it, the first error raises
        try:
            check_classifier(model)
        except ConfigError as problem:
            raise ConfigError(f"{name}: {problem}") from None
        if self.textual and model.tokenizer is None:
            raise DataError(f"{name}: no tokenizer.json; put one beside the model")
        self.c = model.task or config.Classification(input_pair=PAIR if self.textual else None)
        self.task = (
            None
            if self.textual
            else build_objective(
                model, with_input_column(number_classes(self.c, model.c), build_processor(model.c.embed))
            )
        )

    @property
    def kind(self) -> str:
        return "regression" if is_regression(self.model) else "classification"

    @property
    def example(self) -> str:
        """An example of an input file's name."""
        return "A.png" if isinstance(self.task, tasks.InputTask) and self.task.sense.column == "image" else "A.jsonl"

    def __call__(self, things: Sequence[str], top: int | None = None) -> Iterator[dict[str, Any]]:
        """The predictions for the arguments of a command line, in order: `top` classes, or the most probable."""
        for name, record, answer in self.predict(row for thing in things for row in self.rows(thing)):
            if answer is not None:
                yield {
                    "of": name,
                    **self.format_answer(answer, top),
                    **({"where": record.where} if self.refuse else {}),
                }

    def predict(self, rows: Iterable[tuple[str, Record]]) -> Iterator[tuple[str, Record, Any]]:
        """Records with their names and predictions; None for a record whose error `refuse` handled."""
        for some in in_chunks(rows, TEXTS_AT_ONCE if self.textual else INPUTS_AT_ONCE):
            answers = self.classify_texts(some) if self.textual else self.classify_inputs(some)
            yield from ((*row, answer) for row, answer in zip(some, answers, strict=True))

    # ---------------------------------------------------------------- inputs in Python

    def inputs(self, things: Sequence[Any], pairs: Sequence[str] | None) -> Iterator[tuple[str, Record]]:
        """The records of the inputs of `Model.classify`, in order: texts, images, sounds, files, records."""
        if pairs is not None and not self.textual:
            raise ConfigError(f"pairs: {self.name} takes {self.model.c.embed.kind!r} and no texts; leave them out")
        if pairs is not None and len(pairs) != len(things):
            raise ConfigError(f"pairs: {len(pairs)} texts for {len(things)} of inputs; give one for each")
        self.paired, names = pairs is not None, number_texts(len(things))
        for place, thing in enumerate(things):
            other = None if pairs is None else pairs[place]
            is_file = isinstance(thing, Path) or (isinstance(thing, str) and not self.textual)
            if is_file and other is None:
                found: Iterable[Record] = self.file_records(str(thing))
            elif self.textual:
                found = [self.text_input(thing, other, names[place])]
            else:
                found = [input_record(thing, self.column, place + 1)]
            yield from ((record.where, record) for record in found)

    def text_input(self, thing: Any, other: str | None, name: str) -> Record:
        if isinstance(thing, Mapping) and other is None:
            return thing if isinstance(thing, Record) else Record(dict(thing), name)
        for text in (thing,) if other is None else (thing, other):
            if not isinstance(text, str):
                raise DataError(f"{name}: {type(text).__name__} is no text, and {self.name} takes text; give strings, "
                                "records, or the pathlib.Path of a file")  # fmt: skip
            if not text.strip():
                raise DataError(f"{name}: {text!r} is empty; give it some words")
        if self.model.task is not None and self.pair and other is None:
            raise DataError(f"{name}: {self.name} was trained on pairs of texts; give the second ones as pairs")
        return Record({self.column: thing} | ({} if other is None else {self.pair or PAIR: other}), name)

    # ---------------------------------------------------------------- arguments of a command line

    def rows(self, thing: str) -> Iterator[tuple[str, Record]]:
        """The records of a text or a file, by name."""
        for record in self.records(thing):
            yield (thing if self.textual or record.where == thing else record.where), record

    def records(self, thing: str) -> Iterable[Record]:
        if self.textual and not os.path.isfile(thing) and not looks_like_file(thing):
            return [self.record_of_text(thing, self.column)]
        return self.file_records(thing)

    @property
    def column(self) -> str:
        """The column with the input of the model."""
        found: str = (self.c if self.task is None else self.task.c).input  # type: ignore[union-attr]
        return found

    def file_records(self, path: str) -> Iterable[Record]:
        """The records of a file or a folder; an image or a recording is one record."""
        found = find_records((path,), config.Data(text_column=self.column) if self.textual else None)
        return (
            record
            for table in found
            for record in table.records(SkipBadRecords(self.refuse) if self.refuse else BadRecordPolicy())
        )

    def record_of_text(self, text: str, column: str) -> Record:
        """The record of a text; for a model of text pairs, two texts with a tab between."""
        first, tab, second = text.partition("\t")
        if not self.pair or (not tab and self.model.task is None):
            return Record({column: text}, repr(text[:40]))
        if not tab:
            raise DataError(f"{text[:40]!r}: {self.name} was trained on pairs of texts; give both, with a tab between "
                            "or the second by --pair")  # fmt: skip
        return Record({column: first, self.pair: second}, repr(text[:40]))

    @property
    def pair(self) -> str | None:
        return getattr(self.c, "input_pair", None)

    # ---------------------------------------------------------------- records

    def classify_texts(self, rows: Sequence[tuple[str, Record]]) -> list[Any]:
        """Predictions for text records, those with and those without a second text."""
        told: dict[int, Any] = {}
        for paired in (True, False):
            places = [place for place, (_, record) in enumerate(rows) if self.has_pair(record) == paired]
            columns = (self.c.input, self.pair or PAIR) if paired else (self.c.input,)  # type: ignore[union-attr]
            refuse = None if self.refuse is None else self.pass_over
            said = try_each(((rows[place][1], columns) for place in places), text_columns, refuse)
            known = [(place, texts) for place, texts in zip(places, said, strict=True) if texts is not None]
            texts, others = [each[0] for _, each in known], [each[-1] for _, each in known] if paired else None
            names = [rows[place][1].where for place, _ in known]
            found = classify_texts(self.model, texts, others, names=names, refuse=refuse)
            told |= zip([place for place, _ in known], found, strict=True)
        return [told.get(place) for place in range(len(rows))]

    def pass_over(self, place: int, problem: DataError) -> None:
        assert self.refuse is not None
        self.refuse(problem)

    def has_pair(self, record: Record) -> bool:
        return self.paired or self.pair is not None and (self.model.task is not None or self.pair in record)

    def classify_inputs(self, rows: Sequence[tuple[str, Record]]) -> list[Any]:
        """Predictions for other records, all in one batch."""
        task, device = self.task, next(self.model.parameters()).device
        assert isinstance(task, tasks.InputTask)

        def forward(examples: list[TensorExample]) -> list[Any]:
            batch = batch_to_device(task.collate_eval(examples, seeded_generator(0)), device)
            return [label_probabilities(self.model, row) for row in classify_batch(self.model, batch).float().cpu()]

        examples = [task.encode_input(record) for _, record in rows]
        return run_batched(self.model, examples, [list(range(len(rows)))], forward)

    def format_answer(self, answer: Any, top: int | None) -> dict[str, Any]:
        """The most probable classes with their probabilities, or the number."""
        if isinstance(answer, float):
            return {"number": answer}
        likely = sum(share >= LIKELY for share in answer.values()) if is_multi_label(self.model) else 1
        return {"classes": dict(islice(answer.items(), max(1, likely) if top is None else top))}
