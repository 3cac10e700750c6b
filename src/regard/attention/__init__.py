"""Attention kernels besides the core's reference and fused ones, each a file that can be deleted.

Kernels register themselves: they run if configured, or if "auto" finds them fastest. Masks for a single kernel are
registered beside it: image windows and graph edges.
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
