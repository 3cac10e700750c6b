"""Recipes of towers: a table for each, filled in as a single model would be."""

import pytest

import regard
from regard import config
from regard.zoo.recipe import fill_defaults, read_recipe

RECIPE = """
[task]
kind = "contrastive"
[model]
kind = "dual_encoder"
initial_scale = 7.0
[model.image]
embed = {kind = "patches", patch_size = 8, image_size = 32}
dim = 24
heads = 3
position = {kind = "learned"}
[model.text]
dim = 36
heads = 3
position = {kind = "learned"}
head = {kind = "pooling", pooling = "last", out = 24}
[train]
context = 19
precision = "mixed"
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "towers.toml"
    path.write_text(RECIPE)
    return lambda *changes: read_recipe(path, changes)


def test_each_table_is_a_tower_with_its_short_words_and_what_follows_from_the_rest(recipe):
    image, text = recipe().model.towers

    assert (image.trunk.dim, text.trunk.dim) == (24, 36)
    assert (image.trunk.position.length, text.trunk.position.length) == (17, 19), "patches, and the run's context"
    assert image.trunk.mask == text.trunk.mask == "full"
    assert (image.head.pooling, text.head.pooling) == ("cls", "last")
    assert image.precision == text.precision == "mixed"
    assert recipe().model.initial_scale == 7.0


def test_a_tower_is_changed_by_its_name(recipe):
    assert recipe("model.text.depth=3").model.towers[1].trunk.depth == 3
    assert recipe("model.image.embed.patch_size=4").model.towers[0].trunk.position.length == 65


def test_what_is_written_is_read_back_the_same(recipe, tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml(recipe()))

    assert read_recipe(path) == recipe()


@pytest.mark.parametrize("change, sentence", [
    ("model.dim=3", "model.dim: it belongs to a tower"),
    ("model.text.dimm=3", "model.text.dimm: no such setting; did you mean 'dim'?"),
    ("model.text.dim=35", r"model.towers\[1\].trunk.*35"),
    ("task.kind=classification", "model.kind: a dual_encoder is trained by task.kind contrastive"),
    ("train.precision=fp31", "train.precision"),
])  # fmt: skip
def test_a_mistake_is_one_sentence_with_its_path(recipe, change, sentence):
    with pytest.raises(config.ConfigError, match=sentence):
        recipe(change)


def test_towers_without_towers_are_refused(tmp_path):
    (tmp_path / "none.toml").write_text('[task]\nkind = "contrastive"\n[model]\nkind = "dual_encoder"\n')

    with pytest.raises(config.ConfigError, match="model.towers: none is given; describe at least two"):
        read_recipe(tmp_path / "none.toml")


def test_names_beside_a_list_of_all_are_refused(recipe, tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml(recipe()))

    with pytest.raises(config.ConfigError, match="model.text: there is model.towers beside it"):
        read_recipe(path, ["model.text.depth=3"])


def test_the_preset_of_clip_is_a_recipe_too():
    made = config.from_dict(
        config.Recipe,
        fill_defaults(
            {"model": {"preset": "clip-vit-b32"}, "task": {"kind": "contrastive"}, "train": {"context": 77}}, {}
        ),
    )

    assert isinstance(made.model, config.DualEncoder)
    ours, theirs = made.model.towers, regard.preset("clip-vit-b32").towers
    assert ours[0] == theirs[0] and ours[1].trunk == theirs[1].trunk
