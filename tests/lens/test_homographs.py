"""Words of two senses: what a trained encoder takes in of the context tells them apart, an untrained one less often."""

import re

import pytest
import torch
from lens.homographs import HOMOGRAPHS, count_separated

import regard
from regard.inference.model import Model
from regard.zoo.packaged import packaged_names


def packaged(name):
    if name not in packaged_names():
        pytest.skip(f"the package has no model {name!r} yet; recipes/{name}.toml trains it")
    return regard.load(name)


def test_every_sentence_has_its_word_once_and_there_are_twenty_words():
    assert len(HOMOGRAPHS) == 20
    for word, senses in HOMOGRAPHS.items():
        texts = [text for sense in senses for text in sense]
        assert len(set(texts)) == 4
        assert all(re.findall(r"\w+", text.lower()).count(word) == 1 for text in texts)


@pytest.mark.slow
@pytest.mark.spec("S077")
def test_the_encoder_of_the_translator_tells_most_senses_apart_and_untrained_it_does_not():
    model = regard.load("en-fr")
    torch.manual_seed(0)
    untrained = Model(model.c).eval()
    untrained.tokenizer, untrained.task = model.tokenizer, model.task
    trained, chance = count_separated(model), count_separated(untrained)

    assert trained[0] == chance[0] == 0  # before the first layer a word is the same everywhere
    assert trained[-1] >= 18 and trained[-1] >= chance.max() + 3


@pytest.mark.slow
@pytest.mark.spec("S077")
def test_the_masked_language_model_tells_three_quarters_of_the_senses_apart_at_a_layer():
    assert count_separated(packaged("english-mlm")).max() >= 15


def test_a_warm_cup_is_of_coffee_or_tea():
    model = packaged("english")
    ids = torch.tensor([model.tokenizer.encode("a warm cup of")])
    first = [model.tokenizer.decode([token]).strip() for token in model(ids)[0, -1].topk(5).indices.tolist()]

    assert {"coffee", "tea"} & set(first)
