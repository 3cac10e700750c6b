"""Model pool: the served models by name, each with the one thread that may touch it; and the Prometheus metrics.

    decoder             an Engine: many requests at a time, and other jobs between its steps
    any other model     a worker: one job after the other

Jobs for that thread are small, a row or a batch each, so that no request delays the others for long; work that grows
with a request and needs no model runs in other thread pools (workers.py).

Each pool has a metrics registry of its own, so that two in one process count separately. Labels are routes, statuses
and names of models: few, and none that a client can create.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from regard import config
from regard.chat.formats import TemplateFormat, find_chat_template
from regard.config.errors import did_you_mean
from regard.engine.engine import Engine
from regard.engine.request_queue import QueueFull
from regard.engine.text_engine import TextEngine
from regard.generation.cancellation import CancelToken
from regard.generation.limits import context_window, min_prompt_tokens
from regard.inference.load import read_specials
from regard.web.errors import ApiError
from regard.web.settings import ServerSettings
from regard.web.workers import WorkerPool

WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0)
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class ServerMetrics:
    """Prometheus metrics of one model pool."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self.requests = Counter("regard_requests", "Requests that were answered.", ("route", "status"), registry=own)
        self.seconds = Histogram("regard_request_seconds", "From the first byte of a request to the last of its "
                                 "answer.", ("route",), buckets=WAITS, registry=own)  # fmt: skip
        self.tokens = Counter("regard_tokens", "Tokens that were read or written.", ("model", "kind"), registry=own)
        self.first = Histogram("regard_first_token_seconds", "Time to the first token of a text.", ("model",),
                               buckets=WAITS, registry=own)  # fmt: skip
        self.gap = Histogram("regard_token_gap_seconds", "Time between two pieces of a text.", ("model",),
                             buckets=GAPS, registry=own)  # fmt: skip
        self.refused = Counter("regard_refused", "Requests refused because the queue was full.", ("model",),
                               registry=own)  # fmt: skip
        self.cancelled = Counter("regard_cancelled", "Texts that no client waited for any more.", ("model",),
                                 registry=own)  # fmt: skip
        self.running = Gauge("regard_running", "Texts that are being written.", ("model",), registry=own)
        self.waiting = Gauge("regard_waiting", "Texts that wait for a slot.", ("model",), registry=own)
        self.slots = Gauge("regard_slots", "Texts that can be written at a time.", ("model",), registry=own)

    def watch(self, model: str, engine: Engine, slots: int) -> None:
        """Read the statistics of an engine whenever the metrics are requested."""
        self.running.labels(model).set_function(lambda: engine.stats.running)
        self.waiting.labels(model).set_function(lambda: engine.stats.waiting)
        self.slots.labels(model).set(slots)

    def page(self) -> bytes:
        return generate_latest(self.registry)


T = TypeVar("T")
QUEUE = 256  # queue length of a worker pool
DEADLINE, COMPILING = 30.0, 5.0  # seconds
LETTERS, TIMES = 1 << 18, 16  # characters of a text: so many, or so many for each token of the context
LONGEST = 64  # characters of a name that are repeated to the client


class ServedModel:
    """A served model. `no_generation_reason` and `no_chat_reason` say why it cannot generate or chat, and are empty if
    it can."""

    def __init__(self, name: str, model: Any, settings: ServerSettings, texts: WorkerPool) -> None:
        self.texts = texts  # worker pool for tokenizers and chat templates
        self.name, self.model, self.most, self.made = name, model, settings.max_queue, int(time.time())
        self.no_generation_reason, self.no_chat_reason, self.form = why_no_generation(model), "", None
        read_specials(model, settings.specials)  # set before any text of a client is encoded
        self.pending = 0
        if not self.no_generation_reason:
            self.form, self.no_chat_reason = chat_format_of(model)
            if self.form is not None:  # the template's end token ends a reply
                model.generation_defaults = replace(
                    model.generation_defaults, ends=model.generation_defaults.ends | self.form.ends
                )
        self.engine: Engine | None = None
        self.worker: WorkerPool | None = None
        if self.no_generation_reason:
            self.worker = WorkerPool(name, 1, settings.max_queue, DEADLINE)
        else:
            self.engine = Engine(
                model, slots=settings.slots, max_context=settings.max_context, max_queue=settings.max_queue
            )
            self.answers = TextEngine(self.engine, model)

    @property
    def room(self) -> int | None:
        """The context of a request in tokens, prompt included; None without a limit."""
        if isinstance(self.model.c, config.DualEncoder):
            return None
        return (
            context_window(self.model, self.model.generation_limits) if self.engine is None else self.engine.max_context
        )

    def check_letters(self, count: int, param: str) -> None:
        """Refuse a text that is certainly too long, before it is tokenized."""
        most = max(LETTERS, TIMES * (self.room or 0))
        if count > most:
            raise ApiError(400, f"{param}: {count:,} characters are more than the {most:,} that a text may have; give "
                          "less", param=param.partition("[")[0], code="context_length_exceeded")  # fmt: skip

    async def run(self, work: Callable[[CancelToken], T]) -> T:
        """Run a job in the thread that owns the model, after those before it. A long job checks the token, which is
        cancelled when the client disconnects."""
        if self.pending >= self.most:
            raise QueueFull(self.most, 1.0)
        self.pending += 1
        token = CancelToken()
        try:
            return await asyncio.wrap_future(self.submit(lambda: work(token)))
        finally:
            token.cancel()
            self.pending -= 1

    def submit(self, work: Callable[[], T]) -> Future[T]:
        if self.engine is not None:
            return self.engine.run_in_thread(work)
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


