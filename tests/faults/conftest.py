"""One desk for all trials, and the figures at the end."""

import os
import platform
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from faults.trials import Desk

MEMORY = Path("/dev/shm")  # a disk in memory: a thousand saves would wait for a real one, and prove no more


@pytest.fixture(scope="session")
def desk():
    if not hasattr(os, "pidfd_open"):
        pytest.skip("the trials need Linux: they watch processes and open files as only it can")
    with TemporaryDirectory(prefix="regard-faults-", dir=MEMORY if MEMORY.is_dir() else None) as place:
        made = Desk(Path(place))
        yield made
        made.close()


@pytest.fixture
def figures(record_property):
    """What a test counted, for the last lines of the log: figures(kills=100, lost=0)."""
    return lambda **counted: record_property("figures", ", ".join(f"{n} {name}" for name, n in counted.items()))


def pytest_terminal_summary(terminalreporter):
    passed = [report for report in terminalreporter.stats.get("passed", []) if report.when == "call"]
    told = {report.nodeid.rpartition("::")[2]: dict(report.user_properties).get("figures") for report in passed}
    if any(told.values()):
        terminalreporter.section(f"figures: {platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
                                 f"Python {platform.python_version()}, torch {torch.__version__}")  # fmt: skip
    for name, counted in told.items():
        if counted:
            terminalreporter.line(f"{name}: {counted}")
