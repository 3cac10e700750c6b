"""What is counted while we serve, for Prometheus: requests, tokens, and how long people wait for them.

Each house has a registry of its own, so that two in one process do not count for each other. Labels are routes,
statuses and the names of models: few, and none that a client invents.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from regard.generate.engine import Engine

WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0)
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Figures:
    """The counters of one house."""

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
        self.cancelled = Counter("regard_cancelled", "Texts that nobody waited for any more.", ("model",),
                                 registry=own)  # fmt: skip
        self.running = Gauge("regard_running", "Texts that are being written.", ("model",), registry=own)
        self.waiting = Gauge("regard_waiting", "Texts that wait for a slot.", ("model",), registry=own)
        self.slots = Gauge("regard_slots", "Texts that can be written at a time.", ("model",), registry=own)

    def watch(self, model: str, engine: Engine, slots: int) -> None:
        """Look at an engine whenever somebody asks."""
        self.running.labels(model).set_function(lambda: engine.figures.running)
        self.waiting.labels(model).set_function(lambda: engine.figures.waiting)
        self.slots.labels(model).set(slots)

    def page(self) -> bytes:
        return generate_latest(self.registry)