def why_no_generation(model: Any) -> str:
    """Why a model cannot generate text; empty if it can."""
    if isinstance(model.c, config.DualEncoder):
        return "returns vectors and generates no text; use /v1/embeddings"
    if model.c.encoder is not None:
        return "is an encoder-decoder and does not continue prompts; use /v1/translate"
    if model.tokenizer is None:
        return "has no tokenizer, and a prompt is text; put its tokenizer.json beside it"
    try:
        min_prompt_tokens(model)
    except config.ConfigError:
        return "is an encoder and does not generate text; use /v1/embeddings, /v1/classify or /v1/fill"
    return ""


def chat_format_of(model: Any) -> tuple[TemplateFormat | None, str]:
    """The chat format of a model, or the reason why it has none."""
    try:
        chat = find_chat_template(model)
        if chat is None:
            return None, "has no chat template; use /v1/completions"
        return TemplateFormat(model, chat), ""
    except config.DataError as problem:
        return None, f"has a chat template that cannot be used ({problem}); use /v1/completions"


def constraint_too_complex(seconds: float) -> ApiError:
    return ApiError(400, f"regex or schema: it was not compiled within {seconds:g} s; make it simpler",
                   code="too_complex")  # fmt: skip


class ModelPool:
    """All served models, with their shared worker pools and metrics."""

    def __init__(self, models: Mapping[str, Any], settings: ServerSettings) -> None:
        if not models:
            raise config.ConfigError("models: none is given; name one")
        self.settings, self.figures = settings, ServerMetrics()
        self.parsing = WorkerPool(
            "parsing", 1, QUEUE, DEADLINE
        )  # JSON, in and out: more threads would wait for the GIL
        self.texts = WorkerPool("texts", 2, QUEUE, DEADLINE)  # tokenizers and chat templates
        self.compiling = WorkerPool(
            "compiling", 2, QUEUE, COMPILING, constraint_too_complex
        )  # regular expressions and schemas
        self.residents = {name: ServedModel(name, model, settings, self.texts) for name, model in models.items()}
        self.closed = asyncio.Event()  # set when the server closes, for waiting requests
        self.lines: set[Any] = set()  # streams in progress
        self.held = 0  # bytes of large bodies in memory
        self.closing, self.inside = False, 0  # new requests are refused; number of requests in progress
        for name, each in self.residents.items():
            if (engine := each.engine) is not None:
                self.figures.watch(name, engine, settings.slots)

    def find(self, name: str | None) -> ServedModel:
        """The model of this name; without a name, the only one."""
        known = ", ".join(self.residents)
        if name is None:
            if len(self.residents) > 1:
                raise ApiError(400, f"model: it is missing, and there are several; name one of {known}", param="model")
            return next(iter(self.residents.values()))
        if name not in self.residents:
            meant = did_you_mean(name, self.residents) if len(name) <= LONGEST else ";"
            raise ApiError(404, f"model: there is no {name[:LONGEST]!r}{meant} there are {known}", param="model",
                          code="model_not_found")  # fmt: skip
        return self.residents[name]

    @property
    def status(self) -> str:
        failed = any(each.engine is not None and each.engine.problem is not None for each in self.residents.values())
        return "closing" if self.closing else "failed" if failed else "ok"

    def start(self) -> None:
        for each in self.residents.values():
            each.start()

    def disconnect_all(self) -> None:
        """End all streams in progress, with an error for their clients."""
        self.closed.set()
        for line in list(self.lines):
            line.disconnect()

    @property
    def has_threads(self) -> bool:
        """Whether a thread that owns a model is still running."""
        return any(each.is_working for each in self.residents.values())

    def stop(self) -> None:
        """Stop all threads, and wait for those that own models; it may take a while, so not on the event loop."""
        for pool in (self.parsing, self.texts, self.compiling):
            pool.stop()
        for each in self.residents.values():
            each.stop()
