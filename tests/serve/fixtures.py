"""One server for all tests of a folder that leave it as it was; small ones for the others."""

import openai
import pytest
from serve.served_models import Plain, judge, masked, served, talker, writer

from regard.inference.load import load_model


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    return {"writer": writer(), "talker": talker(folder / "talker"), "masked": masked(folder / "masked"),
            "judge": judge(folder / "judge"), "en-fr": load_model("en-fr", device="cpu")}  # fmt: skip


@pytest.fixture(scope="session")
def server(models):
    with served(models, slots=3, max_queue=40) as server:
        yield server


@pytest.fixture(scope="session")
def plain(server):
    return Plain(server.url)


@pytest.fixture(scope="session")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture
def small():
    """Servers of a writer of one's own, to be closed, filled or left; with a gate before its engine."""
    opened = []

    def small(**settings):
        server = served({"writer": writer()}, **{"slots": 2, "max_queue": 1} | settings)
        opened.append(server.__enter__())
        return server

    yield small
    for server in opened:
        server.__exit__(None, None, None)
