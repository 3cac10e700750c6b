"""Qwen2 and Qwen3 (Yang et al. 2024, 2025): Llama with biases for q, k, v, or norms on q and k; sliding windows."""

from typing import Any

from regard import config
from regard.hub.families.canonical import block_trunk, shortest_tile
from regard.hub.families.decoder_common import (
    SEQUENCE_CLASS,
    TOKEN_CLASS,
    check_layer_types,
    decoder_classes,
    layer_count,
    layer_mask,
    layer_windows,
)
from regard.hub.families.hf_config import HFConfig
from regard.hub.families.llama import bias_from_hf, llama_from_hf, llama_to_hf
from regard.hub.families.registry import Family, register_family

FULL, SLIDING = "full_attention", "sliding_attention"


def windows_to_hf(c: config.Transformer) -> dict[str, Any]:
    seen = layer_windows(block_trunk(c))
    some = [window for window in seen if window is not None]
    first = next((layer for layer, window in enumerate(seen) if window is not None), len(seen))
    return {
        "use_sliding_window": bool(some),
        "sliding_window": some[0] if some else None,
        "max_window_layers": first,
        "layer_types": [FULL if window is None else SLIDING for window in seen],
    }


def windows_from_hf(hf: HFConfig) -> str | tuple[str, ...]:
    """The mask of each layer: by layer_types if present; else full attention in the first `max_window_layers`."""
    slides = hf.get_bool("use_sliding_window", False)
    depth = layer_count(hf, "num_hidden_layers")
    wide = hf.get_float("max_window_layers", 28)
    usual = [SLIDING if slides and layer >= wide else FULL for layer in range(depth)]
    kinds = check_layer_types(hf, "layer_types", hf.get("layer_types", usual), (FULL, SLIDING), depth)
    if SLIDING not in kinds:
        return layer_mask(None)
    if not slides:
        raise hf.error("use_sliding_window", f"and layer_types has {SLIDING}; set it to true, or all to {FULL}")
    near = layer_mask(hf.get_int("sliding_window", 4096))
    return shortest_tile([layer_mask(None) if kind == FULL else near for kind in kinds])


def qwen2_to_hf(c: config.Transformer, context: int | None) -> dict[str, Any]:
    return llama_to_hf(c, context) | windows_to_hf(c)


def qwen2_from_hf(hf: HFConfig, head: config.Head) -> config.Transformer:
    return llama_from_hf(hf, head, windows_from_hf(hf), ("q", "k", "v"))


def qwen3_to_hf(c: config.Transformer, context: int | None) -> dict[str, Any]:
    return qwen2_to_hf(c, context) | {"attention_bias": bool(block_trunk(c).attention.bias)}


def qwen3_from_hf(hf: HFConfig, head: config.Head) -> config.Transformer:
    return llama_from_hf(hf, head, windows_from_hf(hf), bias_from_hf(hf), width=128, qk_norm=True)


for title, say, hear in (("Qwen2", qwen2_to_hf, qwen2_from_hf), ("Qwen3", qwen3_to_hf, qwen3_from_hf)):
    heads = decoder_classes(title, False, SEQUENCE_CLASS, TOKEN_CLASS)
    register_family(
        Family(title.lower(), title, heads, say, hear, prefix="model.", body_prefix=(f"{title}Model",), map="llama")
    )
