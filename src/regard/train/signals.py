"""Ctrl-C and SIGTERM ask a run to save and stop after the step it is in; a second one stops at once."""

import signal
import threading
from types import FrameType


class Signals:
    """`caught` is the signal that asked, if any."""

    WATCHED = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.caught: int | None = None
        self.before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():  # elsewhere signals are not ours to catch
            self.before = {each: signal.signal(each, self.catch) for each in self.WATCHED}
        return self

    def catch(self, number: int, frame: FrameType | None) -> None:
        if self.caught is not None:
            raise KeyboardInterrupt
        self.caught = number

    def __exit__(self, *raised: object) -> None:
        for each, handler in self.before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]
