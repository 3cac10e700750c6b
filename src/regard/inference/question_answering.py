"""Answers that stand in a text: from which character to which, and how sure that is.

    who sat on the mat?  +  it was the cat that sat there.  ──►  "the cat", characters 7 to 14

A long text is read in windows that overlap, as training reads it. The best window is the one whose best span is most
above "no answer", the first token; where no span is above it, there is none.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from regard import config
from regard.config import ConfigError, DataError
from regard.data import Record
from regard.generate.frames import Reader, Refuse, attempts, called
from regard.generate.session import still
from regard.generate.translate import batches
from regard.tasks.answer import Answer
from regard.tasks.rows import Rows
from regard.tasks.task import build

if TYPE_CHECKING:
    from regard.generate.model import Transformer

LENGTH = 512  # tokens of a window, for a model that does not say how much it reads at once


class Span(NamedTuple):
    """A part of a context; empty, from 0 to 0, where there is no answer. `score` is p(begins here)·p(ends here)."""

    text: str
    start: int
    stop: int
    score: float


class Best(NamedTuple):
    """The best of a window: how far above no answer, the span, its probability."""

    above: float
    span: tuple[int, int]
    score: float


def answers(
    model: "Transformer", asked: Sequence[tuple[str, str]], *, names: Sequence[str] | None = None,
    progress: Callable[[int], object] | None = None, refuse: Refuse | None = None,
) -> list[Any]:  # fmt: skip
    """The answer to each question in its context, a Span; None for a question that `refuse` was told of."""
    task, names = objective(model), names or [""] * len(asked)
    assert model.tokenizer is not None
    tokenizer, windows, owners = model.tokenizer, list[dict[str, Any]](), list[int]()

    def cut(question: str, context: str, name: str) -> list[dict[str, Any]]:
        return task.windows(record(task.c, question, context, name), tokenizer)

    given = ((*each, name) for each, name in zip(asked, names, strict=True))
    for place, made in enumerate(attempts(given, cut, refuse)):
        windows += made or []
        owners += [place] * len(made or [])
    best: dict[int, Best] = {}
    for rows in batches([len(window["ids"]) for window in windows], 1):
        for row, found in zip(rows, judged(model, task, [windows[row] for row in rows]), strict=True):
            best[owners[row]] = max(best.get(owners[row], found), found)
        if progress is not None:
            progress(len(best))
    return [span(best[place], context) if place in best else None for place, (_, context) in enumerate(asked)]


def objective(model: "Transformer") -> Answer:
    """The objective of training, for a model that says where answers begin and end."""
    reader, head = Reader.of(model), model.c.head
    if not isinstance(head, config.Each) or head.out != 2 or called(model, "ForTokenClassification"):
        raise ConfigError(f"head.kind: {head.kind!r} does not say where an answer begins and ends; name a model that "
                          "was trained to answer (ForQuestionAnswering)")  # fmt: skip
    if model.task is not None and not isinstance(model.task, config.Answer):
        raise ConfigError(f"task.kind: this model was trained for {model.task.kind!r} and answers no questions")
    c = model.task if isinstance(model.task, config.Answer) else config.Answer()
    made = build(c, reader.tokenizer, model.c, rows=Rows(max(4, reader.longest or LENGTH)))
    assert isinstance(made, Answer)
    return made


def record(c: config.Answer, question: str, context: str, name: str) -> Record:
    for what, text in (("question", question), ("context", context)):
        if not text.strip():
            raise DataError(f"{name + ': ' if name else ''}the {what}, {text!r}, is empty; give it some words")
    return Record({c.question: question, c.context: context, c.answer: ""}, name or repr(question[:40]))


def judged(model: "Transformer", task: Answer, windows: list[dict[str, Any]]) -> list[Best]:
    device = next(model.parameters()).device
    batch = {name: table.to(device) for name, table in task.collate(windows, torch.Generator()).items()}
    with still(list(model.modules())):
        starts, stops = task.logits(model, batch)
    logs = starts.log_softmax(-1)[:, :, None] + stops.log_softmax(-1)[:, None, :]  # (B, N, N): log p of every span
    none = logs.diagonal(dim1=1, dim2=2).gather(1, batch["none"][:, None])[:, 0]
    best, place = logs.masked_fill(~task.sensible(batch), -torch.inf).flatten(1).max(-1)
    found = task.characters(batch, place // logs.shape[1], place % logs.shape[1])
    above = best - none
    score = torch.where(above > 0, best, none).exp()
    return [Best(a, s, p) for a, s, p in zip(above.tolist(), found, score.tolist(), strict=True)]


def span(best: Best, context: str) -> Span:
    start, stop = best.span if best.above > 0 else (0, 0)
    return Span(context[start:stop], start, stop, best.score)
