"""A desk with a text and a recipe for a small recurrent model on it."""

import pytest
from train.made import TEXT

from regard import zoo

RECIPE = """
[data]
source = "text.txt"
[text]
fallback = false
[model]
embed = {scale = 4.0}
trunk = {kind = "recurrent", cell = "lstm", dim = 12, depth = 2, dropout = 0.1}
[train]
steps = 9
batch = 5
context = 7
compile = false
device = "cpu"
eval_every = "none"
save_every = "none"
[train.optimizer]
lr = 1e-2
[train.schedule]
kind = "constant"
warmup = 2
[report]
prompt = "a "
temperatures = [0.8]
new = 5
"""


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
    """The recipe on the desk, with changes such as "train.carry=true"."""
    return lambda *changes: zoo.read_recipe("recipe.toml", changes)
