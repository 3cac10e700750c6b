"""Attention kernels besides the core's reference and fused ones, each a file that can be deleted.

Kernels register themselves: asked for by name, or chosen by "auto" where they are the fastest. So do masks that one
kernel alone is made for: image windows and the edges of a graph.
"""

from regard.attention import (
    additive,
    flex,
    linear,
    linformer,
    local,
    lsh,
    performer,
    short,
    sparse,
    tiled_flash,
    topk,
    varlen,
    window2d,
)

__all__ = [
    "additive",
    "flex",
    "linear",
    "linformer",
    "local",
    "lsh",
    "performer",
    "short",
    "sparse",
    "tiled_flash",
    "topk",
    "varlen",
    "window2d",
]
