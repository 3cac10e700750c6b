"""Shared by encoder-decoder families: two trunks, and the same config keys with a prefix for each side.

    encoder_layers, encoder_attention_heads, encoder_ffn_dim
    decoder_layers, decoder_attention_heads, decoder_ffn_dim

BART, mBART, Marian and Whisper have these keys, and differ in norm placement and positions.
"""

import math
from typing import Any

from regard import config
from regard.hub.families.canonical import block_trunk
from regard.hub.families.hf_config import HF_ACTIVATIONS, HFConfig, hf_word


def both_trunks(c: config.Transformer) -> tuple[config.Trunk, config.Trunk]:
    """The trunks of the encoder and the decoder."""
    if c.encoder is None:
        raise ValueError("encoder is none, where an encoder-decoder has one")
    if not isinstance(c.encoder.trunk, config.Trunk):
        raise ValueError(f"encoder.trunk.kind is {c.encoder.trunk.kind!r}, where an encoder-decoder has 'blocks'")
    return c.encoder.trunk, block_trunk(c)


def trunks_to_hf(c: config.Transformer) -> dict[str, Any]:
    reads, writes = both_trunks(c)
    dropout = writes.dropout
    said: dict[str, Any] = {"vocab_size": c.embed.vocab, "d_model": writes.dim}
    for side, trunk in (("encoder", reads), ("decoder", writes)):
        said[f"{side}_layers"] = trunk.depth
        said[f"{side}_attention_heads"] = trunk.heads[0]
        said[f"{side}_ffn_dim"] = trunk.mlp.hidden or 4 * trunk.dim
    return said | {
        "activation_function": hf_word(writes.mlp.activation, HF_ACTIVATIONS),
        "dropout": dropout.residual,
        "attention_dropout": dropout.attention,
        "activation_dropout": dropout.mlp,
        "scale_embedding": getattr(c.embed, "scale", 1) != 1,
        "is_encoder_decoder": True,
    }


def trunk_from_hf(hf: HFConfig, side: str, **more: Any) -> config.Trunk:
    """The trunk of one side; `more` has further settings of the family."""
    rate, bias = hf.get_float("dropout", 0.1), more.pop("bias", config.Attention().bias)
    across: dict[str, Any] = {"mask": "causal", "cross": "last"} if side == "decoder" else {}
    return config.Trunk(
        dim=hf.get_int("d_model"),
        depth=hf.get_int(f"{side}_layers"),
        attention=config.Attention(heads=hf.get_int(f"{side}_attention_heads"), bias=bias),
        mlp=config.MLP(
            hidden=hf.get_int(f"{side}_ffn_dim"),
            activation=hf.get_str("activation_function", HF_ACTIVATIONS, "gelu"),
        ),
        dropout=config.Dropout(
            embed=rate,
            attention=hf.get_float("attention_dropout", 0.0),
            mlp=hf.get_float("activation_dropout", 0.0),
            residual=rate,
        ),
        **across,
        **more,
    )


def embedding_from_hf(hf: HFConfig, key: str = "vocab_size") -> config.TextEmbedding:
    loud = hf.get_bool("scale_embedding", False)
    return config.TextEmbedding(vocab=hf.get_int(key), scale=math.sqrt(hf.get_int("d_model")) if loud else 1.0)
