"""A place in a cache for a layer with a state: as large after a million tokens as after one."""

from torch import Tensor


class Held:
    """A layer's state between two calls: tensors (B, ...) that stay where they are, so that a graph may be replayed."""

    def __init__(self, parts: list[Tensor]) -> None:
        self.parts = parts

    def take(self) -> list[Tensor]:
        """The state, to go on from: a copy, since backward may still ask for it when the next one is written."""
        return [part.clone() for part in self.parts]

    def write(self, parts: list[Tensor]) -> None:
        """In place, and without its gradient: the past is not trained."""
        for held, new in zip(self.parts, parts, strict=True):
            held.copy_(new.detach())

    def tables(self) -> list[Tensor]:
        return self.parts
