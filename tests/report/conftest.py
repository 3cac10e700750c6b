"""What is read again for a report is kept in a folder of the test, not in somebody's cache."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
