"""Cancellation: a token that one thread sets and another checks between the steps, rows or batches of its work."""


class Cancelled(Exception):
    """Raised by work that was cancelled: its result is no longer wanted."""


class CancelToken:
    """A cancellation token: set by the waiting side, from any thread and any number of times; checked by the worker.

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
        """Raise Cancelled if the token is set."""
        if self.is_cancelled:
            raise Cancelled
