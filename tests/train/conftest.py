"""A desk with a text and a recipe on it."""

import pytest
from train.made import RECIPE, TEXT

from regard import zoo


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder to work in, with a cache of its own; the machine's speed is known without half a second of measuring."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("regard.measure.floor.multiplying", lambda *sizes: 1e9)
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path


@pytest.fixture
def recipe(desk):
    """The recipe on the desk, with changes such as "train.steps=9"."""
    return lambda *changes: zoo.read_recipe("recipe.toml", changes)
