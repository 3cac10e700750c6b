"""The same weather for every test: one seed, one thread, no network."""

import os
import signal
from importlib.util import find_spec

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub, which reads it once
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # else every process that compiles starts others, which import torch

import pytest
import torch

import regard.inference.model  # noqa: F401  kernels, front ends and heads enter themselves
from regard.measure import calibration
from regard.native import library
from regard.training.compile_cache import use_compile_cache

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # behind a shell; whom tests start would too
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.fsync = os.fstat  # no test pulls the plug, and each call waits for a disk; what is no open file is an error still
torch.set_num_threads(1)  # the number of threads changes the bits of a result
library.load_library()  # whoever asks for it first changes the kernel of all who come after
use_compile_cache()  # one for all: tests with a cache of their own would compile everything anew
calibration.matmul_speed.__wrapped__.__defaults__ = ("cpu", 0.01)  # every run times products, and half a second adds up
collect_ignore = [] if torch.cuda.is_available() else ["gpu"]

if find_spec("hypothesis"):  # a GPU machine may have torch and pytest and nothing else
    from hypothesis import settings

    settings.register_profile("regard", deadline=None, max_examples=30, derandomize="CI" in os.environ)
    settings.load_profile("regard")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks at the groups
def pytest_collection_modifyitems(items):
    """Quick tests begin, those of a file in one worker; then slow ones, the longest first, so workers end together."""
    for item in items:
        if not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    items.sort(key=seconds)


def seconds(item) -> float:
    """Where an item stands: quick ones before all others."""
    marks = list(item.iter_markers("slow"))
    return -max(mark.kwargs.get("seconds", 0) for mark in marks) if marks else float("-inf")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def bf16_products(monkeypatch):
    """Let "mixed" mean bf16 products on every CPU: one without the instructions emulates them."""
    monkeypatch.setattr("regard.core.layers.CPU_BF16", True)
