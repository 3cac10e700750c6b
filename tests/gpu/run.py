"""Run the tests of this folder on a machine with a GPU: with pytest where it is installed, else with lines of ours.

    PYTHONPATH=src python3 tests/gpu/run.py            # or `make gpu`, which keeps the log
    python tests/gpu/run.py FOLDER --plain             # another folder or file; do without pytest
    python tests/gpu/run.py --jobs 1                   # one after the other: most of the time is compiling, on CPUs

Prints a line a test, then `N passed, N failed`. Exit status: 0 all passed, 1 one failed or none ran, 2 no GPU.
"""

import argparse
import importlib.util
import multiprocessing
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

    def __init__(self, share: tuple[int, int] = (0, 1)) -> None:
        self.counts, self.share, self.seen = Counter(passed=0, failed=0), share, 0

    def mine(self) -> bool:
        """Whether the next test is among the share of this process: every so many-th, so that each has some of all."""
        self.seen += 1
        return (self.seen - 1) % self.share[1] == self.share[0]

    def broken(self, name: str, story: str) -> None:
        """A file that cannot be imported: every process meets it, and one tells."""
        if self.share[0] == 0:
            self.note("failed", name, 0.0, story)

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
    for path in sorted(folder.rglob("test_*.py")) if folder.is_dir() else [folder]:
        try:
            module = load(path)
        except Exception:
            tally.broken(path.name, traceback.format_exc())
            continue
        for name, test in list(vars(module).items()):  # compiling adds names
            if name.startswith("test_") and callable(test):
                for case in filter(lambda _: tally.mine(), getattr(test, "cases", [{}])):
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
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


class Listener:
    """A pytest plugin that tells the tally, so that both ways print the same lines."""

    def __init__(self, tally: Tally) -> None:
        self.tally, self.phases = tally, []

    def pytest_collection_modifyitems(self, items) -> None:
        items[:] = [item for item in items if self.tally.mine()]

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self.tally.broken(report.nodeid, report.longreprtext)

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
    options += ["--continue-on-collection-errors"]
    pytest.main([str(folder), *options], plugins=[Listener(tally)])


class Told(Tally):
    """A tally in a process of its own, that tells another one."""

    def __init__(self, share: tuple[int, int], ear) -> None:
        super().__init__(share)
        self.ear = ear

    def note(self, *what) -> None:
        self.ear.put(what)


def worker(folder: Path, plain: bool, share: tuple[int, int], ear) -> None:
    try:
        (run_plain if plain else run_pytest)(folder, Told(share, ear))
    finally:
        ear.put(None)


def side_by_side(folder: Path, plain: bool, jobs: int, tally: Tally) -> None:
    """Tests dealt out to processes; one that dies is a failure itself."""
    spawn = multiprocessing.get_context("spawn")
    ears = [spawn.SimpleQueue() for _ in range(jobs)]
    hands = [spawn.Process(target=worker, args=(folder, plain, (i, jobs), ear)) for i, ear in enumerate(ears)]
    for hand in hands:
        hand.start()
    going = dict(enumerate(ears))
    while going:
        time.sleep(0.05)
        for i, ear in list(going.items()):
            ended = not hands[i].is_alive()  # asked first: what it said before is in the queue
            while not ear.empty():
                if (what := ear.get()) is None:
                    going.pop(i)
                    break
                tally.note(*what)
            if ended and going.pop(i, None) is not None:
                tally.note("failed", f"process {i + 1}", 0.0, f"it ended with {hands[i].exitcode} before its tests did")
    for hand in hands:
        hand.join()


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the GPU tests.")
    parser.add_argument("folder", nargs="?", type=Path, default=HERE)
    parser.add_argument("--plain", action="store_true", help="do without pytest")
    parser.add_argument("--jobs", type=int, default=max(1, min(6, (os.cpu_count() or 1) // 2)), help="processes")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    if HERE in (folder, folder.parent) and not torch.cuda.is_available():
        print("tests/gpu needs a CUDA device and torch sees none here", file=sys.stderr)
        return 2

    tally = Tally()
    plain = asked.plain or importlib.util.find_spec("pytest") is None
    if asked.jobs > 1:
        side_by_side(folder, plain, asked.jobs, tally)
    else:
        (run_plain if plain else run_pytest)(folder, tally)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
