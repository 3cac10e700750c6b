"""Many cases of one test, and its marks, for machines where torch is installed and pytest may not be.

    from cases import cases, spec

    @spec("S024")
    @cases(kernel=["fused", "flex"], length=[5, 129])
    def test_a_query_that_sees_nobody_gets_zeros(kernel, length): ...

Test files in this folder import no pytest. To skip, raise unittest.SkipTest; there are no fixtures but the seed.
"""

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

try:
    import pytest
except ImportError:
    pytest = None


def cases(**lists: Iterable[Any]) -> Callable:
    """Run the test once for every combination: parametrize under pytest, a list on the function for run.py."""
    rows = list(product(*lists.values()))

    def decorate(test: Callable) -> Callable:
        before = getattr(test, "cases", [{}])
        test.cases = [dict(zip(lists, row, strict=True)) | old for row in rows for old in before]
        if pytest is None:
            return test
        values = rows if len(lists) > 1 else [row[0] for row in rows]
        return pytest.mark.parametrize(",".join(lists), values, ids=[label(row) for row in rows])(test)

    return decorate


def spec(*rows: str) -> Callable:
    """The rows of docs/ideas.toml that the test demonstrates: pytest.mark.spec where there is pytest."""
    return pytest.mark.spec(*rows) if pytest else lambda test: test


def label(values: Iterable[Any]) -> str:
    return "-".join(str(getattr(value, "__name__", value)) for value in values)
