"""What a recipe leaves open follows from the rest: the preset's mask, the encoder's size, what a head must know."""

import pytest

from regard import config, zoo


@pytest.fixture
def read(tmp_path):
    def made(text, *changes):
        (tmp_path / "some.toml").write_text(text)
        return zoo.read_recipe(tmp_path / "some.toml", changes)

    return made


def test_every_packaged_recipe_can_be_read():
    assert {"toy", "translate", "transformer", "bert-books", "finetune-classify"} <= zoo.packaged_recipes().keys()
    for name in zoo.packaged_recipes():
        assert isinstance(zoo.read_recipe(name), config.Recipe)


@pytest.mark.parametrize("name", ["bert-base", "roberta-base", "distilbert", "albert-base", "electra-small"])
def test_a_preset_that_names_no_mask_looks_both_ways(read, name):
    assert read(f'[model]\npreset = "{name}"').model.trunk.mask == zoo.preset(name).trunk.mask == "full"


@pytest.mark.parametrize(("kind", "mask"), [
    ("next_token", "causal"), ("masked_lm", "full"), ("classification", "full"), ("regression", "full"),
    ("token_classification", "full"), ("question_answering", "full"), ("next_token", "causal"),
])  # fmt: skip
def test_without_a_preset_the_task_says_who_sees_what(read, kind, mask):
    assert read(f'[task]\nkind = "{kind}"').model.trunk.mask == mask
    said = read(f'[task]\nkind = "{kind}"\n[model]\nmask = "causal & window(3)"')
    assert said.model.trunk.mask == "causal & window(3)"


@pytest.mark.parametrize("changes", [(), ("model.depth=3",), ("model.encoder.trunk.depth=5",)])
def test_the_short_words_of_a_recipe_reach_the_encoder_of_a_preset(read, changes):
    c = read('[model]\npreset = "transformer-base"\ndim = 64\ndepth = 2\nheads = 4\ndropout = 0.3', *changes).model
    said = dict(change.split("=") for change in changes)

    assert c.encoder.trunk.dim == c.trunk.dim == 64 and c.encoder.trunk.heads == c.encoder.trunk.depth * (4,)
    assert c.trunk.depth == int(said.get("model.depth", 2))
    assert c.encoder.trunk.depth == int(said.get("model.encoder.trunk.depth", said.get("model.depth", 2)))
    assert c.encoder.trunk.dropout.residual == c.trunk.dropout.residual == 0.3
    assert c.encoder.trunk.mlp.hidden == c.trunk.mlp.hidden == 256


def test_learned_places_are_as_many_as_the_context_on_both_sides(read):
    c = read('[model]\npreset = "bart-base"\n[train]\ncontext = 17').model

    assert c.trunk.position.length == c.encoder.trunk.position.length == 17


@pytest.mark.parametrize(("task", "model", "head"), [
    ("classification", "", "pooling"), ("regression", "", "pooling"), ("token_classification", "", "token"),
    ("question_answering", "", "token"),
    ("masked_lm", "", "lm"), ("masked_lm", "preset = 'bert-base'", "lm"), ("next_token", "", "lm"),
    ("masked_lm'\nnext_sentence = true\ninput = 'text", "preset = 'bert-base'", "pretraining"),
    ("classification", "preset = 'bert-base'", "pooling"), ("token_classification", "preset = 'bert-base'", "token"),
    ("classification", "head = {kind = 'token'}", "token"),
])  # fmt: skip
def test_where_nobody_names_a_head_it_is_one_that_can_be_asked(read, task, model, head):
    assert read(f"[task]\nkind = '{task}'\n[model]\n{model}").model.head.kind == head
