"""Whether what is long is done at full size, which `make test-full` asks for."""

import os

import pytest

from regard.core.layers import CPU_BF16

FULL = os.environ.get("REGARD_TESTS") == "full"
in_full = pytest.mark.skipif(not FULL, reason="one of several that prove the same; `make test-full` runs it")


def mixed_here(precision: str = "mixed") -> None:
    """Skip a test of bf16 products on a CPU that has none: there "mixed" is fp32 (tests/core/test_precision.py)."""
    if precision == "mixed" and not CPU_BF16:
        pytest.skip("this CPU has no bf16 products, and mixed precision is fp32 on it")
