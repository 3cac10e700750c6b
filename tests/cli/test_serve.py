"""regard serve: what is typed, what is refused, and how it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import openai
import pytest
from serve.served_models import Plain, until, writer

from regard.cli import main
from regard.cli.serve import name_models, read_api_keys


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("shelf") / "scribe"
    writer().save(place)
    return place


class Command:
    """`regard serve ...` in a process of its own, on a free port."""

    def __init__(self, *words, **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "regard", "serve", *map(str, words), "--port", "0"], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1", **environment})  # fmt: skip
        self.said = self.process.stderr.readline()
        self.url = next((word.removesuffix("/v1") for word in self.said.replace(";", "").split() if "http" in word), "")

    def end(self, *signals):
        for each in signals:
            self.process.send_signal(each)
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out, err


@pytest.mark.slow
def test_it_says_where_it_is_serves_and_drains(folder):
    command = Command(folder, f"other={folder}", REGARD_API_KEY="k-1")
    assert command.said.startswith("regard: scribe, other at http://127.0.0.1:") and "with a key" in command.said

    with openai.OpenAI(base_url=f"{command.url}/v1", api_key="k-1") as client:
        assert [each.id for each in client.models.list()] == ["scribe", "other"]
        stream = client.completions.create(model="scribe", prompt="the", max_tokens=250, stream=True)
        next(stream)
        command.process.send_signal(signal.SIGTERM)
        rest = list(stream)
    code, out, err = command.end()

    assert rest[-1].choices[0].finish_reason == "length" and len(rest) == 249
    assert (code, err) == (143, "")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(line["route"], line["status"]) for line in lines] == [("/v1/models", 200), ("/v1/completions", 200)]
    assert lines[1]["completion_tokens"] == 250


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(folder):
    command = Command(folder)
    plain = Plain(command.url)
    with socket.create_connection((plain.place.hostname, plain.place.port)) as connection:  # its body never comes
        connection.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           b"Expect: 100-continue\r\nContent-Length: 90\r\n\r\n")  # fmt: skip
        assert connection.recv(99).startswith(b"HTTP/1.1 100 ")  # it waits for the body
        command.process.send_signal(signal.SIGINT)
        until(lambda: plain.get("/health").status == 503)
        began = time.monotonic()
        code, _, err = command.end(signal.SIGTERM)

    assert (code, err) == (143, "") and time.monotonic() - began < 3


def refused(capsys, *words):
    code = main([str(word) for word in ("serve", *words)])
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1
    return code, told.err


@pytest.mark.parametrize(
    "words, word",
    [
        (["--host", "0.0.0.0"], "--host: 0.0.0.0 can be reached from other machines, and there is no key"),
        (["--host", "::"], "can be reached from other machines"),
        (["--port", "70000"], "--port: 70000 is not between 0 and 65535"),
        (["--slots", "0"], "--slots"),
        (["--api-key", ""], "--api-key: it is empty"),
        (["--api-key", "two words"], "--api-key: one of them is not valid in a header"),
        (["--api-key", "a", "--api-key-file", "b"], "keep one of the two"),
        (["--max-context", "900"], "max_context: 900 is more than the 300 tokens"),
        (["--dtype", "fp7"], "dtype: no 'fp7'"),
        (["--host", "203.0.113.9", "--api-key", "k"], "choose an address of this machine"),
    ],
)
def test_mistakes_are_one_sentence(capsys, monkeypatch, folder, words, word):
    monkeypatch.delenv("REGARD_API_KEY", raising=False)
    code, told = refused(capsys, folder, *words, *([] if "--port" in words else ["--port", "0"]))

    assert code == 2 and word in told


def test_a_port_that_is_taken_is_told_before_models_are_read(capsys, folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, told = refused(capsys, folder.parent / "nothing", "--port", taken.getsockname()[1])

    assert code == 2 and "another process listens there already" in told


def test_a_model_that_is_not_there_is_bad_data(capsys, folder):
    code, told = refused(capsys, folder, f"{folder.parent}/nothing", "--port", "0")

    assert code == 3 and "nothing" in told


def test_models_are_called_by_their_folders_or_as_you_say(folder):
    assert name_models([f"{folder}/", "mine=runs/x", "en-fr", "hf:gpt2@main", "owner/name"]) == {
        "scribe": f"{folder}/",
        "mine": "runs/x",
        "en-fr": "en-fr",
        "gpt2": "hf:gpt2@main",
        "owner/name": "owner/name",
    }


@pytest.mark.parametrize("words", [["{0}", "{0}"], ["a={0}", "a=b"], ["={0}"], ["a="]])
def test_names_are_told_apart(capsys, folder, words):
    code, told = refused(capsys, *(word.format(folder) for word in words))

    assert code == 2 and "CHECKPOINT" in told


def test_keys_come_from_the_words_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_API_KEY", "of-the-room")
    (tmp_path / "keys").write_text("one\n\n two \n")

    assert read_api_keys(None, None) == ["of-the-room"] and read_api_keys("said", None) == ["said"]
    assert read_api_keys(None, tmp_path / "keys") == ["one", "two"]
    monkeypatch.delenv("REGARD_API_KEY")
    assert read_api_keys(None, None) == []


def test_without_its_extra_it_says_what_to_install(capsys, monkeypatch, folder):
    monkeypatch.setattr("regard.cli.serve.find_spec", lambda name: None)
    code, told = refused(capsys, folder)

    assert code == 2 and "pip install 'regard[serve]'" in told
