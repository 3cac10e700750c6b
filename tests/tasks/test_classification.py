"""One answer for a text or a pair: laid out as each family lays it out, cut as BERT cuts, asked once a text."""

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from tasks.builders import chance, model, shown, task, tokenizer
from tokenizers import processors
from torch.testing import assert_close

from regard import config as C
from regard.config.errors import ConfigError, DataError
from regard.tasks.collate import TaskSpecialTokens, truncate_pair
from regard.tasks.columns import fill_classes
from regard.tasks.task import build_task, score_outputs
from regard.text.tokenizer import Tokenizer

ONE = C.Classification(classes=("bad", "good", "so so"))
TWO = C.Classification(input="first", input_pair="second", classes=("0", "1"))
RECORDS = [{"text": "The cat sat on the mat.", "label": "good"}, {"text": "Why?", "label": "so so"}]
PAIRS = [
    {"first": "The cat sat.", "second": "A dog met an owl!", "label": 1},
    {"first": "Why?", "second": "It was.", "label": 0},
]


def published(before, between, after):
    """A tokenizer.json that says itself what stands around its texts."""
    known = tokenizer("word")
    inner = type(known.inner).from_str(known.inner.to_str())
    specials = [(token, known.special_ids[role]) for role, token in (("bos", "<start>"), ("eos", "<end>"))]
    inner.post_processor = processors.TemplateProcessing(
        single=f"{before}$A{after}", pair=f"{before}$A{between}$B:1{after}", special_tokens=specials
    )
    return Tokenizer(inner)


