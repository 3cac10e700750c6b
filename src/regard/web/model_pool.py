"""The models that are served, by name, each with the one thread that may touch it.

    decoder             an Engine: many texts at a time, and other work between its steps
    any other model     a worker: one piece of work after the other

Work is given to that thread in small pieces, a row or a batch each, so that no request keeps the others waiting for
long; what grows with a request and needs no model is done by pools of other threads (workers.py).
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from regard import config
from regard.config.names import did_you_mean
from regard.generate.cancellation import CancelToken
from regard.generate.engine import Engine
from regard.generate.forms import Template, template_of
from regard.generate.limits import least, window
from regard.generate.many import Answers
from regard.generate.opening import read_specials
from regard.generate.queueing import Busy
from regard.serve.figures import Figures
from regard.serve.refusals import Refusal
from regard.serve.settings import Settings
from regard.serve.workers import Workers

T = TypeVar("T")
QUEUE = 256  # jobs that wait for a pool
DEADLINE, COMPILING = 30.0, 5.0  # seconds
LETTERS, TIMES = 1 << 18, 16  # of a text: so many, or so many for each token that a model reads
LONGEST = 64  # letters of a name that are repeated to who asked for it


class Resident:
    """One model under its name. What it cannot do is a sentence: `silent` for writing, `mute` for chats."""

    def __init__(self, name: str, model: Any, settings: Settings, texts: Workers) -> None:
        self.texts = texts  # who makes ids of texts
        self.name, self.model, self.most, self.made = name, model, settings.waiting, int(time.time())
        self.silent, self.mute, self.form = silence(model), "", None
        read_specials(model, settings.specials)  # here, before any text of a client can be encoded
        self.pending = 0
        if not self.silent:
            self.form, self.mute = chat_of(model)
            if self.form is not None:  # an answer is over where the template ends it
                model.manner = replace(model.manner, ends=model.manner.ends | self.form.ends)
        self.engine: Engine | None = None
        self.worker: Workers | None = None
        if self.silent:
            self.worker = Workers(name, 1, settings.waiting, DEADLINE)
        else:
            self.engine = Engine(model, slots=settings.slots, capacity=settings.capacity, waiting=settings.waiting)
            self.answers = Answers(self.engine, model)

    @property
    def room(self) -> int | None:
        """How many tokens a text may have, its prompt among them."""
        if isinstance(self.model.c, config.Towers):
            return None
        return window(self.model, self.model.limits) if self.engine is None else self.engine.capacity

    def check_letters(self, count: int, param: str) -> None:
        """Refuses a text that is certainly too long, before it is cut into tokens."""
        most = max(LETTERS, TIMES * (self.room or 0))
        if count > most:
            raise Refusal(400, f"{param}: {count:,} characters are more than the {most:,} that are read at once; give "
                          "less", param=param.partition("[")[0], code="context_length_exceeded")  # fmt: skip

    async def do(self, work: Callable[[CancelToken], T]) -> T:
        """Something done by the thread that owns the model, after what came before it. It should be short; what is not
        checks the token, which is cancelled when nobody waits any more."""
        if self.pending >= self.most:
            raise Busy(self.most, 1.0)
        self.pending += 1
        token = CancelToken()
        try:
            return await asyncio.wrap_future(self.submitted(lambda: work(token)))
        finally:
            token.cancel()
            self.pending -= 1

    def submitted(self, work: Callable[[], T]) -> Future[T]:
        if self.engine is not None:
            return self.engine.do(work)
        assert self.worker is not None
        return self.worker.submit(work)

    def start(self) -> None:
        if self.engine is not None:
            self.engine.start()

    @property
    def is_working(self) -> bool:
        engine = None if self.engine is None else self.engine.thread
        return (engine is not None and engine.is_alive()) or (self.worker is not None and self.worker.is_alive)

    def stop(self) -> None:
        if self.engine is not None:
            self.engine.stop(0.0)
        if self.worker is not None:
            self.worker.stop()
            self.worker.join()


def silence(model: Any) -> str:
    """Why a model goes on from no text; nothing if it does."""
    if isinstance(model.c, config.Towers):
        return "gives vectors and writes no text; ask it at /v1/embeddings"
    if model.c.encoder is not None:
        return "reads one text and writes another, and goes on from none; ask it at /v1/translate"
    if model.tokenizer is None:
        return "has no tokenizer, and a prompt is text; put its tokenizer.json beside it"
    try:
        least(model)
    except config.ConfigError:
        return "reads texts and goes on from none; ask it at /v1/embeddings, /v1/classify or /v1/fill"
    return ""


def chat_of(model: Any) -> tuple[Template | None, str]:
    """How a chat is written for a model, or why it cannot be."""
    try:
        chat = template_of(model)
        if chat is None:
            return None, "has no chat template; ask it at /v1/completions"
        return Template(model, chat), ""
    except config.DataError as problem:
        return None, f"has a chat template that cannot be used ({problem}); ask it at /v1/completions"


def complex_rule(seconds: float) -> Refusal:
    return Refusal(400, f"regex or schema: it was not compiled within {seconds:g} s; make it simpler",
                   code="too_complex")  # fmt: skip


class House:
    """All of them, with what they have in common."""

    def __init__(self, models: Mapping[str, Any], settings: Settings) -> None:
        if not models:
            raise config.ConfigError("models: there is none to serve; name one")
        self.settings, self.figures = settings, Figures()
        self.parsing = Workers("parsing", 1, QUEUE, DEADLINE)  # JSON, in and out: more would only wait for each other
        self.texts = Workers("texts", 2, QUEUE, DEADLINE)  # tokenizers and chat templates
        self.compiling = Workers("compiling", 2, QUEUE, COMPILING, complex_rule)  # regular expressions and schemas
        self.residents = {name: Resident(name, model, settings, self.texts) for name, model in models.items()}
        self.closed = asyncio.Event()  # whoever still waits is told that the server closes
        self.lines: set[Any] = set()  # texts that are on their way
        self.held = 0  # bytes of large bodies that are inside
        self.closing, self.inside = False, 0  # nobody comes in any more; requests that are being answered
        for name, each in self.residents.items():
            if (engine := each.engine) is not None:
                self.figures.watch(name, engine, settings.slots)

    def find(self, name: str | None) -> Resident:
        """A model by its name; the only one there is needs none."""
        known = ", ".join(self.residents)
        if name is None:
            if len(self.residents) > 1:
                raise Refusal(400, f"model: it is missing, and there are several; name one of {known}", param="model")
            return next(iter(self.residents.values()))
        if name not in self.residents:
            meant = did_you_mean(name, self.residents) if len(name) <= LONGEST else ";"
            raise Refusal(404, f"model: there is no {name[:LONGEST]!r}{meant} there are {known}", param="model",
                          code="model_not_found")  # fmt: skip
        return self.residents[name]

    @property
    def status(self) -> str:
        failed = any(each.engine is not None and each.engine.problem is not None for each in self.residents.values())
        return "closing" if self.closing else "failed" if failed else "ok"

    def start(self) -> None:
        for each in self.residents.values():
            each.start()

    def hang_up(self) -> None:
        """End all texts that are on their way, and tell those who wait for them."""
        self.closed.set()
        for line in list(self.lines):
            line.hang_up()

    @property
    def has_threads(self) -> bool:
        """Whether a thread that owns a model is still there."""
        return any(each.is_working for each in self.residents.values())

    def stop(self) -> None:
        """Stop all threads, and wait for those that own models: not on a loop, since that may take a while."""
        for pool in (self.parsing, self.texts, self.compiling):
            pool.stop()
        for each in self.residents.values():
            each.stop()
