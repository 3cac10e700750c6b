"""An exam: a model is asked what it was trained for, on data of your own, and its answers are scored.

    regard.evaluate("runs/reviews", "movie-reviews:test").scores["accuracy"]
    regard.evaluate("runs/en-fr", "mine.jsonl", ["task.source=english", "task.target=french"], beams=8)

A model knows what it was asked in training, and in which columns that stood. Without data it is asked what its run
kept back to validate on.
"""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from regard import config, tasks
from regard.config import ConfigError, DataError
from regard.data import Notice, Progress, Record, Table, Tally, prepare, quiet, tables
from regard.data.sources import few, heeded
from regard.generate.limits import least
from regard.generate.model import Transformer
from regard.generate.opening import load
from regard.generate.score import Scoring, sacrebleu
from regard.generate.towers import Towers
from regard.tasks import Example
from regard.tasks.metrics import bits_per_byte
from regard.text import Tokenizer
from regard.train.asking import Question, built, kept_back, length, question, reads_text, run_of
from regard.train.carry import through
from regard.train.evaluate import Score
from regard.train.evaluate import evaluate as scored
from regard.train.marking import Each, Marks, Row, evenly, pairs, rows
from regard.train.reading import MIXTURES, READERS, Text, Validation, Voice, read
from regard.train.sizes import Sizes
from regard.train.telling import Answered, Translated
from regard.zoo import read_recipe

WORDS = ("next", "masked", "translate", "spans", "infill", "prefix")  # kinds whose losses are of words
Source = str | tuple[str, ...] | config.Data


@dataclass(frozen=True)
class Evaluation:
    """How good the answers were. `rows` were asked, or a text of so many `bytes`; `more` is what else there is to know:
    the signatures of BLEU and chrF, and which classes were taken for which.
    """

    data: str
    task: config.Task
    score: Score
    rows: int | None = None
    bytes: int | None = None
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        return self.score.loss

    @property
    def scores(self) -> Mapping[str, float]:
        return self.score.scores

    def tree(self) -> dict[str, Any]:
        """All of it as plain values, in the order in which people want to know."""
        score, words = self.score, self.task.kind in WORDS
        said: dict[str, Any] = {"data": self.data, "task": self.task.kind, "loss": score.loss}
        said |= {f"{name}_loss": total / max(1, part.count) for name, (total, part) in score.parts.items()}
        if words and not score.parts:
            said |= {"perplexity": score.perplexity, "bits_per_token": score.bits}
        if self.bytes is not None:
            said["bits_per_byte"] = bits_per_byte(score.sum, self.bytes) if self.bytes else float("nan")
        said |= score.scores
        counts = {"rows": self.rows, "tokens": score.count if words else None, "bytes": self.bytes}
        return joined(said | {name: count for name, count in counts.items() if count is not None} | self.more)


def joined(said: Mapping[str, Any]) -> dict[str, Any]:
    """Names in one word, for scripts; those of classes stay as they are."""
    return {name.replace(" ", "_"): joined(value) if name == "signatures" else value for name, value in said.items()}