def test_a_pair_stands_as_bert_has_it():
    objective, known = task(TWO)
    example = objective.example(PAIRS[0], known)
    first, second = known.encode(PAIRS[0]["first"]), known.encode(PAIRS[0]["second"])
    roles = known.special_ids

    assert example["ids"] == [roles["cls"], *first, roles["sep"], *second, roles["sep"]]
    assert example["segment"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert example["label"] == 1 and example["cut"] == 0


@pytest.mark.parametrize("layout", [
    ("<start> ", " <end> <end> ", " <end>"),  # RoBERTa
    ("", " <end> ", " <end>"),  # T5
    ("<start> ", " <start> ", ""),  # Llama
], ids=["roberta", "t5", "llama"])  # fmt: skip
def test_a_published_tokenizer_is_obeyed(layout):
    """`transformers` lays out the same rows from the same tokenizer.json."""
    known = published(*layout)
    theirs = hf.PreTrainedTokenizerFast(tokenizer_object=known.inner)
    one, two = build_task(C.Classification(classes=("a", "b")), known), build_task(TWO, known)

    assert one.example({"text": "The cat sat.", "label": "a"}, known)["ids"] == theirs("The cat sat.")["input_ids"]
    assert two.example(PAIRS[0], known)["ids"] == theirs(PAIRS[0]["first"], PAIRS[0]["second"])["input_ids"]


def test_a_tokenizer_that_says_nothing_puts_its_start_and_end_around():
    known = tokenizer("word")
    ids = build_task(ONE, known).example(RECORDS[0], known)["ids"]

    assert shown(known, [ids[0], ids[-1]]) == "<start> <end>" and ids[1:-1] == known.encode(RECORDS[0]["text"])
    assert not len(TaskSpecialTokens.of(tokenizer("char")).single)


@pytest.mark.parametrize("room", range(1, 18))
@pytest.mark.parametrize("lengths", [(3, 11), (11, 3), (8, 8), (1, 1), (12, 9)])
def test_too_long_a_pair_is_cut_as_bert_cuts_it(room, lengths):
    a, b = list(range(lengths[0])), list(range(100, 100 + lengths[1]))
    first, second = list(a), list(b)
    while len(first) + len(second) > room:  # Devlin et al., run_classifier.py: the longer one loses its last token
        (first if len(first) > len(second) else second).pop()

    assert truncate_pair(a, b, room) == (first, second)


def test_what_is_cut_is_counted():
    objective, known = task(TWO, length=9)
    example = objective.example(PAIRS[0], known)

    assert len(example["ids"]) == len(example["segment"]) == 9
    assert example["cut"] == len(known.encode(PAIRS[0]["first"])) + len(known.encode(PAIRS[0]["second"])) - 6


@pytest.mark.spec("S164")
@pytest.mark.parametrize("place", ["cls", "mean", "last"])
def test_a_model_is_asked_once_a_text(place):
    asked = model(C.PoolingHead(pooling=place, out=3))
    objective, known = task(ONE, model=asked.c)
    batch = objective.collate([objective.example(record, known) for record in RECORDS], chance())
    logits = torch.cat([asked(torch.tensor([objective.example(record, known)["ids"]])) for record in RECORDS])

    assert objective.count_parts(batch)["loss"].count == 2
    assert_close(
        objective.loss_sums(asked, batch)["loss"], F.cross_entropy(logits, torch.tensor([1, 2]), reduction="sum")
    )
    assert objective.answers(asked, batch)["loss"] == logits.argmax(-1).tolist()


@pytest.mark.spec("S168")
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_pair_is_told_apart_by_its_segments(side):
    asked = model(C.PoolingHead(out=2))
    objective, known = task(TWO, model=asked.c, side=side)
    batch = objective.collate([objective.example(record, known) for record in PAIRS], chance())
    mixed = batch | {"segment": torch.zeros_like(batch["segment"])}
    alone = [objective.collate([objective.example(record, known)], chance()) for record in PAIRS]

    found = objective.loss_sums(asked, batch)["loss"]
    assert_close(found, sum(objective.loss_sums(asked, each)["loss"] for each in alone))
    assert not torch.isclose(found, objective.loss_sums(asked, mixed)["loss"])


@pytest.mark.parametrize("segments", [0, 1])
def test_a_model_without_segments_is_not_told_them(segments):
    asked = model(C.PoolingHead(out=2), segments=segments)
    objective, known = task(TWO, model=asked.c)
    batch = objective.collate([objective.example(record, known) for record in PAIRS], chance())

    assert "segment" not in batch and objective.loss_sums(asked, batch)["loss"].isfinite()


def test_regression_is_the_squared_error_of_one_number():
    c = C.Regression(input="first", input_pair="second")
    asked = model(C.PoolingHead(out=1))
    objective, known = task(c, model=asked.c)
    records = [{**PAIRS[0], "label": "3.5"}, {**PAIRS[1], "label": 2}]
    batch = objective.collate([objective.example(record, known) for record in records], chance())
    said = asked(batch["ids"], real=batch["real"], segment=batch["segment"])[:, 0]

    assert batch["label"].tolist() == [3.5, 2.0] and batch["label"].dtype == torch.float32
    assert_close(objective.loss_sums(asked, batch)["loss"], ((said - torch.tensor([3.5, 2.0])) ** 2).sum())
    both = objective.answers(asked, batch), objective.expected_answers(batch)
    assert set(score_outputs(objective, [both])) == {"pearson", "spearman"}


def test_a_perfect_classifier_scores_one():
    objective, _ = task(ONE)
    answers = {"loss": [0, 1, 2, 1]}

    assert objective.score(answers, answers) == {"accuracy": 1.0, "f1": 1.0, "matthews": 1.0}


# ---------------------------------------------------------------- labels


@pytest.mark.parametrize("label, number", [("good", 1), (2, 2), ("0", 0)])
def test_a_label_is_a_name_or_the_number_of_one(label, number):
    objective, known = task(ONE)

    assert objective.example({"text": "x", "label": label}, known)["label"] == number


@pytest.mark.parametrize("c, label", [
    (ONE, "great"), (ONE, 3), (ONE, -1), (ONE, None), (ONE, 1.5), (C.Classification(classes=("1", "2", "3")), 0),
    (C.Classification(classes=("1", "2")), True),
])  # fmt: skip
def test_a_label_that_is_none_of_the_classes_is_one_sentence(c, label):
    objective, known = task(c)

    with pytest.raises(DataError, match="is none of the . classes .*; correct the label, or name it in task.classes"):
        objective.example({"text": "x", "label": label}, known)


@pytest.mark.parametrize("labels, classes", [
    (["b", "a", "b"], ("a", "b")), ([10, 9, 1], ("1", "9", "10")), (["1", "0"], ("0", "1")),
    ([True, False], ("False", "True")),
])  # fmt: skip
def test_classes_are_found_in_the_data(labels, classes):
    assert fill_classes(C.Classification(), [{"label": label} for label in labels]).classes == classes


def test_classes_that_were_named_stay_and_one_is_not_enough():
    assert fill_classes(ONE, []) is ONE and fill_classes(C.MaskedLM(), []) == C.MaskedLM()
    with pytest.raises(DataError, match="names 1 class;"):
        fill_classes(C.Classification(), [{"label": "a"}])


# ---------------------------------------------------------------- models that do not fit


@pytest.mark.parametrize("c, head, words", [
    (ONE, C.PoolingHead(out=2), "model.head.out: 2, and the task has 3 outputs"),
    (ONE, C.LMHead(), "model.head.kind: 'lm', and task 'classification' needs pooling"),
    (C.Regression(), C.PoolingHead(), "model.head.out: None, and the task has 1 output"),
    (C.MaskedLM(next_sentence=True), C.LMHead(), "needs pretraining"),
    (C.MaskedLM(), C.PretrainingHead(), "'pretraining' is for task.next_sentence"),
    (C.Translation(), C.LMHead(), "model.encoder: task 'translation' needs an encoder-decoder"),
    (C.NextToken(), C.LMHead(), "model.trunk.mask: 'full' attends to the label"),
    (C.TokenClassification(classes=("O", "B-X")), C.TokenHead(out=3), "model.head.out: 3, and there are 2"),
    (C.QuestionAnswering(), C.TokenHead(out=3), "an answer is a span"),
], ids=str)  # fmt: skip
def test_a_model_that_cannot_be_asked_is_refused_by_its_setting(c, head, words):
    with pytest.raises(ConfigError) as error:
        task(c, model=C.Transformer(embed=C.TextEmbedding(vocab=700), head=head))
    assert words in str(error.value)


def test_a_model_of_fewer_words_is_refused():
    with pytest.raises(ConfigError, match="model.embed.vocab: 99, and the tokenizer has"):
        task(C.MaskedLM(), model=C.Transformer(embed=C.TextEmbedding(vocab=99)))


def test_a_first_token_that_stands_for_nothing_is_refused():
    c = C.Transformer(embed=C.TextEmbedding(vocab=700), head=C.PoolingHead(out=3))

    with pytest.raises(ConfigError, match="model.head.pooling: 'cls' .* set it to mean or last"):
        task(ONE, "char", model=c)
    blind = C.Transformer(embed=C.TextEmbedding(vocab=700), head=C.PoolingHead(out=3), trunk=C.Trunk(mask="causal"))
    with pytest.raises(ConfigError, match="'causal' it attends only to itself; set it to last"):
        task(ONE, model=blind)
