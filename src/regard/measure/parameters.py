"""How many numbers a model learns, and where they stand: every one counted once, under one of seven names."""

from regard import config
from regard.core.model import Transformer
from regard.measure.ghost import outline

PARTS = ("embedding", "positions", "attention", "cross-attention", "feed-forward", "norms", "head")


def parameters(model: Transformer | config.Transformer) -> dict[str, int]:  #: S143
    """Parameters by part; a table that embedding and head share is the embedding's."""
    found = dict.fromkeys(PARTS, 0)
    for name, weight in outline(model).named_parameters():  # tied weights appear once
        found[part(name)] += weight.numel()
    return found


def part(name: str) -> str:
    """The part that a parameter belongs to, by its name: "trunk.blocks.3.attn_norm.weight" is of the norms."""
    steps = name.split(".")
    if any(step == "norm" or step.endswith("_norm") for step in steps):
        return "norms"
    named = {"positions": "positions", "attn": "attention", "cross": "cross-attention", "mlp": "feed-forward"}
    for step in steps:
        if step in named:
            return named[step]
    return "head" if steps[0] == "head" else "embedding"
