"""A folder to work in, with a text and a recipe, for tests of training and of what is built on it."""

import pytest
from training.builders import laid

from regard import zoo


@pytest.fixture
def desk(tmp_path, monkeypatch):
    return laid(tmp_path, monkeypatch)


@pytest.fixture
def recipe(desk):
    """The recipe on the desk, with changes such as "train.steps=9"."""
    return lambda *changes: zoo.read_recipe("recipe.toml", changes)
