"""The induction circuit: found where it is planted, measured as by hand, and asked of causal language models alone."""

import json
import math

import pytest
import torch
from lens.planted_circuit import INDUCTION, PREVIOUS, planted_model
from lens.small_models import SHAPES, VOCAB, text
from parity.tolerance import randomise
from torch.nn import functional as F

from regard import config as C
from regard import lens
from regard.config.errors import ConfigError

CAUSAL = ["decoder", "attention only", "windowed decoder", "grouped", "relative", "shaw"]


def names(found):
    return (found.previous.layer, found.previous.head), (found.induction.layer, found.induction.head)


@pytest.mark.parametrize("ablation", ["mean", "zero"])
def test_the_planted_heads_are_found_and_only_they_and_their_keys_matter(ablation):
    found = lens.find_induction_circuit(planted_model(), length=4, texts=5, ablation=ablation)
    first, second = found.previous, found.induction

    assert names(found) == (PREVIOUS, INDUCTION) and found.stands_out
    assert first.previous.value > 0.99 and second.induction.value > 0.85  # the first token has none before it
    assert found.composition > 0.1 and found.other_composition == pytest.approx(0, abs=1e-12)
    assert found.paths["q"] == found.paths["v"] == pytest.approx(found.loss, abs=1e-12)
    assert found.layer_paths == pytest.approx(found.paths, abs=1e-12)  # no other head of that layer is in use
    assert found.other_ablated == pytest.approx(found.loss, abs=1e-12)
    worse = [found.ablated[first.name], found.ablated[second.name], found.paths["k"], found.first_loss]
    assert all(loss > found.loss + 0.3 for loss in worse)


def test_a_path_patched_for_that_of_another_text_is_worth_what_the_head_is_by_its_keys():
    """The planted previous-token head reaches the logits by no other way, so in both cases nothing is found."""
    found = lens.find_induction_circuit(planted_model(), length=4, texts=5, ablation="zero")

    assert found.paths["k"] == pytest.approx(found.ablated["0.1"], rel=0.1)


@pytest.mark.parametrize("name", CAUSAL)
def test_losses_are_those_by_hand_in_every_causal_shape(name):
    model, length = SHAPES[name].model(), 8
    found = lens.find_induction_circuit(model, length=length, texts=3, seed=4)
    ids = lens.repeated_ids(torch.arange(VOCAB), length, 3, 4)
    with torch.no_grad():
        logs = model(ids).log_softmax(-1)
        losses = -logs[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]  # (3, 15): of tokens 1 to 15
        with lens.ablate(model, {found.induction.where: [found.induction.head]}, mean=True):
            without = F.cross_entropy(model(ids)[:, length:-1].flatten(0, 1), ids[:, length + 1 :].flatten())

    assert found.first_loss == pytest.approx(float(losses[:, : length - 1].mean()), rel=1e-5)
    assert found.loss == pytest.approx(float(losses[:, length:].mean()), rel=1e-5)
    assert found.ablated[found.induction.name] == pytest.approx(float(without), rel=1e-5)
    patched = [*found.paths.values(), *found.layer_paths.values()]
    assert set(found.paths) == set(found.layer_paths) == set("kqv") and all(map(math.isfinite, patched))
    assert [each.name for each in found.heads] == [
        f"{layer}.{head}" for layer in range(model.c.trunk.depth) for head in range(model.c.trunk.heads[0])
    ]


def test_the_table_the_page_and_the_picture_have_the_numbers():
    found = lens.find_induction_circuit(planted_model(), length=4, texts=2)
    read = json.loads(json.dumps(found.to_json()))

    assert (read["previous"], read["induction"], read["stands_out"]) == ("0.1", "1.2", True)
    assert len(read["heads"]) == 6 and "induction score of 1.2" in str(found) and "1.2" in found._repr_html_()
    assert found.picture().values.flatten().tolist() == pytest.approx(
        [found.loss, found.ablated["0.1"], found.ablated["1.2"], *found.paths.values(), *found.layer_paths.values()]
    )
    assert "0.1 and 1.2 have the patterns" in found.table().note


def test_a_model_that_has_learned_nothing_has_no_such_heads():
    found = lens.find_induction_circuit(SHAPES["attention only"].model(), length=8)

    assert not found.stands_out and "No two heads have the patterns" in str(found)
    assert found.loss == pytest.approx(found.first_loss, rel=0.5)


def test_special_tokens_are_not_drawn_and_the_words_can_be_chosen():
    model = text(embed=C.TextEmbedding(vocab=VOCAB, pad_id=0, eos_id=5), mask="causal")()
    seen = []
    model.embed.tokens.register_forward_hook(lambda part, given, out: seen.append(given[0]))
    lens.find_induction_circuit(model, length=21)
    every = {int(each) for each in torch.cat([ids.flatten() for ids in seen])}
    seen.clear()
    lens.find_induction_circuit(model, length=4, vocabulary=torch.tensor([3, 4, 9, 11, 2]))

    assert every == set(range(VOCAB)) - {0, 5}
    assert {int(each) for each in torch.cat([ids.flatten() for ids in seen])} == {2, 3, 4, 9, 11}


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"norm_placement": "post"}, "No path patching: this model puts a norm after every sum"),
     ({"kind": "reversible"}, "No composition: trunk.kind 'reversible' has two streams")],
)  # fmt: skip
def test_what_cannot_be_measured_is_left_out_with_its_reason(settings, words):
    model = text(mask="causal", **settings)().eval()
    randomise(model)
    found = lens.find_induction_circuit(model, length=5)

    assert words in str(found) and found.paths == found.layer_paths == {} and len(found.ablated) == 6


@pytest.mark.parametrize(
    ("name", "words"),
    [("encoder", "sees the tokens that come next"), ("translator", "writes another text than it reads"),
     ("vit", "does not read a text"), ("pixels", "does not read a text"), ("towers", "no stack of blocks")],
)  # fmt: skip
def test_other_models_are_refused_in_a_sentence(name, words):
    with pytest.raises(ConfigError, match=words):
        lens.find_induction_circuit(SHAPES[name].model())


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"length": 3}, "give a length from 4 on"), ({"texts": 0}, "at least one text"),
     ({"ablation": "noise"}, "neither 'mean' nor 'zero'"), ({"vocabulary": torch.tensor([3])}, "takes two or more")],
)  # fmt: skip
def test_what_is_asked_wrongly_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        lens.find_induction_circuit(SHAPES["decoder"].model(), **settings)


def test_one_layer_and_classes_are_refused():
    classes = text(mask="causal", head=C.PoolingHead(pooling="last", out=3))()
    with pytest.raises(ConfigError, match="fewer than two layers"):
        lens.find_induction_circuit(text(mask="causal", depth=1)())
    with pytest.raises(ConfigError, match="answers with classes"):
        lens.find_induction_circuit(classes)
