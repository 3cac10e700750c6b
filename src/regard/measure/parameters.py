"""How many numbers a model learns, and where they stand: every one counted once, under one of seven names."""

from regard.measure.ghost import Config, Model, outline

PARTS = ("embedding", "positions", "attention", "cross-attention", "feed-forward", "norms", "head")
NAMED = {"positions": "positions", "attn": "attention", "cross": "cross-attention", "mlp": "feed-forward"}


def parameters(model: Model | Config) -> dict[str, int]:  #: S143
    """Parameters by part; a table that embedding and head share is the embedding's."""
    found = dict.fromkeys(PARTS, 0)
    for name, weight in outline(model).named_parameters():  # tied weights appear once
        found[part(name)] += weight.numel()
    return found


def part(name: str) -> str:
    """The part that a parameter belongs to, by its name: "trunk.blocks.3.attn_norm.weight" is of the norms.

    Maps from patches, and from four merged tokens to one, are of the embedding; the scale between towers of the head.
    """
    steps = name.split(".")
    if any(step == "norm" or step.endswith("_norm") for step in steps):
        return "norms"
    for step in steps:
        if step in NAMED:
            return NAMED[step]
    return "head" if "head" in steps or steps == ["scale"] else "embedding"
