"""One small, readable transformer that takes every shape."""

from regard import config, efficient, inputs
from regard.core.kernels import KERNELS
from regard.core.masks import mask
from regard.core.model import Transformer
from regard.core.tokens import Tokens, line, raster
from regard.core.watch import looking
from regard.heads import Towers

__all__ = [
    "KERNELS", "Tokens", "Towers", "Transformer", "config", "efficient", "inputs", "line", "looking", "mask", "raster",
]  # fmt: skip
