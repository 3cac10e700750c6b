"""What people call a setting elsewhere is answered with what it is called here."""

from dataclasses import is_dataclass
from typing import get_args

import pytest
import torch

import regard
from regard import config
from regard.config.aliases import GENERATION, MODEL, SETTINGS, TRAIN, suggest_word
from regard.config.reader import field_types
from regard.zoo.preset import SHORT_KEYS
from regard.zoo.recipe import read_recipe


@pytest.mark.parametrize("said, answer", [
    ("train.lr=1e-3", "train.lr: here it is train.optimizer.lr"),
    ("train.learning_rate=1e-3", "train.learning_rate: here it is train.optimizer.lr"),
    ("train.batch_size=3", "train.batch_size: here it is train.batch"),
    ("train.block_size=64", "train.block_size: here it is train.context"),
    ("train.max_length=64", "train.max_length: here it is train.context"),
    ("model.hidden_size=64", "model.hidden_size: here it is model.dim"),
    ("model.n_embd=64", "model.n_embd: here it is model.dim"),
    ("model.num_layers=2", "model.num_layers: here it is model.depth"),
    ("model.num_hidden_layers=2", "model.num_hidden_layers: here it is model.depth"),
    ("model.n_head=2", "model.n_head: here it is model.heads"),
    ("model.trunk.num_attention_heads=2", "model.trunk.num_attention_heads: here it is model.heads"),
    ("model.trunk.hidden_size=2", "model.trunk.hidden_size: here it is model.trunk.dim"),
    ("lr=1e-3", "lr: here it is train.optimizer.lr"),
    ("hidden_size=3", "hidden_size: here it is model.dim"),
])  # fmt: skip
def test_a_recipe_answers_with_our_word(said, answer):
    with pytest.raises(config.ConfigError) as problem:
        read_recipe("shakespeare", [said])

    assert str(problem.value) == answer


@pytest.mark.parametrize("name, answer", [
    ("max_new_tokens", "here it is new"), ("max_length", "here it is new, which counts new tokens alone"),
    ("repetition_penalty", "here it is repetition"), ("num_beams", "here it is beams"),
    ("do_sample", "here it is temperature, of which 0 is always the likeliest token; otherwise a text is drawn"),
])  # fmt: skip
def test_generation_answers_with_our_word(name, answer):
    model = regard.build(regard.preset("gpt2", depth=1, dim=32, heads=2, vocab=50))
    with pytest.raises(config.ConfigError) as problem:
        model.generate(torch.tensor([1, 2]), **{name: 3})

    assert str(problem.value) == f"{name}: {answer}"


def test_a_preset_answers_with_our_word():
    with pytest.raises(config.ConfigError, match="^hidden_size: here it is dim$"):
        regard.preset("gpt2", hidden_size=64)


def test_a_slip_of_the_pen_is_still_answered_by_its_letters():
    assert suggest_word("bathc", field_types(config.Train)) == ""
    with pytest.raises(config.ConfigError, match="train.bathc: no such setting; did you mean 'batch'"):
        read_recipe("shakespeare", ["train.bathc=3"])


@pytest.mark.parametrize("path", [*MODEL, *TRAIN])
def test_every_word_that_is_answered_is_there(path):
    """A path of the table is a setting of a recipe, of one of its kinds at least."""
    room, *inner = path.split(".")
    kinds = [config.Recipe]
    for name in (room, *inner):
        if config.Transformer in kinds and name in (*SHORT_KEYS, "preset"):
            return
        found = [field_types(kind)[name] for kind in kinds if name in field_types(kind)]
        assert found, path
        kinds = [part for each in found for part in (get_args(each) or (each,)) if is_dataclass(part)]


def test_generation_s_words_are_settings_of_generation():
    known = {*field_types(config.SamplingParams), *field_types(config.BeamSearchParams), "draft", "lookup"}

    assert {word.partition(",")[0] for word in GENERATION} <= known


def test_no_name_of_ours_is_taken_for_another_s():
    for cls in (config.Recipe, config.Train, config.Trunk, config.Transformer):
        assert not {name for name in field_types(cls) if name in SETTINGS} - {"dropout"}, cls
