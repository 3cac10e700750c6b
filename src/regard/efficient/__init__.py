"""Other ways to attend, each a file you can delete without breaking anything.

Kernels enter themselves in the table: asked for by name, or claimed by "auto" where they are the fastest.
"""

from regard.efficient import (
    additive,
    cells,
    flex,
    linear,
    linformer,
    local,
    lsh,
    performer,
    reversible,
    short,
    sparse,
    tiled,
    topk,
    varlen,
)

__all__ = [
    "additive", "cells", "flex", "linear", "linformer", "local", "lsh", "performer", "reversible", "short", "sparse",
    "tiled", "topk", "varlen",
]  # fmt: skip
