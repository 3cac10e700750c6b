"""How the cost of mixing n tokens grows, as the formulas say: by the name of a kernel, a mixer, a recurrent cell.

    d the width   w a window   m the features of a kernel   k a chosen number of keys or places   s states a channel
    e the pairs that may look, n² where all may
"""

ORDERS: dict[str, tuple[str, float]] = {  # the formula, and its power of n
    "reference": ("n²·d", 2.0), "fused": ("n²·d", 2.0), "short": ("n²·d", 2.0), "flex": ("n²·d", 2.0),
    "varlen": ("n²·d", 2.0), "tiled": ("n²·d", 2.0), "topk": ("n²·d", 2.0), "additive": ("n²·d", 2.0),
    "local": ("n·w·d", 1.0), "cells": ("n·w·d", 1.0), "linear": ("n·d²", 1.0), "performer": ("n·m·d", 1.0),
    "linformer": ("n·k·d", 1.0), "lsh": ("n·log n·d", 1.0), "sparse": ("e·d", 2.0), "graph": ("e·d", 2.0),
    "fc": ("n²·d²", 2.0), "conv": ("k·n·d²", 1.0), "rnn": ("n·d²", 1.0), "gru": ("n·d²", 1.0), "lstm": ("n·d²", 1.0),
    "cnn": ("k·n·d²", 1.0), "ssm": ("n·s·d", 1.0), "none": ("0", 0.0),
}  # fmt: skip


def order(name: str) -> tuple[str, float] | None:
    """The formula and the power of n; nothing for a name that nobody wrote one for."""
    return ORDERS.get(name)
