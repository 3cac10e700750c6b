"""Evaluator: the loss and the scores of a model on any data, for the task of its training.

    regard.evaluate("runs/reviews", "movie-reviews:test").scores["accuracy"]
    regard.evaluate("runs/en-fr", "mine.jsonl", ["task.source=english", "task.target=french"], num_beams=8)

A model stores its task and the columns of its data. Without data it is scored on its run's validation data. Bits per
byte compares models with different tokenizers, so the bytes of labels are counted.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from regard import config, tasks
from regard.config.errors import ConfigError, DataError
from regard.data.packing import IGNORE_INDEX
from regard.data.prepare import prepare_text
from regard.data.records import BadRecordPolicy, Record, RecordSource
from regard.data.sources import check_settings_used, find_records, name_sources
from regard.data.token_shards import Notice, Progress, no_progress
from regard.evaluation.bleu import TranslationScoring, import_sacrebleu
from regard.evaluation.eval_spec import EvalSpec, build_eval_spec, held_out_spec, run_folder_of
from regard.evaluation.scoring import (
    RowCallback,
    RowScorer,
    ScoredRow,
    evaluation_rows,
    next_sentence_rows,
    sample_evenly,
)
from regard.evaluation.text_scoring import AnswerScorer, TranslationScorer
from regard.generation.limits import min_prompt_tokens
from regard.inference.dual_encoder_model import DualEncoderModel
from regard.inference.load import load_model
from regard.inference.model import Model
from regard.inference.objective import build_objective, max_length, reads_text
from regard.tasks.collate import TaskExample
from regard.tasks.metrics import bits_per_byte
from regard.text.detokenizer import Detokenizer
from regard.text.tokenizer import Tokenizer
from regard.training.carry_state import with_carried_state
from regard.training.data.read import (
    IMAGE_TEXT_READERS,
    INPUT_READERS,
    Reporter,
    TextWindows,
    ValidationSource,
    read_run_data,
)
from regard.training.validation import ValidationScore
from regard.training.validation import validate as scored
from regard.zoo.recipe import read_recipe

WORDS = (
    "next_token",
    "masked_lm",
    "translation",
    "span_corruption",
    "text_infilling",
    "prefix_lm",
)  # kinds whose losses are those of tokens
Source = str | tuple[str, ...] | config.Data


@dataclass(frozen=True)
class EvaluationResult:
    """The result of an evaluation: the scores, with the number of `rows`, or of `bytes` of a text.

    `extras` are the signatures of BLEU and chrF, and the confusion matrix of classes.
    """

    data: str
    task: config.Task
    score: ValidationScore
    rows: int | None = None
    bytes: int | None = None
    extras: dict[str, Any] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        return self.score.loss

    @property
    def scores(self) -> Mapping[str, float]:
        return self.score.scores

    def tree(self) -> dict[str, Any]:
        """The whole result as plain values, the most important first."""
        score, words = self.score, self.task.kind in WORDS
        said: dict[str, Any] = {"data": self.data, "task": self.task.kind, "loss": score.loss}
        said |= {f"{name}_loss": total / max(1, part.count) for name, (total, part) in score.parts.items()}
        if words and not score.parts:
            said |= {"perplexity": score.perplexity, "bits_per_token": score.bits}
        if self.bytes is not None:
            said["bits_per_byte"] = bits_per_byte(score.sum, self.bytes) if self.bytes else float("nan")
        said |= score.scores
        counts = {"rows": self.rows, "tokens": score.count if words else None, "bytes": self.bytes}
        return script_keys(said | {name: count for name, count in counts.items() if count is not None} | self.extras)


def script_keys(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Keys without spaces, for scripts; the names of classes are unchanged."""
    return {
        name.replace(" ", "_"): script_keys(value) if name == "signatures" else value for name, value in raw.items()
    }


