"""A desk with a text and a recipe for a small recurrent model on it."""

import pytest
from train.made import laid

from regard import zoo

RECIPE = """
[data]
source = "text.txt"
[tokenizer]
byte_fallback = false
[model]
embed = {scale = 4.0}
trunk = {kind = "recurrent", cell = "lstm", dim = 12, depth = 2, dropout = 0.1}
[train]
steps = 9
batch_size = 5
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
max_new_tokens = 5
"""


@pytest.fixture
def desk(tmp_path, monkeypatch):
    return laid(tmp_path, monkeypatch, RECIPE)


@pytest.fixture
def recipe(desk):
    """The recipe on the desk, with changes such as "train.carry_state=true"."""
    return lambda *changes: zoo.read_recipe("recipe.toml", changes)
