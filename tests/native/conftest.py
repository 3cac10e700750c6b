"""The library in C is there, and is there again after a test that did without."""

import pytest

from regard.native import build


@pytest.fixture(autouse=True)
def library():
    before = list(build.FOUND)
    if build.library() is None:
        pytest.skip("no C compiler that makes a library for torch's threads")
    yield build.library()
    build.FOUND[:] = before
