"""Laws of every objective: shares of a step add up, examples can be kept in files, one graph, nothing from nowhere."""

import json
from typing import get_args

import pytest
import torch
from tasks.builders import KINDS, PROSE, chance, model, task
from torch.testing import assert_close

from regard import config as C
from regard.tasks.next_token import NextToken
from regard.tasks.task import TASKS, combine_losses, total_counts

LINES = [line for line in PROSE.splitlines()[:4] for line in (line, line[: len(line) // 2])][:5]
WORDS = [line.split() for line in LINES]

# Every kind with its setting, the head of a model that can be asked, and five records.
CASES = {
    "next_token": (C.NextToken(), C.LMHead(), [{"text": line} for line in LINES]),
    "masked_lm": (C.MaskedLM(rate=0.4, whole_words=True), C.LMHead(), [{"text": line} for line in LINES]),
    "next sentence": (
        C.MaskedLM(rate=0.4, next_sentence=True), C.PretrainingHead(), [{"text": WORDS[i]} for i in (0, 1, 4, 2, 3)]
    ),
    "translation": (C.Translation(), C.LMHead(), [{"source": line, "target": line[::-1]} for line in LINES]),
    "span_corruption": (C.SpanCorruption(), C.LMHead(), [{"text": line} for line in LINES]),
    "text_infilling": (C.TextInfilling(), C.LMHead(), [{"text": line} for line in LINES]),
    "prefix_lm": (C.PrefixLM(), C.LMHead(), [{"text": line} for line in LINES]),
    "classification": (C.Classification(input_pair="b", classes=("x", "y", "z")), C.PoolingHead(out=3),
                       [{"text": line, "b": line[3:], "label": "xyzxy"[i]} for i, line in enumerate(LINES)]),
    "regression": (C.Regression(), C.PoolingHead(out=1),
                   [{"text": line, "label": i / 3} for i, line in enumerate(LINES)]),
    "token_classification": (C.TokenClassification(classes=("O", "B-X")), C.TokenHead(out=2),
                             [{"words": words, "labels": [("O", "B-X")[len(word) % 2] for word in words]}
                              for words in WORDS]),
    "question_answering": (C.QuestionAnswering(answer_start=None), C.TokenHead(),
                           [{"question": "Who?", "context": line, "answer": line.split()[1]} for line in LINES]),
}  # fmt: skip
every = pytest.mark.parametrize("name", CASES)


def asked(name, chunk=None, kind="wordpiece", **how):
    """An objective, its examples, and a model that was checked against it."""
    c, head, records = CASES[name]
    paired = c.kind in ("translation", "span_corruption", "text_infilling", "prefix_lm")
    objective, known = task(c, kind, length=200, chunk=chunk, **how)
    made = model(head, vocab=len(known), encoder=paired, **({"mask": "causal"} if c.kind == "next_token" else {}))
    objective.check(made.c)
    examples = [objective.example(record, known) for record in records]
    if name == "next sentence":
        luck = chance()
        examples = [pair for place in range(5) for pair in objective.pairs(examples, place, luck)][:5]
    return objective, made, examples


def learned(objective, made, batches):
    made.zero_grad()
    parts = total_counts([objective.count_parts(batch) for batch in batches])
    losses = [combine_losses(objective.loss_sums(made, batch), parts) for batch in batches]
    sum(losses).backward()
    return sum(losses).item(), {name: w.grad.clone() for name, w in made.named_parameters() if w.grad is not None}


def test_every_kind_that_a_config_can_say_is_there():
    said = {get_args(kind.__annotations__["kind"])[0]: kind for kind in get_args(C.Task)}
    texts = {name for name, kind in said.items() if kind.__module__ == "regard.config.tasks"}  # others have files apart

    assert set(said) == set(TASKS) and texts == {CASES[name][0].kind for name in CASES}


@every
@pytest.mark.parametrize("chunk", [None, 7])
def test_micro_batches_have_the_gradients_of_one_batch(name, chunk):
    objective, made, examples = asked(name, chunk)
    batch = objective.collate(examples, chance(1))
    ragged = [{key: table[rows] for key, table in batch.items()} for rows in (slice(0, 1), slice(1, 3), slice(3, 5))]
    once, expected = learned(objective, made, [batch])
    loss, grads = learned(objective, made, ragged)

    assert once > 0 and loss == pytest.approx(once, abs=1e-5)
    assert grads.keys() == expected.keys()
    for label, grad in expected.items():
        assert_close(grads[label], grad, atol=2e-6, rtol=1e-4, msg=lambda text, label=label: f"{label}: {text}")


# what is masked is drawn for each place of a batch, padding included
@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][0].kind != "masked_lm"])
def test_a_wider_batch_asks_and_answers_the_same(name):
    objective, made, examples = asked(name)
    wide, _, _ = asked(name, multiple=64)
    narrow, broad = (each.collate(examples, chance(1)) for each in (objective, wide))

    assert broad["ids"].shape[1] % 64 == 0 and narrow["ids"].shape[1] % 64
    assert objective.count_parts(narrow) == wide.count_parts(broad)
    for part, found in objective.loss_sums(made, narrow).items():
        assert_close(wide.loss_sums(made, broad)[part], found, atol=1e-4, rtol=1e-4)


