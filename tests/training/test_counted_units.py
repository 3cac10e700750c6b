"""What an evaluation counts is called what it is."""

import pytest

from regard import tasks, zoo
from regard.inputs.processors import PROCESSORS
from regard.training.run_files import COUNTED_UNITS, INPUT_UNITS, counted_unit

CALLED = {"cora": "nodes", "etth1": "values", "digits": "images", "spoken-digits": "sounds", "mutag": "graphs",
          "emoji-clip": "pairs", "image-transformer": "values", "cifar10-swin": "images", "bilstm": "texts",
          "shakespeare-nano": "tokens", "translate": "tokens", "emoji-caption": "tokens"}  # fmt: skip


@pytest.mark.parametrize("name", CALLED)
def test_a_recipe_counts_what_it_asks(name):
    recipe = zoo.read_recipe(name)

    assert counted_unit(recipe.task, recipe.model) == CALLED[name]


def test_every_sense_and_no_stranger_has_a_noun():
    assert set(PROCESSORS) - set(INPUT_UNITS) <= {"pixels", "masked_conv"}  # whose values are asked one by one
    assert set(COUNTED_UNITS) <= set(tasks.TASKS)
