"""The same weather for every test: one seed, one thread, no network."""

import os
import signal
from importlib.util import find_spec

os.environ["HF_HUB_OFFLINE"] = "1"      # before anything imports huggingface_hub, which reads it once

import pytest
import torch

import regard.generate.model  # noqa: F401  kernels, front ends and heads enter themselves
from regard.native import build
from regard.train.compile_cache import use_cache_folder

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # behind a shell; whom tests start would too
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)                # the number of threads changes the bits of a result
build.library()                         # whoever asks for it first changes the kernel of all who come after
use_cache_folder()                      # one for all: tests with a cache of their own would compile everything anew
collect_ignore = [] if torch.cuda.is_available() else ["gpu"]

if find_spec("hypothesis"):             # a GPU machine may have torch and pytest and nothing else
    from hypothesis import settings

    settings.register_profile("regard", deadline=None, max_examples=30, derandomize="CI" in os.environ)
    settings.load_profile("regard")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
