"""`regard serve` in a process of its own, with a model of a million weights, and what it says to one alone.

client ──► regard serve ──► text          the same words: an engine here, with one request
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from faults.trials import HERE

from regard import config, text, zoo
from regard.engine.engine import Engine
from regard.engine.request_queue import RequestTicket
from regard.engine.text_engine import CompletionChunk, TextEngine
from regard.inference.load import load_model
from regard.inference.model import build_model

ON_LINUX = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="memory and load are read as Linux tells them")
LETTERS = "abcdefghijklmnopqrstuvwxyz ,.;!?'-\nABCDEFGHIJKLMNOPQRSTUVWXYZ"
ROOM = 320  # tokens of a text
OPENING = ("Once, when nobody was looking, a machine began to speak. " * 5)[:ROOM]
# How tokens are chosen, by the names of a request.
WAYS = (
    {"temperature": 0}, {"temperature": 0.8}, {"top_p": 0.9}, {"top_k": 7, "temperature": 1.5}, {"min_p": 0.05},
    {"frequency_penalty": 1.5, "presence_penalty": 0.5}, {"no_repeat_ngram_size": 3, "temperature": 0},
    {"typical_p": 0.7}, {"repetition_penalty": 1.3}, {"logit_bias": {"5": 4, "9": -100}}, {"stop": ["e", "oo"]},
    {"logprobs": 3},
    {"regex": "[a-z]{3,9}( [a-z]{2,7}){4,9}[.]"},
)  # fmt: skip
NAMES = {"max_tokens": "max_new_tokens"}
# Each way, after prompts of several lengths: some are read in one piece, some have their first piece in common.
KINDS = tuple(
    {"model": "scribe", "prompt": OPENING[: (3, 41, 129, 7, 200)[place % 5]], "seed": place,
     "max_tokens": (61, 97, 79)[place % 3], **way}
    for place, way in enumerate(WAYS)
)  # fmt: skip


def scribe(place: Path) -> Path:
    """A million random weights that go on from letters."""
    torch.manual_seed(11)
    sizes = dict(dim=128, depth=5, heads=4, vocab=len(LETTERS), position={"length": ROOM})
    model = build_model(zoo.preset("gpt2", **sizes)).eval()
    model.tokenizer, model.context = text.train_tokenizer(config.CharTokenizer(byte_fallback=False), [LETTERS]), ROOM
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)  # or else it says the same letter for ever
    model.save(place)
    return place


class Alone:
    """What is said to one who is alone: an engine of the same shape, in this process, with one request at a time."""

    def __init__(self, folder: Path, slots: int) -> None:
        model = load_model(folder, device="cpu")
        self.answers = TextEngine(Engine(model, slots=slots), model)
        self.told = cache(self.find)

    def __call__(self, asked: dict) -> str:
        return self.told(json.dumps(asked))

    def find(self, asked: str) -> str:
        pieces: list[CompletionChunk] = []
        self.answers.finish(self.ask(json.loads(asked), pieces.append))
        assert pieces[-1].reason in ("length", "stop", "eos"), pieces[-1]
        return "".join(piece.text for piece in pieces)

    def ask(self, asked: dict, hear: Callable[[CompletionChunk], None]) -> RequestTicket:
        """A request, in the words of the library."""
        settings = {NAMES.get(name, name): value for name, value in asked.items() if name != "model"}
        if "logit_bias" in settings:
            settings["logit_bias"] = {int(id): number for id, number in settings["logit_bias"].items()}
        if "stop" in settings:
            settings["stop"] = tuple(settings["stop"])
        return self.answers.submit(settings.pop("prompt"), hear, **settings)


class Served:
    """`regard serve WORDS` on a free port. Its log is a file, so that it never waits for us to read it."""

    def __init__(self, log: Path, *words: object, program: tuple[str, ...] = ("-m", "regard", "serve")) -> None:
        env = {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self.log = log
        with open(log, "wb") as out:
            self.process = subprocess.Popen([sys.executable, *program, *map(str, words), "--port", "0"],
                                            stdout=out, stderr=subprocess.PIPE, text=True, env=env)  # fmt: skip

    def ready(self) -> "Served":
        """Wait until it says where it is."""
        said = self.process.stderr.readline()
        found = re.search(r"http://([\d.]+):(\d+)", said)
        assert found, said + self.process.stderr.read()
        self.place = found[1], int(found[2])
        self.url = f"http://{found[1]}:{found[2]}"
        return self

    def end(self, number: int = signal.SIGTERM, patience: float = 20) -> tuple[int, str, float]:
        """The exit code, the rest of what it said to people, and how long it took after the signal."""
        began = time.monotonic()
        self.process.send_signal(number)
        try:
            said = self.process.communicate(timeout=patience)[1]
        finally:
            self.process.kill()
        return self.process.returncode, said, time.monotonic() - began

    def lines(self) -> list[dict]:
        """Its log. A line that is no JSON, as those of a traceback, is an error here."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def bugs(self) -> list[dict]:
        return [line for line in self.lines() if "bug" in line or line["status"] == 500]

    @property
    def memory(self) -> int:
        """Bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


class Others:
    """How much of all cores others had meanwhile: a late answer is ours only if the cores were."""

    MUCH = 0.2

    def __init__(self, served: Served) -> None:
        self.pids = (os.getpid(), served.process.pid)
        self.before = self.ticks()

    def ticks(self) -> tuple[int, int, int]:
        """All of them, those that were not idle, and ours."""
        total = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        mine = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.pids]
        return sum(total), sum(total) - total[3] - total[4], sum(int(each[11]) + int(each[12]) for each in mine)

    @property
    def share(self) -> float:
        every, busy, ours = (now - then for now, then in zip(self.ticks(), self.before, strict=True))
        return max(0.0, (busy - ours) / max(every, 1))

    def excuse(self, **late: tuple[float, float]) -> None:
        """Each is a time and its limit, in seconds. Whoever is late fails, unless others used the machine."""
        missed = {name: f"{time:.3f} s, and not {limit} s" for name, (time, limit) in late.items() if not time < limit}
        if missed and (share := self.share) > self.MUCH:
            pytest.skip(f"all texts are right, and late ({missed}) while others had {share:.0%} of the cores")
        assert not missed, f"others had {self.share:.0%} of the cores"
