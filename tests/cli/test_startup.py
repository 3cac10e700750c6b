"""What needs no model waits for none: no torch for help, versions and mistakes."""

import subprocess
import sys

import pytest

WATCH = """
import sys
from regard.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code or 0
heavy = {"torch", "rich", "tokenizers", "safetensors", "matplotlib", "numpy"} & set(sys.modules)
print("after", code, *sorted(heavy), file=sys.stderr)
"""


def after(*words, folder=None):
    """The exit code, and what was imported on the way."""
    done = subprocess.run([sys.executable, "-c", WATCH, *words], capture_output=True, text=True, cwd=folder, timeout=60)
    return done.stderr.splitlines()[-1].removeprefix("after ")


@pytest.mark.parametrize("words, code", [
    (["--help"], 0),
    (["--version"], 0),
    (["train", "--help"], 0),
    (["tokenize", "encode", "--help"], 0),
    (["schema"], 0),
    (["models", "shakespeare"], 0),
    (["models", "gpt22"], 2),
    (["--show-completion"], None),
    (["trian"], 2),
    (["train"], 2),
    (["train", "shakespear"], 2),
    (["train", "recipe.toml", "model.dimm=3"], 2),
    (["train", "recipe.toml", "model.mask=casual"], 2),
    (["train", "recipe.toml", "--out", "text.txt"], 2),
    (["train", "recipe.toml", "--otu", "x"], 2),
    (["resume", "nowhere"], 3),
    (["resume", ".", "model.dim=3"], 2),
    (["report", "nowhere"], 3),
    (["generate", "nowhere", "--top-p", "2"], 2),
    (["generate", "nowhere", "a", "--file", "b"], 2),
    (["tokenize", "train", "bep", "text.txt", "--out", "x"], 2),
    (["tokenize", "decode", "x", "one"], 2),
], ids=lambda given: " ".join(given) if isinstance(given, list) else "")  # fmt: skip
def test_torch_is_not_imported_for(desk, words, code):
    told = after(*words, folder=desk)

    assert told.split()[1:] == []
    assert code is None or told.split()[0] == str(code)


@pytest.mark.slow
def test_the_watch_would_see_torch(checkpoint, desk):
    assert "torch" in after("generate", "model", "the", "--max-new-tokens", "1", folder=desk)
