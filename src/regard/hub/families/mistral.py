"""Mistral (Jiang et al. 2023): Llama without biases, with a sliding window or full causal attention."""

from typing import Any

from regard import config
from regard.hub.families.canonical import block_trunk
from regard.hub.families.decoder_common import (
    QA_CLASS,
    SEQUENCE_CLASS,
    TOKEN_CLASS,
    decoder_classes,
    layer_mask,
    layer_windows,
)
from regard.hub.families.hf_config import HFConfig
from regard.hub.families.llama import llama_from_hf, llama_to_hf
from regard.hub.families.registry import Family, register_family

WINDOW = 4096


def to_hf(c: config.Transformer, context: int | None) -> dict[str, Any]:
    return llama_to_hf(c, context) | {"sliding_window": layer_windows(block_trunk(c))[0]}


def from_hf(hf: HFConfig, head: config.Head) -> config.Transformer:
    hf.require("layer_types", None)
    # null means no window, and an absent key the default window
    everything = "sliding_window" in hf.said and hf.get("sliding_window") is None
    return llama_from_hf(hf, head, layer_mask(None if everything else hf.get_int("sliding_window", WINDOW)))


HEADS = decoder_classes("Mistral", False, SEQUENCE_CLASS, TOKEN_CLASS, QA_CLASS)
register_family(
    Family("mistral", "Mistral", HEADS, to_hf, from_hf, prefix="model.", body_prefix=("MistralModel",), map="llama")
)
