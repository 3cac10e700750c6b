"""The library in C is there, and is there again after a test that did without."""

import pytest

from regard.native import library as native


@pytest.fixture(autouse=True)
def library():
    before = list(native.LOADED)
    if native.load_library() is None:
        pytest.skip("no C compiler that makes a library for torch's threads")
    yield native.load_library()
    native.LOADED[:] = before