def evaluate(
    model: Model | DualEncoderModel | str | Path,
    source: Source | None = None,
    overrides: Iterable[str] = (),
    *,
    limit: int | None = None,
    each: RowCallback | None = None,
    notice: Notice = warnings.warn,
    progress: Progress = no_progress,
    **settings: Any,
) -> EvaluationResult:
    """Evaluate a model, or the one in a run or a folder, on the given data, or on its run's validation data.

    `overrides` such as "task.label=stars" set how the data are read. `limit` evaluates so many rows, evenly spaced, or
    so many tokens of a text. `each` is called with every row: its source, input, prediction and label.

    The settings are those of `TranslationScoring`, for translations: num_beams, length_penalty, lowercase,
    bleu_tokenize, by_group.
    """
    name = "model" if isinstance(model, Model | DualEncoderModel) else str(model)
    run = None if isinstance(model, Model | DualEncoderModel) else run_folder_of(Path(model))
    recipe, changes = None if run is None else read_recipe(run), list(overrides)
    if not isinstance(model, Model | DualEncoderModel) and run is None:
        model = load_model(model, specials="plain")  # a missing path is reported before anything else
    own = held_out_spec(name, recipe, changes) if source is None else None
    known: Any = model if isinstance(model, Model | DualEncoderModel) else load_run_model(model, recipe)
    if known.tokenizer is None and reads_text(known):
        raise DataError(f"{name}: no tokenizer.json; put one beside the model")
    asked = own or build_eval_spec(known, recipe, data_config(source), changes)
    exam = Evaluator(known, asked, None if own is None else recipe, Reporter(notice, progress), limit)
    if limit is not None and limit < 1:
        raise ConfigError(f"limit: {limit} leaves nothing to ask; choose one or more")
    how, which = (
        scoring_settings(settings, asked.task),
        {} if run is None else best_checkpoint_note(run, known.source_folder.path),
    )
    if asked.task.kind not in (*INPUT_READERS, *IMAGE_TEXT_READERS) and not isinstance(asked.task, config.NextToken):
        made = exam.evaluate_rows(each, how)
        return replace(made, extras=made.extras | which)
    if each is not None:
        what = "a text" if isinstance(asked.task, config.NextToken) else f"task {asked.task.kind!r}"
        raise ConfigError(f"{what} has no separate rows to report; leave out --out (each)")
    made = exam.text() if isinstance(asked.task, config.NextToken) else exam.evaluate_text(recipe, name)
    return replace(made, extras=made.extras | which)


def best_checkpoint_note(run: Path, folder: Path) -> dict[str, str]:
    """The evaluated checkpoint, if it is the best one of a run."""
    link = run / "best"
    same = link.is_dir() and link.samefile(folder)
    return {"checkpoint": f"{folder.resolve().name}, the best of the run"} if same else {}


def load_run_model(path: str | Path, recipe: config.Recipe | None) -> Any:
    """The model of a run, with special tokens in its data parsed as in training."""
    return load_model(path, specials="plain" if recipe is None else recipe.tokenizer.specials)


def data_config(source: Source | None) -> config.Data:
    if isinstance(source, config.Data):
        return replace(source, validation=0.0)
    assert source is not None
    return config.from_dict(config.Data, {"source": source, "validation": 0.0}, "data")


def scoring_settings(settings: dict[str, Any], task: config.Task) -> TranslationScoring:
    """The settings of translations, which no other task accepts."""
    if settings and not isinstance(task, config.Translation):
        name = next(iter(settings)).replace("_", "-")
        raise ConfigError(f"{name}: for translations only, and the task is {task.kind!r}; leave it out")
    if isinstance(task, config.Translation):
        import_sacrebleu()  # fail before the translations, which take minutes
    return config.from_dict(TranslationScoring, settings)


# ---------------------------------------------------------------- the evaluator


