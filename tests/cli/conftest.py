"""The command line in this process, and a small real run to use it on."""

import io
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch

from regard import config, text, zoo
from regard.cli import app, main
from regard.inference.model import build_model

app.get_command = cache(app.get_command)  # thirty verbs and their options, else read again for every command
LETTERS = "abcdefghijklmnopqrstuvwxyz .,\n"
RECIPE = """
[data]
source = "text.txt"
validation = 0.25
[tokenizer]
byte_fallback = false
[model]
preset = "gpt2"
dim = 12
depth = 2
heads = 3
dropout = 0.0
[train]
steps = 3
batch_size = 2
context = 7
compile = false
device = "cpu"
eval_every = 2
[report]
prompt = "a"
max_new_tokens = 5
"""


@dataclass
class Said:
    """What a command gave back: its exit code, stdout and stderr."""

    code: int
    out: str
    err: str


@pytest.fixture
def say(capsys, monkeypatch):
    """Give a command, as typed after `regard`, and what it finds on standard input."""

    def say(*words, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = main([str(word) for word in words])
        return Said(code, *capsys.readouterr())

    return say


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder to work in: text.txt, recipe.toml, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("REGARD_DEBUG", raising=False)
    (tmp_path / "text.txt").write_text("the cat sat on the mat.\nthe dog, too.\n" * 9)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path


@pytest.fixture(scope="session")
def untrained(tmp_path_factory):
    """The folder that `checkpoint` copies."""
    torch.manual_seed(0)
    setting = zoo.preset("gpt2", dim=12, depth=2, heads=3, vocab=len(LETTERS), position={"length": 17})
    model = build_model(setting)
    model.tokenizer, model.context = text.train_tokenizer(config.CharTokenizer(byte_fallback=False), [LETTERS]), 17
    folder = tmp_path_factory.mktemp("untrained") / "model"
    model.save(folder)
    return folder


@pytest.fixture
def checkpoint(desk, untrained):
    """A model that has learnt nothing, with its tokenizer, as a folder."""
    return Path(shutil.copytree(untrained, desk / "model"))
