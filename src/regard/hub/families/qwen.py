"""Qwen2 and Qwen3 (Yang et al. 2024, 2025): Llama with biases for q, k, v, or with norms on q and k; windows above."""

from typing import Any

from regard import config
from regard.hub.families.decoders import LABEL, TAGS, classes, expected, layer_count, looks, windows
from regard.hub.families.llama import common, hear_bias, relative
from regard.hub.families.settled import of_blocks, tiled
from regard.hub.families.table import Family, enter
from regard.hub.families.theirs import Theirs

FULL, SLIDING = "full_attention", "sliding_attention"


def say_windows(c: config.Transformer) -> dict[str, Any]:
    seen = windows(of_blocks(c))
    some = [window for window in seen if window is not None]
    first = next((layer for layer, window in enumerate(seen) if window is not None), len(seen))
    return {
        "use_sliding_window": bool(some),
        "sliding_window": some[0] if some else None,
        "max_window_layers": first,
        "layer_types": [FULL if window is None else SLIDING for window in seen],
    }


def hear_windows(theirs: Theirs) -> str | tuple[str, ...]:
    """The mask of each layer: by its type where that is said; else the first `max_window_layers` see everything."""
    slides = theirs.flag("use_sliding_window", False)
    depth = layer_count(theirs, "num_hidden_layers")
    wide = theirs.number("max_window_layers", 28)
    usual = [SLIDING if slides and layer >= wide else FULL for layer in range(depth)]
    kinds = expected(theirs, "layer_types", theirs.get("layer_types", usual), (FULL, SLIDING), depth)
    if SLIDING not in kinds:
        return looks(None)
    if not slides:
        raise theirs.wrong("use_sliding_window", f"and layer_types has {SLIDING}; set it to true, or all to {FULL}")
    near = looks(theirs.whole("sliding_window", 4096))
    return tiled([looks(None) if kind == FULL else near for kind in kinds])


def say2(c: config.Transformer, context: int | None) -> dict[str, Any]:
    return common(c, context) | say_windows(c)


def hear2(theirs: Theirs, head: config.Head) -> config.Transformer:
    return relative(theirs, head, hear_windows(theirs), ("q", "k", "v"))


def say3(c: config.Transformer, context: int | None) -> dict[str, Any]:
    return say2(c, context) | {"attention_bias": bool(of_blocks(c).attention.bias)}


def hear3(theirs: Theirs, head: config.Head) -> config.Transformer:
    return relative(theirs, head, hear_windows(theirs), hear_bias(theirs), width=128, qk_norm=True)


for title, say, hear in (("Qwen2", say2, hear2), ("Qwen3", say3, hear3)):
    heads = classes(title, False, LABEL, TAGS)
    enter(Family(title.lower(), title, heads, say, hear, prefix="model.", alone=(f"{title}Model",), map="llama"))
