"""Scoring of text outputs: extracted spans (SQuAD) and translations (BLEU, chrF)."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from regard import data, tasks
from regard.data.batching import batch_to_device
from regard.evaluation.bleu import TranslationScores, TranslationScoring, score_translations
from regard.evaluation.scoring import RowOutput, RowScorer, ScoredRow
from regard.generation.params import beam_search_params
from regard.inference.batching import count_inputs, length_batches, run_batched
from regard.inference.translation import Translator
from regard.tasks.collate import TaskBatch, TaskExample
from regard.tasks.metrics import accuracy, safe_ratio
from regard.tasks.question_answering import AnswerSpan


class AnswerScorer(RowScorer):
    """Extractive question answering: a long context is split into windows, and the answer with the highest score is
    taken."""

    columns = ("question", "context")
    task: tasks.QuestionAnswering

    def predict(self, batch: TaskBatch) -> Iterable[tuple[Any, Any]]:
        return ()  # a batch has one window of each text alone

    def finalize(self, portion: Sequence[ScoredRow], answers: list[Any]) -> Iterable[tuple[Any, Any]]:
        assert self.model.tokenizer is not None
        windows = [(place, window) for place, row in enumerate(portion)
                   for window in self.task.windows(row.record, self.model.tokenizer)]  # fmt: skip
        found: list[list[AnswerSpan]] = [[] for _ in portion]
        batches = length_batches([len(window["ids"]) for _, window in windows])
        said = run_batched(self.model, [window for _, window in windows], batches, self.spans)
        for (place, _), answer in zip(windows, said, strict=True):
            found[place].append(answer)
        for row, some in zip(portion, found, strict=True):
            best = max(some, key=lambda each: each.score)
            yield row.record[self.task.c.context][best.start : best.stop], self.score_answer(row, some)

    def spans(self, windows: list[TaskExample]) -> list[Any]:
        batch = self.task.collate(windows, data.seeded_generator(0))
        return list(self.task.answers(self.model, batch_to_device(batch, self.device))["loss"])

    def loss(self, row: ScoredRow) -> int:
        """Truncated tokens of the question; the windows cover the whole context."""
        assert self.model.tokenizer is not None
        room = (self.task.rows.length - len(self.task.specials.pair)) // 2
        return max(0, len(self.model.tokenizer.encode(str(row.record[self.task.c.question]))) - room)

    def score_answer(self, row: ScoredRow, found: list[AnswerSpan]) -> tuple[list[str], dict[str, float]]:
        """The accepted answers, and the SQuAD scores of the prediction."""
        return self.task.right_answers(row.record), self.task.squad([found], [row.record])

    def decode(self, answers: Any) -> Any:
        return answers if isinstance(answers, str) else answers[0]

    @property
    def scores(self) -> dict[str, float]:
        """The scores exact match and F1 in percent, as in SQuAD."""
        marks = [mark for _, mark in self.meant]
        return {name: safe_ratio(sum(mark[name] for mark in marks), len(marks)) for name in ("exact", "f1")}


class TranslationScorer(RowScorer):
    """Translations by beam search, scored against references. The loss is that of the references."""

    columns = ("source",)
    task: tasks.Translation

    def __init__(self, *args: Any, scoring: TranslationScoring | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self.how, self.translator = scoring or TranslationScoring(), Translator(self.model)
        self.sources: list[str] = []

    def predict(self, batch: TaskBatch) -> Iterable[tuple[Any, Any]]:
        return ()

    def finalize(self, portion: Sequence[ScoredRow], answers: list[Any]) -> Iterable[tuple[Any, Any]]:
        """Translate each distinct source once."""
        sources = {str(row.record[self.task.c.source]): self.encode_source(row) for row in portion}
        texts, c = list(sources), beam_search_params(self.how.search)

        def run(some: list[str]) -> list[str]:
            return [one.text for one in self.translator.batch(some, [sources[text] for text in some], c, None)]

        batches = length_batches([len(sources[text]) for text in texts], copies=c.num_beams)
        done = count_inputs(lambda count: self.progress(self.count + count * len(portion) // len(texts)))
        found = dict(zip(texts, run_batched(self.model, texts, batches, run, done), strict=True))
        for row in portion:
            source = str(row.record[self.task.c.source])
            self.sources.append(source)
            yield found[source], str(row.record[self.task.c.target])

    def encode_source(self, row: ScoredRow) -> list[int]:
        """A source in ids as in training; truncated if it is too long, which is reported at the end."""
        return [*self.task.opening, *row.example["source"], *self.task.closing]

    def decode(self, answers: Any) -> Any:
        return answers

    @cached_property
    def translation_scores(self) -> TranslationScores:
        return score_translations(self.sources, self.said, self.meant, self.how)

    @property
    def scores(self) -> dict[str, float]:
        """BLEU and chrF from 0 to 100; `exact` is the percentage of exact matches."""
        return self.translation_scores.scores | {"exact": 100 * accuracy(self.said, self.meant)}

    @property
    def extras(self) -> RowOutput:
        return {"signatures": self.translation_scores.signatures}