@every
def test_examples_are_lists_and_numbers_with_the_same_columns(name):
    _, _, examples = asked(name)

    assert json.loads(json.dumps(examples)) == examples
    assert len({tuple((key, type(value)) for key, value in example.items()) for example in examples}) == 1
    assert all(type(number) is int for example in examples for value in example.values() if isinstance(value, list)
               for number in value)  # fmt: skip


@every
def test_a_batch_depends_on_the_generator_it_is_given_and_on_nothing_else(name):
    objective, _, examples = asked(name)
    torch.manual_seed(1)
    first = objective.collate(examples, chance(5))
    torch.manual_seed(2)
    again = objective.collate(examples, chance(5))

    assert first.keys() == again.keys() and all(torch.equal(first[key], again[key]) for key in first)


@every
def test_the_truth_scores_best(name):
    objective, made, examples = asked(name)
    batch = objective.collate(examples, chance(1))
    meant, said = objective.expected_answers(batch), objective.answers(made, batch)

    assert {part: len(each) for part, each in said.items()} == {part: len(each) for part, each in meant.items()}
    assert all(value == pytest.approx(1.0) for value in objective.score(meant, meant).values())
    assert all(value <= 1.0 for value in objective.score(said, meant).values())


@every
def test_settings_are_read_from_a_file_and_written_back(name, tmp_path):
    c = CASES[name][0]
    (tmp_path / "task.toml").write_text(C.to_toml(c), encoding="utf8")

    assert C.read_toml(type(c), tmp_path / "task.toml") == c


@pytest.mark.slow
@every
def test_every_objective_compiles_whole(name):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    objective, made, examples = asked(name, chunk=7)
    batch = objective.collate(examples, chance(1))
    torch._dynamo.reset()
    found = torch.compile(objective.loss_sums, backend=backend, fullgraph=True)(made, batch)

    assert len(graphs) == 1
    for part, total_loss in objective.loss_sums(made, batch).items():
        assert_close(found[part], total_loss)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_of_any_tokenizer_is_predicted_from_its_first_token_to_its_last(kind):
    objective, known = task(C.NextToken(), kind, length=300)
    example = objective.example({"text": LINES[0]}, known)
    batch = objective.collate([example], chance())
    text = known.encode(LINES[0])

    assert [id for id in example["ids"] if id in text] == text
    assert torch.equal(batch["labels"][0, :-1], batch["ids"][0, 1:])
    assert objective.count_parts(batch)["loss"].count == len(example["ids"]) - 1


@pytest.mark.parametrize("c, words", [
    (dict(kind="masked_lm", rate=1.5), "rate: 1.5 is not a part between 0 and 1"),
    (dict(kind="masked_lm", mask_replace_prob=0.95),
     "random_replace_prob: 0.1 and mask_replace_prob 0.95 are together more than 1"),
    (dict(kind="translation", label_smoothing=1.0), "label_smoothing: 1.0 is not from 0 up to 1"),
    (dict(kind="translation", source="a", target="a"), "column 'a' is also"),
    (dict(kind="span_corruption", mean_span_length=0.5), "mean_span_length: 0.5 is less than 1"),
    (dict(kind="classification", classes=["a", "a"]), "'a' is listed twice"),
    (dict(kind="classification", classes=["a"]), "is the only class"),
    (dict(kind="token_classification", words=""), "words: empty; name a column"),
    (dict(kind="question_answering", doc_stride=0), "doc_stride: 0 is less than 1"),
    (dict(kind="mask"), "kind: "),
])  # fmt: skip
def test_a_setting_that_cannot_be_is_one_sentence(c, words):
    with pytest.raises(C.ConfigError) as error:
        C.from_dict(C.Task, c, "task")
    assert words in str(error.value) and str(error.value).startswith("task")


def test_packed_documents_are_asked_as_each_alone():
    made = model(vocab=640, mask="causal")
    first, second = torch.randint(9, 600, (1, 7)), torch.randint(9, 600, (1, 5))
    packed = {"ids": torch.cat([first, second], 1), "document": torch.tensor([[0] * 7 + [1] * 5])}
    task = NextToken()
    alone = sum(task.loss_sums(made, ids)["loss"] for ids in (first, second))

    assert task.count_parts(packed)["loss"].count == 6 + 4
    assert_close(task.loss_sums(made, packed)["loss"], alone)
