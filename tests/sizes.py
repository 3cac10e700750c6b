"""Whether what is long is done at full size, which `make test-full` asks for."""

import os

import pytest

FULL = os.environ.get("REGARD_TESTS") == "full"
in_full = pytest.mark.skipif(not FULL, reason="one of several that prove the same; `make test-full` runs it")
