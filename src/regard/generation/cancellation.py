"""Cancellation: a token that one thread sets and another checks between two steps, rows or batches of its work."""


class Cancelled(Exception):
    """The result of this work is not wanted any more."""


class CancelToken:
    """Set by the side that waits, from any thread and as often as it likes; checked by the side that works.

    >>> token = CancelToken()
    >>> token.check()
    >>> token.cancel()
    >>> token.check()
    Traceback (most recent call last):
    regard.generation.cancellation.Cancelled
    """

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def check(self) -> None:
        """Raises Cancelled where that is so."""
        if self.is_cancelled:
            raise Cancelled
