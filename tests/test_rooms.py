"""The library keeps the order of its rooms, and the test that says so can fail."""

from pathlib import Path
from textwrap import dedent

import pytest

from rooms import PACKAGE, ROOMS, diagram, main, offences

TESTS = Path(__file__).resolve().parent
BESIDE = {"laws", "parity", "faults", "docs", "examples"}  # and gpu, a room: what needs CUDA, of whatever room


def test_every_room_imports_only_rooms_above_it():
    assert offences(PACKAGE) == []


@pytest.fixture
def plant(tmp_path):
    """Write a file into an otherwise empty package, and say what is wrong with it."""

    def plant(name, text):
        path = tmp_path / "regard" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf8")
        return offences(tmp_path / "regard")

    return plant


@pytest.mark.parametrize(
    "line",
    [
        "import regard.training",
        "import regard.training.loop as loop",
        "from regard.training import loop",
        "from regard import training",
        "from ..training import loop",
        "from .. import training",
        "def late():\n    from regard.training import loop",
        "import importlib\nimportlib.import_module('regard.training')",
    ],
)
def test_an_upward_import_is_found_however_it_is_spelled(plant, line):
    found = plant("hub/load.py", line)

    assert len(found) == 1
    assert found[0].startswith("regard/hub/load.py:") and "hub imports training, which lies below it" in found[0]


@pytest.mark.parametrize(
    "name, line",
    [
        ("config/settings.py", "import tomllib, dataclasses"),
        ("config/settings.py", "from .names import MASKS"),
        ("core/masks.py", "from __future__ import annotations\nimport math\nimport torch.nn.functional as F"),
        ("core/model.py", "from .layers import Block\nfrom ..config import Trunk\nfrom . import masks"),
        ("text/bpe.py", "import tokenizers"),
        ("training/checkpoint.py", "from regard.hub import save\nimport numpy"),
        ("hub/save.py", "from safetensors.torch import save_file\nimport huggingface_hub"),
        ("report/figures.py", "import matplotlib.pyplot as plt"),
        ("serve/app.py", "import fastapi, pydantic, uvicorn"),
        ("models/heads.py", "from ..core.model import Transformer"),
        ("cli.py", "from regard import training, serve"),
        ("__init__.py", "from .core import Transformer\nfrom regard.training import Run"),
    ],
)
def test_what_a_room_may_import_passes(plant, name, line):
    assert plant(name, line) == []


@pytest.mark.parametrize(
    "name, line, wrong",
    [
        ("config/settings.py", "import torch", "config imports torch; it has only the standard library"),
        ("config/settings.py", "from regard.core import masks", "config imports core, which lies below it"),
        ("core/masks.py", "import numpy", "core imports numpy; it has only torch and the standard library"),
        ("core/masks.py", "from regard import load", "core imports regard.load, which is no room"),
        ("core/masks.py", "from . import x\nfrom .. import text", "core imports text"),
        ("lens/heads.py", "from matplotlib import pyplot", "lens imports matplotlib; only report may"),
        ("training/checkpoint.py", "import safetensors.torch", "training imports safetensors; only hub may"),
        ("engine/engine.py", "import pydantic", "engine imports pydantic; only serve and web may"),
        ("measure/check.py", "import transformers", "measure imports transformers; only hub may"),
        ("attention/flex.py", "import triton", "attention imports triton; only gpu may"),
        ("helpers.py", "x = 1", "there is no room 'helpers'"),
    ],
)
def test_what_a_room_may_not_import_is_named(plant, name, line, wrong):
    found = plant(name, line)

    assert len(found) == 1 and wrong in found[0]


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "eval('1')",
        "exec('x = 1')",
        "run = eval",
        "import builtins\nbuiltins.exec('x = 1')",
        "import torch\ntorch.load('x.pt')",
        "import torch as t\nt.load('x.pt')",
        "from torch import load as read\nread('x.pt')",
        "import numpy\nnumpy.load('x.npy', allow_pickle=True)",
    ],
)
def test_code_from_data_is_found(plant, line):
    assert len(plant("data/token_shards.py", line)) == 1


def test_names_that_only_look_like_code_from_data_pass(plant):
    assert (
        plant(
            "training/loop.py",
            """
        import ast
        model.eval()
        ast.literal_eval("1")
        model.load("x")
        numpy.load("x.npy", allow_pickle=False)
        """,
        )
        == []
    )


def test_the_diagram_draws_rooms_in_order_with_lines_and_uses(plant, tmp_path):
    plant("training/loop.py", "import torch\nfrom regard.core import model\nfrom regard.config import read\n")
    plant("core/model.py", "import torch\n")

    assert diagram(tmp_path / "regard").splitlines() == [
        "room        lines  uses",
        "core            1  torch",
        "training        3  config, core, torch",
    ]


def test_the_script_fails_on_an_offence_and_says_where(plant, tmp_path, capsys):
    plant("core/model.py", "import numpy\n")

    assert main(tmp_path / "regard") == 1
    assert "regard/core/model.py:1: core imports numpy" in capsys.readouterr().err


def test_a_folder_of_tests_is_a_room_or_stands_beside_them_by_name():
    """Folders without Python files are what a checkout of another day left behind."""
    folders = {path.relative_to(TESTS).parts[0] for path in TESTS.glob("*/**/*.py")}

    assert folders - {*ROOMS} == BESIDE


def test_no_room_is_named_twice():
    assert len(set(ROOMS)) == len(ROOMS)


def test_the_core_is_read_in_one_sitting():
    lines = sum(len(path.read_text(encoding="utf8").splitlines()) for path in PACKAGE.glob("core/*.py"))

    assert lines <= 1800
