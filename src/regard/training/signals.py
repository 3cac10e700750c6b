"""Signal handling: Ctrl-C and SIGTERM make a run save and stop after its current step; a second one stops it at once.

While a checkpoint is written no signal interrupts it: an early second Ctrl-C must not lose what the first one saves.
With several ranks each may get a signal twice, from the system and from its launcher: they stop together or not at all.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SAVING_NOTICE = b"\nregard: saving after this step; once more stops without saving\n"


class SignalHandler:
    """Signal handler; `caught` is the signal received, if any; of `many` ranks only the one that `speaks` prints."""

    WATCHED = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, many: bool = False, speaks: bool = True) -> None:
        self.many, self.speaks = many, speaks
        self.caught: int | None = None
        self.shielded = False
        self.before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "SignalHandler":
        if threading.current_thread() is threading.main_thread():  # Python allows handlers in the main thread only
            self.before = {each: signal.signal(each, self.catch) for each in self.WATCHED}
        return self

    def catch(self, number: int, frame: FrameType | None) -> None:
        if self.caught is not None and not self.shielded and not self.many:
            raise KeyboardInterrupt
        if self.caught is None:
            self.caught = number
            if self.speaks:
                with suppress(OSError):
                    os.write(2, SAVING_NOTICE)  # start a new line: the display may be in the middle of one

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Defer signals until the block is done."""
        self.shielded = True
        try:
            yield
        finally:
            self.shielded = False

    def __exit__(self, *raised: object) -> None:
        for each, handler in self.before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]
