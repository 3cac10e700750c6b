"""Models small enough to be served in a test, the server that they are served by, and clients that are not ours."""

import http.client
import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import torch
import transformers as hf
from hub.text_folders import bert, bytelevel, saved

from regard import config, text, zoo
from regard.inference.load import load_model
from regard.inference.model import build_model
from regard.serve.app import create_app
from regard.web.server import BackgroundServer
from regard.web.settings import ServerSettings

LETTERS = "abcdefghijklmnopqrstuvwxyz .,\n"
ROOM = 300  # tokens of a text
TEMPLATE = """
{%- for message in messages -%}
<|im_start|>{{ message.role }}: {{ message.content }}<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant: {%- endif -%}
""".strip()


def writer():
    """Goes on from letters, and has no idea what it says."""
    torch.manual_seed(7)
    model = build_model(
        zoo.preset("gpt2", dim=12, depth=2, heads=3, vocab=len(LETTERS), position={"length": ROOM})
    ).eval()
    model.tokenizer, model.context = text.train_tokenizer(config.CharTokenizer(byte_fallback=False), [LETTERS]), ROOM
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    return model


def talker(folder: Path):
    """A folder as people publish them: bytes, special tokens, and a chat template."""
    torch.manual_seed(9)
    tokenizer = bytelevel("")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    end = tokenizer.convert_tokens_to_ids("</s>")
    sizes = dict(n_positions=ROOM, n_embd=20, n_layer=2, n_head=4, bos_token_id=end, eos_token_id=end)
    saved(hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=len(tokenizer), **sizes)), tokenizer, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return load_model(folder, device="cpu")


def masked(folder: Path):
    return load_model(bert("ForMaskedLM", folder)[2], device="cpu")


def judge(folder: Path):
    names = {0: "good", 1: "bad", 2: "odd"}
    return load_model(
        bert("ForSequenceClassification", folder, id2label=names, label2id={v: k for k, v in names.items()})[2],
        device="cpu",
    )


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """The sentence, after a look at the form of it."""
        error = self.json["error"]
        assert self.json.keys() == {"error"} and error.keys() == {"message", "type", "param", "code"}
        assert error["message"] and "\n" not in error["message"] and "Traceback" not in error["message"]
        return error


class Plain:
    """A client that sends what it is told to, however wrong."""

    def __init__(self, url, key=None):
        self.place, self.key = urlsplit(url), key

    def connect(self):
        return http.client.HTTPConnection(self.place.hostname, self.place.port, timeout=30)

    def ask(self, method, path, body=None, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
        if self.key is not None:
            headers.setdefault("Authorization", f"Bearer {self.key}")
        connection = self.connect()
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path, **headers):
        return self.ask("GET", path, **headers)

    def post(self, path, body, **headers):
        return self.ask("POST", path, body, **headers)

    def stream(self, path, body):
        """An open stream: the connection, and the answer that is still coming."""
        connection = self.connect()
        headers = {"Content-Type": "application/json"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        connection.request("POST", path, json.dumps(body | {"stream": True}).encode(), headers)
        return connection, connection.getresponse()


def events(answer):
    """The events of a stream, read to its end."""
    lines = [line.removeprefix(b"data: ") for line in answer.read().split(b"\n") if line]
    assert lines[-1] == b"[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def served(models, **settings):
    return BackgroundServer(create_app(models, ServerSettings(**settings)))


def until(true, seconds=10.0):
    """Wait for what no event tells of."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


class Gate:
    """Stands before each step of an engine; closed, everything waits inside."""

    def __init__(self, engine):
        self.engine, self.forward, self.open = engine, engine.forward, threading.Event()
        self.open.set()
        engine.forward = self.pass_through

    def pass_through(self, ids, cache):
        assert self.open.wait(30)
        return self.forward(ids, cache)
