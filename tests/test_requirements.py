"""Floors in pyproject.toml, what constraints.txt installs, and what is installed agree."""

import subprocess
import sys
import tomllib
from pathlib import Path

import constraints
import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
READ = ("pyarrow", "pillow", "h11", "starlette", "fastapi", "uvicorn", "jinja2", "safetensors", "tokenizers")


def floors():
    lines = [*PROJECT["dependencies"], *(line for name, extra in EXTRAS.items() if name != "dev" for line in extra)]
    return {constraints.plain(each.name): each.specifier for each in map(Requirement, lines)}


def test_constraints_are_within_the_floors():
    pinned = constraints.read_constraints(ROOT / "constraints.txt")
    below = {name: pinned[name] for name, allowed in floors().items() if name in pinned and pinned[name] not in allowed}

    assert not below


@pytest.mark.parametrize("name", READ)
def test_whatever_reads_what_strangers_send_has_a_floor(name):
    assert any(each.operator == ">=" for each in floors()[name])


def test_a_package_of_another_version_or_of_none_is_told():
    said = constraints.find_differences({"a": "1.0", "torch": "2.13.0"}, {"a": "1.1", "b": "2", "torch": "2.13.0+cpu"})

    assert said == ["a 1.1 is installed, where constraints.txt says 1.0",
                    "b 2 is installed, and constraints.txt does not name it"]  # fmt: skip


def test_the_tool_says_in_one_sentence_how_it_stands():
    done = subprocess.run([sys.executable, ROOT / "tools/constraints.py"], capture_output=True, text=True)

    assert done.returncode == (0 if done.stdout.startswith("what is installed is") else 1) and done.stdout.strip()


def test_no_test_asks_the_network_for_holes():
    lines = (ROOT / "Makefile").read_text().splitlines()
    [named] = [line for line in lines if line.startswith("test:")]

    assert "audit" not in named and any(line.startswith("audit:") for line in lines)


GROUPED = """
import os
import pytest

@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in "ab"])
def test_where(name, number):
    with open(name, "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + " ")
"""


def test_what_tests_of_a_group_share_is_made_in_one_worker(tmp_path):
    (tmp_path / "test_grouped.py").write_text(GROUPED)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout
    assert all(len(set((tmp_path / name).read_text().split())) == 1 for name in "ab")
