"""Answers in a text: found where they stand, never in the question, never in padding, in any window."""

import pytest
import torch
import torch.nn.functional as F
from tasks.builders import KINDS, chance, model, task
from torch import nn
from torch.testing import assert_close

from regard import config as C
from regard.config.errors import DataError

TEXT = "It was the cat that sat there. A dog met an owl, and neither said why! Ada Lovelace wrote in 1843."
RECORD = {"question": "Who sat on the mat?", "context": TEXT, "answer": "the cat", "start": 7}
EMPTY = {"question": "Where?", "context": TEXT, "answer": "", "start": -1}


class Said(nn.Module):
    """A model that answers what it was told to, whatever it is asked."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def forward(self, ids, **rest):
        return self.logits


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", ["the cat", "cat", "Ada Lovelace", "1843", "It", "."])
def test_the_characters_of_the_marked_tokens_hold_the_answer(kind, answer):
    objective, known = task(C.QuestionAnswering(), kind, length=250)
    example = objective.example(RECORD | {"answer": answer, "start": TEXT.index(answer)}, known)
    [found] = objective.expected_answers(objective.collate([example], chance()))["loss"]
    told = TEXT[found.start : found.stop]

    assert answer in told and len(told) <= len(answer) + 1  # a token may begin with the space before it
    assert known.decode(example["ids"][example["start"] : example["stop"] + 1]).strip().startswith(told.strip()[:1])


@pytest.mark.spec("S164")
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_loss_is_over_the_context_and_no_answer(side):
    asked = model(C.TokenHead())
    objective, known = task(C.QuestionAnswering(), model=asked.c, length=90, side=side)
    examples = [objective.example(record, known) for record in (RECORD, EMPTY)]
    batch, alone = objective.collate(examples, chance()), 0.0
    for example in examples:
        logits = asked(torch.tensor([example["ids"]]), segment=torch.tensor([example["segment"]]))[0]
        may = [0, *(place for place, start in enumerate(example["from"]) if start >= 0)]
        for name, column in (("start", 0), ("stop", 1)):
            alone += F.cross_entropy(logits[may, column], torch.tensor(may.index(example[name])), reduction="sum")

    assert objective.count_parts(batch)["loss"].count == 4
    assert_close(objective.loss_sums(asked, batch)["loss"], alone)


@pytest.mark.spec("S164")
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_and_question_are_never_chosen(side):
    objective, known = task(C.QuestionAnswering(max_answer_tokens=5), length=90, side=side)
    short = RECORD | {"context": "The cat sat.", "answer": "cat", "start": 4}
    batch = objective.collate([objective.example(record, known) for record in (RECORD, short)], chance())
    for seed in range(30):
        logits = 9 * torch.randn(*batch["ids"].shape, 2, generator=chance(seed))
        logits[batch["from"] < 0] += 100.0  # the model insists on the question, the padding and the special tokens
        rows = torch.arange(2)
        logits[rows, batch["none"]] -= 300.0
        told = objective.answers(Said(logits), batch)["loss"]
        for found, context in zip(told, (TEXT, short["context"]), strict=True):
            assert 0 <= found.start < found.stop <= len(context)
            assert len(known.encode(context[found.start : found.stop])) <= 7


def test_the_best_span_is_that_of_trying_all():
    objective, known = task(C.QuestionAnswering(max_answer_tokens=4), length=90)
    example = objective.example(RECORD, known)
    batch = objective.collate([example], chance())
    logits = torch.randn(1, len(example["ids"]), 2, generator=chance(1))
    logits[0, 0] = -9.0
    inside = [place for place, start in enumerate(example["from"]) if start >= 0]
    score, first, last = max((float(logits[0, a, 0] + logits[0, b, 1]), a, b) for a in inside for b in inside
                             if a <= b < a + 4)  # fmt: skip
    [found] = objective.answers(Said(logits), batch)["loss"]

    assert found[:2] == (example["from"][first], example["upto"][last])
    assert found.score == pytest.approx(score + 18.0, abs=1e-4)


def test_no_answer_is_an_answer():
    objective, known = task(C.QuestionAnswering(), length=90)
    batch = objective.collate([objective.example(EMPTY, known)], chance())
    logits = torch.zeros(*batch["ids"].shape, 2)
    logits[0, 0] = 1.0
    [found] = objective.answers(Said(logits), batch)["loss"]

    assert found == (0, 0, -2.0) and objective.expected_answers(batch)["loss"][0][:2] == (0, 0)
    assert objective.squad([[found]], [EMPTY]) == {"exact": 100.0, "f1": 100.0}
    assert objective.squad([[found]], [RECORD]) == {"exact": 0.0, "f1": 0.0}


def test_a_long_context_is_read_in_windows_that_miss_nothing():
    objective, known = task(C.QuestionAnswering(doc_stride=5), length=24)
    windows = objective.windows(RECORD | {"answer": "Lovelace", "start": TEXT.index("Lovelace")}, known)
    read = {place for window in windows for place in window["from"] if place >= 0}
    holding = [window for window in windows if window["stop"]]

    assert len(windows) > 3 and all(len(window["ids"]) <= 24 for window in windows)
    assert len(read) == len({start for start, _ in known.inner.encode(TEXT, add_special_tokens=False).offsets})
    assert 1 <= len(holding) < len(windows)
    for window in holding:
        assert known.decode(window["ids"][window["start"] : window["stop"] + 1]).strip() == "Lovelace"
    assert all(window["cut"] == len(known.encode(TEXT)) - window["read"] for window in windows)


def test_the_surest_window_answers():
    objective, known = task(C.QuestionAnswering(doc_stride=5), length=24)
    records = [RECORD | {"answer": ["cat", "the cat"], "start": [11, 7]}]
    windows = objective.windows(records[0], known)
    batch = objective.collate(windows, chance())
    logits = torch.zeros(*batch["ids"].shape, 2)
    rows = torch.arange(len(windows))
    logits[rows, batch["start"], 0] += 5.0
    logits[rows, batch["stop"], 1] += 5.0

    assert objective.squad([objective.answers(Said(logits), batch)["loss"]], records) == {"exact": 100.0, "f1": 100.0}


@pytest.mark.parametrize("change, words", [
    ({"start": 8}, "answer 'the cat' is not at character 8 of column 'context'"),
    ({"start": "x"}, "is not at character x"),
    ({"answer": "a cat"}, "answer 'a cat' is not "),
    ({"context": ""}, "column 'context' holds ''"),
])  # fmt: skip
def test_an_answer_that_is_not_there_is_one_sentence(change, words):
    objective, known = task(C.QuestionAnswering())

    with pytest.raises(DataError) as error:
        objective.example(RECORD | change, known)
    assert words in str(error.value)


def test_an_answer_may_be_looked_for():
    objective, known = task(C.QuestionAnswering(answer_start=None), length=90)

    assert objective.example(RECORD, known) == task(C.QuestionAnswering(), length=90)[0].example(RECORD, known)
    with pytest.raises(DataError, match="'a bird' is not in column 'context'"):
        objective.example(RECORD | {"answer": "a bird"}, known)


def test_an_answer_too_long_for_any_window_is_refused():
    objective, known = task(C.QuestionAnswering(doc_stride=5), length=24)

    with pytest.raises(DataError, match="does not fit in a row of 24 tokens"):
        objective.example(RECORD | {"answer": TEXT, "start": 0}, known)
