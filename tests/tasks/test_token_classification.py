"""A class for every word, carried by its first piece."""

import pytest
import torch
import torch.nn.functional as F
from tasks.builders import KINDS, chance, model, task
from torch.testing import assert_close

from regard import config as C
from regard.config.errors import DataError
from regard.tasks.columns import fill_classes
from regard.tasks.task import score_outputs

C_TAG = C.TokenClassification(classes=("O", "B-PER", "I-PER"))
RECORDS = [
    {"words": ["Ada", "Lovelace", "wrote", "."], "labels": ["B-PER", "I-PER", "O", "O"]},
    {"words": "the unaffordable Babbage", "labels": "O O B-PER"},
]


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_spelt_as_in_running_text_and_first_pieces_carry_the_labels(kind):
    objective, known = task(C_TAG, kind, length=60)
    example = objective.example(RECORDS[0], known)
    around = objective.specials.single
    ids = example["ids"][len(around.before) : len(example["ids"]) - len(around.after)]
    labels = [label for label in example["labels"] if label != -100]

    assert known.decode(ids) == "Ada Lovelace wrote ."
    assert labels == [1, 2, 0, 0] and len(example["labels"]) == len(example["ids"])
    firsts = [place for place, label in enumerate(example["labels"]) if label != -100]
    assert known.decode(example["ids"][firsts[2] : firsts[3]]).strip() == "wrote"


@pytest.mark.spec("S164")
@pytest.mark.parametrize("side", ["right", "left"])
def test_each_word_is_asked_once_and_padding_never(side):
    asked = model(C.TokenHead(out=3))
    objective, known = task(C_TAG, model=asked.c, side=side)
    batch = objective.collate([objective.example(record, known) for record in RECORDS], chance())
    alone = 0.0
    for record in RECORDS:
        example = objective.example(record, known)
        logits = asked(torch.tensor([example["ids"]]))[0]
        alone += F.cross_entropy(logits, torch.tensor(example["labels"]), reduction="sum")

    assert objective.count_parts(batch)["loss"].count == 7
    assert_close(objective.loss_sums(asked, batch)["loss"], alone)
    assert objective.expected_answers(batch)["loss"] == [["B-PER", "I-PER", "O", "O"], ["O", "O", "B-PER"]]
    assert list(map(len, objective.answers(asked, batch)["loss"])) == [4, 3]


def test_entities_are_scored_where_tags_name_them():
    objective, _ = task(C_TAG)
    meant = {"loss": [["B-PER", "I-PER", "O"], ["O", "B-PER"]]}
    said = {"loss": [["B-PER", "O", "O"], ["O", "B-PER"]]}
    plain, _ = task(C.TokenClassification(classes=("noun", "verb")))

    assert score_outputs(objective, [(said, meant)]) == {"accuracy": 0.8, "entity f1": 0.5}
    assert plain.score({"loss": [["noun"]]}, {"loss": [["verb"]]}) == {"accuracy": 0.0}


def test_what_does_not_fit_is_counted():
    objective, known = task(C_TAG, length=5)
    example = objective.example(RECORDS[1], known)

    assert len(example["ids"]) == len(example["labels"]) == 5
    assert example["cut"] == len(known.encode(RECORDS[1]["words"])) - 3


def test_words_and_labels_go_together():
    objective, known = task(C_TAG)

    with pytest.raises(DataError, match="2 in column 'words' and 1 in 'labels'; expected a label for each word"):
        objective.example({"words": ["a", "b"], "labels": ["O"]}, known)
    with pytest.raises(DataError, match="label 'B-ORG' in column 'labels' is none of the 3 classes"):
        objective.example({"words": ["a"], "labels": ["B-ORG"]}, known)


def test_classes_are_found_in_the_data():
    assert fill_classes(C.TokenClassification(), RECORDS).classes == ("B-PER", "I-PER", "O")
