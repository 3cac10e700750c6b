"""Run the tests of this folder on a machine with a GPU: with pytest where it is installed, else with lines of ours.

    PYTHONPATH=src python3 tests/gpu/run.py            # or `make gpu`, which keeps the log
    python tests/gpu/run.py FOLDER --plain             # another folder; do without pytest

Prints a line a test, then `N passed, N failed`. Exit status: 0 all passed, 1 one failed or none ran, 2 no GPU.
"""

import argparse
import importlib.util
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from unittest import SkipTest

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA begins: some tests compare bits

import torch

from cases import label

HERE = Path(__file__).resolve().parent


class Tally:
    """What happened so far; each result is told as it comes, since a log may be cut off."""

    def __init__(self) -> None:
        self.counts = Counter(passed=0, failed=0)

    def note(self, outcome: str, name: str, seconds: float, story: str = "") -> None:
        self.counts[outcome] += 1
        word = {"passed": "PASS", "failed": "FAIL", "skipped": "SKIP"}[outcome]
        print(f"{word} {seconds:7.2f}s  {name}", flush=True)
        if story:
            print("    " + story.strip().replace("\n", "\n    "), flush=True)

    def close(self) -> int:
        print(", ".join(f"{count} {outcome}" for outcome, count in self.counts.items()), flush=True)
        return 0 if self.counts["passed"] and not self.counts["failed"] else 1


def run_plain(folder: Path, tally: Tally) -> None:
    """Every test_* function of every test_*.py, in the order they are written."""
    for path in sorted(folder.rglob("test_*.py")):
        try:
            module = load(path)
        except Exception:
            tally.note("failed", path.name, 0.0, traceback.format_exc())
            continue
        for name, test in list(vars(module).items()):  # compiling adds names
            if name.startswith("test_") and callable(test):
                for case in getattr(test, "cases", [{}]):
                    attempt(f"{path.name}::{name}" + (f"[{label(case.values())}]" if case else ""), test, case, tally)


def attempt(name: str, test: Callable, case: dict, tally: Tally) -> None:
    torch.manual_seed(0)
    start = time.perf_counter()
    outcome, story = "passed", ""
    try:
        test(**case)
    except SkipTest as reason:
        outcome, story = "skipped", str(reason)
    except Exception:
        outcome, story = "failed", traceback.format_exc()
    tally.note(outcome, name, time.perf_counter() - start, story)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module          # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


class Listener:
    """A pytest plugin that tells the tally, so that both ways print the same lines."""

    def __init__(self, tally: Tally) -> None:
        self.tally, self.phases = tally, []

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self.tally.note("failed", report.nodeid, 0.0, report.longreprtext)

    def pytest_runtest_logreport(self, report) -> None:
        self.phases.append(report)
        if report.when == "teardown":
            worst = next((phase for phase in self.phases if not phase.passed), report)
            story = worst.longrepr[-1] if worst.skipped else worst.longreprtext
            name = Path(report.nodeid.split("::")[0]).name + "::" + report.nodeid.split("::", 1)[1]
            self.tally.note(worst.outcome, name, sum(phase.duration for phase in self.phases), story)
            self.phases = []


def run_pytest(folder: Path, tally: Tally) -> None:
    import pytest

    # This machine has another torch than constraints.txt, so other warnings: they are not errors here.
    options = ["-o", "addopts=", "--import-mode=importlib", "-W", "default", "-p", "no:terminal"]
    pytest.main([str(folder), *options], plugins=[Listener(tally)])


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the GPU tests.")
    parser.add_argument("folder", nargs="?", type=Path, default=HERE)
    parser.add_argument("--plain", action="store_true", help="do without pytest")
    asked = parser.parse_args()
    if asked.folder.resolve() == HERE and not torch.cuda.is_available():
        print("tests/gpu needs a CUDA device and torch sees none here", file=sys.stderr)
        return 2

    tally = Tally()
    plain = asked.plain or importlib.util.find_spec("pytest") is None
    (run_plain if plain else run_pytest)(asked.folder.resolve(), tally)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