def evaluate(
    model: Transformer | Towers | str | Path, source: Source | None = None, overrides: Iterable[str] = (), *,
    limit: int | None = None, each: Each | None = None, notice: Notice = warnings.warn, progress: Progress = quiet,
    **settings: Any,
) -> Evaluation:  # fmt: skip
    """Ask a model, or the one in a run or a folder, all that the data hold; or what its run kept back.

    `overrides` such as "task.label=stars" say how these data are read. `limit` asks so many rows, from everywhere
    alike, or so many tokens of a text. `each` hears of every row: where it stood, what was asked, said and expected.
    The settings are those of `Scoring`, for translations: beams, length_penalty, lower, tokenise, group.
    """
    name = "model" if isinstance(model, Transformer | Towers) else str(model)
    run = None if isinstance(model, Transformer | Towers) else run_of(Path(model))
    recipe, changes = None if run is None else read_recipe(run), list(overrides)
    if not isinstance(model, Transformer | Towers) and run is None:
        model = load(model, specials="plain")  # a path where nothing is says so before anything else
    own = kept_back(name, recipe, changes) if source is None else None
    known: Any = model if isinstance(model, Transformer | Towers) else loaded(model, recipe)
    if known.tokenizer is None and reads_text(known):
        raise DataError(f"{name}: no tokenizer.json to read a text with; put one beside the model")
    asked = own or question(known, recipe, given(source), changes)
    exam = Exam(known, asked, None if own is None else recipe, Voice(notice, progress), limit)
    if limit is not None and limit < 1:
        raise ConfigError(f"limit: {limit} leaves nothing to ask; choose one or more")
    how, which = scoring(settings, asked.task), {} if run is None else of_best(run, known.origin.path)
    if asked.task.kind not in (*READERS, *MIXTURES) and not isinstance(asked.task, config.NextToken):
        made = exam.rows(each, how)
        return replace(made, more=made.more | which)
    if each is not None:
        what = "a text" if isinstance(asked.task, config.NextToken) else f"task {asked.task.kind!r}"
        raise ConfigError(f"{what} has no rows to tell of one by one: it is asked everywhere; leave out --out (each)")
    made = exam.text() if isinstance(asked.task, config.NextToken) else exam.whole(recipe, name)
    return replace(made, more=made.more | which)


def of_best(run: Path, folder: Path) -> dict[str, str]:
    """Which checkpoint was asked, where it is the best one that a run keeps."""
    link = run / "best"
    same = link.is_dir() and link.samefile(folder)
    return {"checkpoint": f"{folder.resolve().name}, the best of the run"} if same else {}


def loaded(path: str | Path, recipe: config.Recipe | None) -> Any:
    """The model of a run, with special tokens in its data read as they were in training."""
    return load(path, specials="plain" if recipe is None else recipe.text.specials)


def given(source: Source | None) -> config.Data:
    if isinstance(source, config.Data):
        return replace(source, validation=0.0)
    assert source is not None
    return config.make(config.Data, {"source": source, "validation": 0.0}, "data")


def scoring(settings: dict[str, Any], task: config.Task) -> Scoring:
    """The settings of translations; nobody else takes them."""
    if settings and not isinstance(task, config.Translate):
        name = next(iter(settings)).replace("_", "-")
        raise ConfigError(f"{name}: for translations alone, and what is asked here is {task.kind!r}; leave it out")
    if isinstance(task, config.Translate):
        sacrebleu()  # before anybody waits for translations
    return config.make(Scoring, settings)


# ---------------------------------------------------------------- the exam


