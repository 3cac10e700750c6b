"""A pulse: every rank tells twice a second that it lives, so that none waits long for one that does not.

Collectives may wait for minutes (one rank compiles longer, one reads the data for all), but never for the dead. Who
finds another silent ends at once: a run can be killed at any moment and loses nothing, so it may also end itself.
"""

import json
import os
import signal
import threading
import time
from contextlib import suppress
from typing import Any

from regard.train.parallel.ranks import PROBLEM

EVERY = 0.5  # seconds between two beats
SILENT = 15.0  # seconds after which a rank is taken for dead
LATE = 10.0  # seconds that this process has to end by itself after another failed
CODES = {"ConfigError": 2, "DataError": 3}


class Pulse:
    """A thread that beats for this rank and listens to the others, over a connection of its own."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.store, self.rank, self.size, self.count = store.clone(), rank, size, 0
        self.over = threading.Event()
        self.heard = dict.fromkeys(range(size), (b"", time.monotonic()))  # the last beat of each, and when
        self.told, self.failed = b"", 0.0  # what went wrong for another, and when that was heard
        self.beat()
        self.thread = threading.Thread(target=self.go, daemon=True, name="pulse")

    def __enter__(self) -> "Pulse":
        self.thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def stop(self) -> None:
        """No more beats, which is no silence."""
        if not self.over.is_set():
            self.over.set()
            self.thread.join(EVERY)
            with suppress(Exception):  # the store may be gone
                self.store.set(self.key(self.rank), "over")

    def key(self, rank: int) -> str:
        return f"pulse {rank}"

    def go(self) -> None:
        while not self.over.wait(EVERY):
            try:
                self.beat()
                self.listen()
            except Exception:  # the store is gone, and with it the launcher: nobody will end this process but itself
                if not self.over.is_set():
                    os.kill(os.getpid(), signal.SIGTERM)
                return

    def beat(self) -> None:
        self.count += 1
        self.store.set(self.key(self.rank), str(self.count))

    def listen(self) -> None:
        now = time.monotonic()
        *beats, self.told = self.store.multi_get([*map(self.key, range(self.size)), PROBLEM])
        for rank, beat in enumerate(beats):
            if beat != self.heard[rank][0]:
                self.heard[rank] = beat, now
        silent = [rank for rank, (beat, when) in self.heard.items() if beat != b"over" and now - when > SILENT]
        if silent:
            self.end(f"rank {silent[0]} has been silent for {SILENT:.0f} seconds, so the run ends here", 1, silent)
        if self.told and json.loads(self.told)["rank"] != self.rank:
            self.failed = self.failed or now
            if now - self.failed > LATE:
                self.end(json.loads(self.told)["text"], CODES.get(json.loads(self.told)["kind"], 1), [])

    def end(self, why: str, code: int, silent: list[int]) -> None:
        if self.over.is_set():
            return
        if self.rank == min(set(range(self.size)) - set(silent)):
            with suppress(OSError):
                os.write(2, f"regard: {why}; `regard resume` goes on from what is saved\n".encode())
        os._exit(code)