@dataclass(frozen=True)
class Evaluator:
    """A model and the evaluation requested for it; `recipe` is the run's, for an evaluation on its validation data."""

    model: Any  # a Model, or a DualEncoderModel
    asked: EvalSpec
    recipe: config.Recipe | None
    voice: Reporter
    limit: int | None

    @property
    def tokenizer(self) -> Tokenizer:
        tokenizer: Tokenizer | None = self.model.tokenizer
        assert tokenizer is not None
        return tokenizer

    def text(self) -> EvaluationResult:
        """The next-token loss over a whole text."""
        min_prompt_tokens(self.model)  # refuses a model that attends to the token it predicts
        there, sizes = self.read(), ByteCounter(self.tokenizer)
        task = build_objective(self.model, self.asked.task)
        score = scored(with_carried_state(self.model, there), sizes.of(there.batches(self.limit)), task)
        return EvaluationResult(there.name, self.asked.task, score, bytes=sizes.total)

    def read(self) -> ValidationSource | TextWindows:
        """The validation data of the run, split as in training; or a text in windows."""
        if self.recipe is not None:
            alone = replace(self.recipe, train=replace(self.recipe.train, workers=0))
            found = read_run_data(alone, self.tokenizer, self.voice).validation
            assert found is not None
            return found
        how = config.ByteTokenizer(
            specials="parse" if self.tokenizer.parses_specials else "plain"
        )  # the model's own tokenizer is used
        made = prepare_text(self.asked.data, how, tokenizer=self.tokenizer, notice=self.voice.notice,
                       progress=self.voice.progress)  # fmt: skip
        return TextWindows(made.train, max_length(self.model))

    def evaluate_text(self, recipe: config.Recipe | None, name: str) -> EvaluationResult:
        """Evaluate data without separate records, read as in the run's training: its validation data, or all of a given
        source."""
        if recipe is None:
            raise ConfigError(
                f"{name}: not of a run, and {self.asked.task.kind!r} needs its run's settings; name a run"
            )
        own = self.recipe is not None
        data = recipe.data if own else replace(recipe.data, validation=self.asked.data.source)
        alone = replace(recipe, data=data, task=self.asked.task, train=replace(recipe.train, workers=0))
        made = read_run_data(alone, self.model.tokenizer, self.voice)
        assert made.validation is not None
        if not own:
            self.tell_trained(recipe, name)
        score = scored(self.model, made.validation.batches(self.limit), made.task, scores=True)
        return EvaluationResult(made.validation.name, self.asked.task, score)

    def tell_trained(self, recipe: config.Recipe, run: str) -> None:
        """Warn that an evaluation on the whole series includes rows that were trained on, which score better."""
        part = recipe.data.validation
        if not isinstance(self.asked.task, config.Forecasting) or self.asked.task.split or not isinstance(part, float):
            return
        theirs, ours = (find_records(data.sources, data) for data in (self.asked.data, recipe.data))
        if [table.digest for table in theirs] == [table.digest for table in ours]:
            alone = f"; `regard evaluate {run}` evaluates only those" if part else ""
            self.voice.notice(f"{name_sources([table.name for table in theirs])}: all its rows are evaluated, and the "
                              "run was "
                              f"trained on all but the last {part:g} of them{alone}")  # fmt: skip

    def evaluate_rows(self, each: RowCallback | None, scoring: TranslationScoring) -> EvaluationResult:
        """Evaluate record by record, for all other tasks."""
        task, found, tally = build_objective(self.model, self.asked.task), self.tables(), BadRecordPolicy()

        def make(record: Record) -> list[TaskExample]:
            if isinstance(task, tasks.Translation):
                return [task.example(record, self.tokenizer, self.model.target_tokenizer)]
            return task.examples(record, self.model.tokenizer)

        def all() -> Iterable[ScoredRow]:
            nonlocal tally
            tally = BadRecordPolicy(self.asked.data.on_bad_record)
            return evaluation_rows(found, make, tally, self.share)

        some = sample_evenly(all, self.limit)
        if isinstance(task, tasks.MaskedLM) and task.c.next_sentence:
            some = next_sentence_rows(list(some), task)
        ask = (self.model, task, some, each, self.voice.progress)
        marks = TranslationScorer(*ask, scoring=scoring) if isinstance(task, tasks.Translation) else (
            AnswerScorer(*ask) if isinstance(task, tasks.QuestionAnswering) else RowScorer(*ask))  # fmt: skip
        name = ("" if self.share is None else f"{self.share:g} of ") + name_sources([table.name for table in found])
        score = scored(self.model, marks.batches(), task)
        if not marks.count:
            raise DataError(f"{name}: no records to ask; name a source that has some")
        self.report(name, marks, tally)
        return EvaluationResult(
            name, task.c, replace(score, scores=marks.scores), rows=marks.count, extras=marks.extras
        )

    def tables(self) -> list[RecordSource]:
        data = self.asked.data
        found = find_records(data.validations if self.recipe is not None and data.validations else data.sources, data)
        check_settings_used(self.asked.said, found)
        return found

    @property
    def share(self) -> float | None:
        """The validation share of the run, if it is a share."""
        part = None if self.recipe is None else self.recipe.data.validation
        return part if isinstance(part, float) else None

    def report(self, name: str, marks: RowScorer, tally: BadRecordPolicy) -> None:
        """Report truncated rows and skipped records."""
        if marks.cut:
            self.voice.notice(f"{name}: {marks.shortened:,} of {marks.count:,} rows were too long, and {marks.cut:,} "
                              "of their tokens are cut off")  # fmt: skip
        if tally.count:
            self.voice.notice(f"{name}: {tally.summary}")


class ByteCounter:
    """Counts the bytes of the labels in batches."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.total = tokenizer, 0
        self.stream: Detokenizer | None = None

    def of(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Count the bytes of batches as they pass."""
        for batch in batches:
            if isinstance(batch, Tensor):  # windows of one text, each continuing the one before
                self.put(batch[:, 1:].flatten().tolist(), int(batch[0, 0]))
            else:
                self.documents(batch)
            yield batch
        self.end()

    def documents(self, batch: dict[str, Tensor]) -> None:
        """Separate rows with documents in them: consecutive labels are decoded together."""
        for ids, labels in zip(batch["ids"].tolist(), batch["labels"].tolist(), strict=True):
            self.end()
            for before, told in zip(ids, labels, strict=True):
                if told == IGNORE_INDEX:
                    self.end()
                else:
                    self.put([told], before)

    def put(self, ids: list[int], before: int) -> None:
        if self.stream is None:
            self.stream = self.tokenizer.stream()
            self.stream.put(before)
        self.total += sum(len(self.stream.put(id).encode()) for id in ids)

    def end(self) -> None:
        self.total += 0 if self.stream is None else len(self.stream.flush().encode())
        self.stream = None
