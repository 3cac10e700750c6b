"""The runner of tests/gpu tells the same story with pytest and without; tried here on a planted folder, on the CPU."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

RUNNER = Path(__file__).parent / "gpu" / "run.py"
BARE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins of other packages take longer to import than these tests

PLANTED = """
    from dataclasses import dataclass
    from unittest import SkipTest

    import torch
    from cases import cases, spec

    @dataclass
    class Pair:
        left: int
        right: int

    @spec("S002")
    def test_one_is_one():
        assert Pair(1, 1).left == 1

    @cases(dtype=[torch.float32, torch.float64], size=[3, 5])
    def test_sizes_are_odd(dtype, size):
        assert torch.ones(size, dtype=dtype).sum() % 2 == 1

    @cases(size=[2, 3])
    def test_two_is_odd(size):
        assert size % 2 == 1

    def test_later():
        raise SkipTest("another day")

    def helper():
        raise RuntimeError("not a test")
"""


@pytest.fixture
def run(monkeypatch, capsys):
    """Exit status, the lines printed (with times and tracebacks taken out) and all that was printed."""

    def run(folder, way):
        command = [str(RUNNER), str(folder), "--jobs", "2" if way == "side by side" else "1"]
        if way == "plain here":  # in this process, which has imported torch already
            monkeypatch.syspath_prepend(RUNNER.parent)
            monkeypatch.setattr(sys, "argv", [*command, "--plain"])
            with pytest.raises(SystemExit) as end:
                runpy.run_path(str(RUNNER), run_name="__main__")
            status, out = end.value.code, capsys.readouterr().out
        else:
            done = subprocess.run(
                [sys.executable, *command, *["--plain"] * (way == "plain")],
                env={**os.environ, **BARE, **({"PYTHONPATH": without_pytest(folder)} if way == "plain" else {})},
                capture_output=True, text=True,
            )  # fmt: skip
            status, out = done.returncode, done.stdout
        lines = re.sub(r" +\d+\.\d\ds  ", " ", out).splitlines()
        return status, [line for line in lines if not line.startswith("    ")], out

    return run


def without_pytest(folder):
    """A folder whose pytest does not import, as on a machine that has none."""
    (folder / "absent").mkdir()
    (folder / "absent" / "pytest.py").write_text("raise ImportError\n", encoding="utf8")
    return str(folder / "absent")


@pytest.mark.slow
class TestRunner:
    @pytest.mark.parametrize("way", ["pytest", "plain"])
    def test_each_case_is_a_line(self, tmp_path, way, run):
        (tmp_path / "test_planted.py").write_text(dedent(PLANTED), encoding="utf8")

        status, lines, everything = run(tmp_path, way)

        assert status == 1
        assert lines[-1] == "6 passed, 1 failed, 1 skipped"
        assert sorted(lines[:-1]) == [
            "FAIL test_planted.py::test_two_is_odd[2]",
            "PASS test_planted.py::test_one_is_one",
            "PASS test_planted.py::test_sizes_are_odd[torch.float32-3]",
            "PASS test_planted.py::test_sizes_are_odd[torch.float32-5]",
            "PASS test_planted.py::test_sizes_are_odd[torch.float64-3]",
            "PASS test_planted.py::test_sizes_are_odd[torch.float64-5]",
            "PASS test_planted.py::test_two_is_odd[3]",
            "SKIP test_planted.py::test_later",
        ]
        assert "assert size % 2 == 1" in everything and "another day" in everything

    @pytest.mark.parametrize("way", ["pytest", "plain here"])
    def test_all_passed_is_status_zero(self, tmp_path, way, run):
        (tmp_path / "test_fine.py").write_text("def test_fine(): pass\n", encoding="utf8")

        status, lines, _ = run(tmp_path, way)

        assert (status, lines) == (0, ["PASS test_fine.py::test_fine", "1 passed, 0 failed"])

    @pytest.mark.parametrize("way", ["pytest", "plain here"])
    def test_a_file_that_does_not_import_fails(self, tmp_path, way, run):
        (tmp_path / "test_broken.py").write_text("import no_such_module\n", encoding="utf8")

        status, lines, everything = run(tmp_path, way)

        assert status == 1 and lines[-1] == "0 passed, 1 failed" and "no_such_module" in everything

    @pytest.mark.parametrize("way", ["pytest", "plain here"])
    def test_a_folder_without_tests_fails(self, tmp_path, way, run):
        status, lines, _ = run(tmp_path, way)

        assert (status, lines) == (1, ["0 passed, 0 failed"])


@pytest.mark.slow
def test_side_by_side_each_test_runs_once_and_a_process_that_dies_is_a_failure(tmp_path, run):
    (tmp_path / "test_broken.py").write_text("import no_such_module\n", encoding="utf8")
    (tmp_path / "test_fine.py").write_text("def test_one(): pass\ndef test_two(): pass\n", encoding="utf8")
    (tmp_path / "test_last.py").write_text("import os\ndef test_dying(): os._exit(9)\n", encoding="utf8")

    status, lines, everything = run(tmp_path, "side by side")

    assert status == 1 and lines[-1] == "2 passed, 2 failed" and "it ended with 9 before its tests did" in everything
