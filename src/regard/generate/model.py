"""The core's Transformer with the verbs that need other rooms: load, build, generate, stream, save."""

import regard.efficient  # kernels, front ends and heads enter themselves in the core's tables
import regard.heads
import regard.inputs  # noqa: F401
from regard import config
from regard.core import model as core


class Transformer(core.Transformer):
    """A model that can be asked: with its tokenizer, if it has one, and the length it was trained on."""

    def __init__(self, c: config.Transformer) -> None:
        super().__init__(c)
        self.context: int | None = None


def build(c: config.Transformer) -> Transformer:
    """A fresh model."""
    return Transformer(c)