@dataclass(frozen=True)
class Exam:
    """A model and what is asked of it; `recipe` is the run's, if it is asked what that kept back."""

    model: Any  # a Transformer, or Towers
    asked: Question
    recipe: config.Recipe | None
    voice: Voice
    limit: int | None

    @property
    def tokenizer(self) -> Tokenizer:
        tokenizer: Tokenizer | None = self.model.tokenizer
        assert tokenizer is not None
        return tokenizer

    def text(self) -> Evaluation:
        """The next token, everywhere in a text."""
        least(self.model)  # refuses a model that sees the word it is to predict
        there, sizes = self.read(), Sizes(self.tokenizer)
        task = built(self.model, self.asked.task)
        score = scored(through(self.model, there), sizes.of(there.batches(self.limit)), task)
        return Evaluation(there.name, self.asked.task, score, bytes=sizes.total)

    def read(self) -> Validation | Text:
        """What a run validates on, read by the run itself; or a text in windows."""
        if self.recipe is not None:
            alone = replace(self.recipe, train=replace(self.recipe.train, workers=0))
            found = read(alone, self.tokenizer, self.voice).validation
            assert found is not None
            return found
        how = config.Bytes(specials="parse" if self.tokenizer.parses_specials else "plain")  # its tokenizer is there
        made = prepare(self.asked.data, how, tokenizer=self.tokenizer, notice=self.voice.notice,
                       progress=self.voice.progress)  # fmt: skip
        return Text(made.train, length(self.model))

    def whole(self, recipe: config.Recipe | None, name: str) -> Evaluation:
        """Data that are no records apart, read by the run that trained on them: what it kept back, or others whole."""
        if recipe is None:
            raise ConfigError(f"{name}: not of a run, and {self.asked.task.kind!r} is read as its run was; name a run")
        own = self.recipe is not None
        data = recipe.data if own else replace(recipe.data, validation=self.asked.data.source)
        alone = replace(recipe, data=data, task=self.asked.task, train=replace(recipe.train, workers=0))
        made = read(alone, self.model.tokenizer, self.voice)
        assert made.validation is not None
        if not own:
            self.tell_trained(recipe, name)
        score = scored(self.model, made.validation.batches(self.limit), made.task, scores=True)
        return Evaluation(made.validation.name, self.asked.task, score)

    def tell_trained(self, recipe: config.Recipe, run: str) -> None:
        """All of a series was asked, and most of it may have been trained on: that scores better than what was not."""
        part = recipe.data.validation
        if not isinstance(self.asked.task, config.Forecast) or self.asked.task.split or not isinstance(part, float):
            return
        theirs, ours = (tables(data.sources, data) for data in (self.asked.data, recipe.data))
        if [table.digest for table in theirs] == [table.digest for table in ours]:
            alone = f"; `regard evaluate {run}` asks those alone" if part else ""
            self.voice.notice(f"{few([table.name for table in theirs])}: all of its rows are asked, and the run was "
                              f"trained on all but the last {part:g} of them{alone}")  # fmt: skip

    def rows(self, each: Each | None, how: Scoring) -> Evaluation:
        """Everything else: record by record."""
        task, found, tally = built(self.model, self.asked.task), self.tables(), Tally()

        def make(record: Record) -> list[Example]:
            if isinstance(task, tasks.Translate):
                return [task.example(record, self.tokenizer, self.model.target_tokenizer)]
            return task.examples(record, self.model.tokenizer)

        def all() -> Iterable[Row]:
            nonlocal tally
            tally = Tally(self.asked.data.bad)
            return rows(found, make, tally, self.share)

        some = evenly(all, self.limit)
        if isinstance(task, tasks.Masked) and task.c.next_sentence:
            some = pairs(list(some), task)
        ask = (self.model, task, some, each, self.voice.progress)
        marks = Translated(*ask, how=how) if isinstance(task, tasks.Translate) else (
            Answered(*ask) if isinstance(task, tasks.Answer) else Marks(*ask))  # fmt: skip
        name = ("" if self.share is None else f"{self.share:g} of ") + few([table.name for table in found])
        score = scored(self.model, marks.batches(), task)
        if not marks.count:
            raise DataError(f"{name}: no records to ask; name a source that has some")
        self.tell(name, marks, tally)
        return Evaluation(name, task.c, replace(score, scores=marks.scores), rows=marks.count, more=marks.more)

    def tables(self) -> list[Table]:
        data = self.asked.data
        found = tables(data.validations if self.recipe is not None and data.validations else data.sources, data)
        heeded(self.asked.said, found)
        return found

    @property
    def share(self) -> float | None:
        """The part that the run kept back, where it was a part."""
        part = None if self.recipe is None else self.recipe.data.validation
        return part if isinstance(part, float) else None

    def tell(self, name: str, marks: Marks, tally: Tally) -> None:
        """It is no secret that something is missing."""
        if marks.cut:
            self.voice.notice(f"{name}: {marks.shortened:,} of {marks.count:,} rows were too long, and {marks.cut:,} "
                              "of their tokens are cut off")  # fmt: skip
        if tally.count:
            self.voice.notice(f"{name}: {tally.told}")
