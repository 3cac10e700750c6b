"""Extractive question answering with a trained model: the span of a context that answers a question, and its score.

    who sat on the mat?  +  it was the cat that sat there.  ──►  "the cat", characters 7 to 14

A long context is split into overlapping windows, as in training. The best window is the one whose best span exceeds "no
answer", the first token, by most; where no span exceeds it, there is no answer.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from regard import config
from regard.config.errors import ConfigError, DataError
from regard.data.records import Record
from regard.inference.batching import count_inputs, length_batches, run_batched
from regard.inference.text_inputs import OnBadInput, TextInputs, architecture_ends_with, check_text, try_each
from regard.tasks.collate import RowPadding
from regard.tasks.question_answering import QuestionAnswering
from regard.tasks.task import build_task

if TYPE_CHECKING:
    from regard.inference.model import Model

LENGTH = 512  # tokens of a window, for a model without a context length


class AnswerText(NamedTuple):
    """A span of a context; empty, from 0 to 0, for no answer. `score` is p(begins here)·p(ends here)."""

    text: str
    start: int
    stop: int
    score: float


class BestSpan(NamedTuple):
    """The best span of a window: its margin above no answer, the span, its probability."""

    above: float
    span: tuple[int, int]
    score: float


def answer_questions(
    model: "Model", questions: Sequence[tuple[str, str]], *, names: Sequence[str] | None = None,
    progress: Callable[[int], object] | None = None, refuse: OnBadInput | None = None,
) -> list[Any]:  # fmt: skip
    """The answer to each question in its context, an AnswerText; None for a question whose error `refuse` handled."""
    task, names = qa_objective(model), names or [""] * len(questions)
    assert model.tokenizer is not None
    tokenizer, windows, owners = model.tokenizer, list[dict[str, Any]](), list[int]()

    def cut(question: str, context: str, name: str) -> list[dict[str, Any]]:
        return task.windows(qa_record(task.c, question, context, name), tokenizer)

    given = ((*each, name) for each, name in zip(questions, names, strict=True))
    for place, made in enumerate(try_each(given, cut, refuse)):
        windows += made or []
        owners += [place] * len(made or [])
    best: dict[int, BestSpan] = {}
    found = run_batched(model, windows, length_batches([len(window["ids"]) for window in windows]),
                        lambda some: score_windows(model, task, some), count_inputs(progress, owners))  # fmt: skip
    for owner, span in zip(owners, found, strict=True):
        best[owner] = max(best.get(owner, span), span)
    return [
        best_answer(best[place], context) if place in best else None for place, (_, context) in enumerate(questions)
    ]


def pair_contexts(questions: Sequence[str], context: str | Sequence[str]) -> list[tuple[str, str]]:
    """Each question with its context: one for all, or one each."""
    contexts = [context] * len(questions) if isinstance(context, str) else context
    if len(contexts) != len(questions):
        raise ConfigError(f"context: {len(contexts)} texts for {len(questions)} questions; give one for each, or one "
                          "for all")  # fmt: skip
    return list(zip(questions, contexts, strict=True))


def qa_objective(model: "Model") -> QuestionAnswering:
    """The question answering objective of a model; refuses a model without start and end logits."""
    reader, head = TextInputs.of(model), model.c.head
    if (
        not isinstance(head, config.TokenHead)
        or head.out != 2
        or architecture_ends_with(model, "ForTokenClassification")
    ):
        raise ConfigError(f"head.kind: {head.kind!r} predicts no start and end of an answer; name a model that "
                          "was trained to answer (ForQuestionAnswering)")  # fmt: skip
    if model.task is not None and not isinstance(model.task, config.QuestionAnswering):
        raise ConfigError(f"task.kind: this model was trained for {model.task.kind!r} and answers no questions")
    c = model.task if isinstance(model.task, config.QuestionAnswering) else config.QuestionAnswering()
    made = build_task(c, reader.tokenizer, model.c, rows=RowPadding(max(4, reader.longest or LENGTH)))
    assert isinstance(made, QuestionAnswering)
    return made


def qa_record(c: config.QuestionAnswering, question: str, context: str, name: str) -> Record:
    for what, text in (("question", question), ("context", context)):
        check_text(text, name or what)
        if not text.strip():
            raise DataError(f"{name + ': ' if name else ''}the {what}, {text!r}, is empty; give it some words")
    return Record({c.question: question, c.context: context, c.answer: ""}, name or repr(question[:40]))


def score_windows(model: "Model", task: QuestionAnswering, windows: list[dict[str, Any]]) -> list[BestSpan]:
    device = next(model.parameters()).device
    batch = {name: table.to(device) for name, table in task.collate(windows, torch.Generator()).items()}
    starts, stops = task.logits(model, batch)
    logs = starts.log_softmax(-1)[:, :, None] + stops.log_softmax(-1)[:, None, :]  # (B, N, N): log p of every span
    none = logs.diagonal(dim1=1, dim2=2).gather(1, batch["none"][:, None])[:, 0]
    best, place = logs.masked_fill(~task.sensible(batch), -torch.inf).flatten(1).max(-1)
    found = task.characters(batch, place // logs.shape[1], place % logs.shape[1])
    above = best - none
    score = torch.where(above > 0, best, none).exp()
    return [BestSpan(a, s, p) for a, s, p in zip(above.tolist(), found, score.tolist(), strict=True)]


def best_answer(best: BestSpan, context: str) -> AnswerText:
    start, stop = best.span if best.above > 0 else (0, 0)
    return AnswerText(context[start:stop], start, stop, best.score)
