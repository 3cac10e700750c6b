"""Access log: one line of JSON for each request: when, which route and model, status, number of tokens, seconds.

    {"time": "2031-05-04T10:20:30.456Z", "method": "POST", "route": "/v1/completions", "model": "lab", "status": 200,
     "prompt_tokens": 5, "completion_tokens": 16, "seconds": 0.087}

Prompts, responses and keys are never logged. The lines go to the logger "regard.serve"; `log_to_stream` writes them to
a stream from a thread of its own, so that a blocked pipe stops no request.
"""

import json
import logging
import queue
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from typing import Any, TextIO

LOGGER = logging.getLogger("regard.serve")
KEPT = 10_000  # lines in the queue; further ones are dropped


def log_event(**fields: Any) -> None:
    """Log one line of JSON; fields that are None are left out."""
    if LOGGER.isEnabledFor(logging.INFO):
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        LOGGER.info(json.dumps({"time": now} | {name: value for name, value in fields.items() if value is not None}))


def error_location(problem: BaseException) -> dict[str, Any]:
    """The type and the stack of an unexpected exception, without its message, which may contain text of a client."""
    frames = traceback.extract_tb(problem.__traceback__)[-8:]
    return {"bug": type(problem).__name__, "at": [f"{each.filename}:{each.lineno} {each.name}" for each in frames]}


class NonBlockingHandler(QueueHandler):
    """A logging handler that queues lines for a thread and never blocks."""

    def enqueue(self, record: logging.LogRecord) -> None:
        with suppress(queue.Full):
            self.queue.put_nowait(record)


@contextmanager
def log_to_stream(stream: TextIO) -> Iterator[None]:
    """Write the access log to a stream within this context."""
    lines: queue.Queue[logging.LogRecord] = queue.Queue(KEPT)
    handler, writer = NonBlockingHandler(lines), logging.StreamHandler(stream)
    listener, level = QueueListener(lines, writer), LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    listener.start()
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)
        LOGGER.propagate = True
        listener.stop()
