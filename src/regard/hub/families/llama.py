"""Llama (Touvron et al. 2023): causal, pre-norm RMS, rotary positions, gated MLP, grouped-query attention.

Related families differ in sliding windows, biases and norms on q and k; all use `llama_to_hf` and `llama_from_hf`.
"""

from typing import Any

from regard import config
from regard.hub.families.canonical import block_trunk
from regard.hub.families.decoder_common import SEQUENCE_CLASS, TOKEN_CLASS, decoder_classes, decoder_embedding, is_tied
from regard.hub.families.hf_config import HF_ACTIVATIONS, HFConfig, hf_word, labels_to_hf
from regard.hub.families.registry import Family, register_family
from regard.hub.families.rope_config import rope_from_hf, rope_to_hf


def llama_to_hf(c: config.Transformer, context: int | None) -> dict[str, Any]:
    """The config keys of Llama and related families."""
    trunk = block_trunk(c)
    rotary = trunk.position if isinstance(trunk.position, config.RotaryPosition) else config.RotaryPosition()
    return {
        "vocab_size": c.embed.vocab,
        "hidden_size": trunk.dim,
        "intermediate_size": trunk.mlp.hidden or 4 * trunk.dim,
        "num_hidden_layers": trunk.depth,
        "num_attention_heads": trunk.heads[0],
        "num_key_value_heads": trunk.attention.counts(0, trunk.dim)[1],
        "head_dim": trunk.head_width,
        "hidden_act": hf_word(trunk.mlp.activation, HF_ACTIVATIONS),
        # dynamic scaling begins at max_position_embeddings
        "max_position_embeddings": rotary.original_length
        if rotary.scaling == "dynamic"
        else context or rotary.original_length,
        "rope_parameters": rope_to_hf(rotary),
        "rms_norm_eps": trunk.norm.eps,
        "attention_dropout": trunk.dropout.attention,
        "tie_word_embeddings": is_tied(c),
        **labels_to_hf(c.head),
    }


def llama_from_hf(
    hf: HFConfig, head: config.Head, mask: str | tuple[str, ...] = "causal", bias: tuple[str, ...] = (),
    width: int | None = None, qk_norm: bool = False, mlp_bias: bool = False,
) -> config.Transformer:  # fmt: skip
    """A Llama with this `mask` and these biases in attention; `width` is the default of head_dim."""
    dim, heads = hf.get_int("hidden_size"), hf.get_int("num_attention_heads")
    width = hf.get_int("head_dim", width or max(dim // heads, 1))
    if width % 2:
        raise hf.error("head_dim", f"heads {width} wide do not turn in pairs of channels; expected an even width")
    norm = config.Norm(kind="rms", eps=hf.get_float("rms_norm_eps", 1e-6))
    trunk = config.Trunk(
        dim=dim,
        depth=hf.get_int("num_hidden_layers"),
        position=rope_from_hf(hf, hf.get_int("max_position_embeddings", 2048)),
        mask=mask,
        attention=config.Attention(
            heads=heads, kv_heads=hf.get_int("num_key_value_heads", heads), head_dim=width, bias=bias,
            qk_norm=norm if qk_norm else None,
        ),
        mlp=config.MLP(
            hidden=hf.get_int("intermediate_size"),
            activation=hf.get_str("hidden_act", HF_ACTIVATIONS, "silu"),
            gated=True,
            bias=mlp_bias,
        ),
        norm=norm,
        dropout=config.Dropout(embed=0.0, attention=hf.get_float("attention_dropout", 0.0), residual=0.0),
    )  # fmt: skip
    return config.Transformer(embed=decoder_embedding(hf, head), trunk=trunk, head=head, init="bert")


def bias_from_hf(hf: HFConfig) -> tuple[str, ...]:
    """Biases of all four projections of attention, or none."""
    return config.Attention().bias if hf.get_bool("attention_bias", False) else ()


def to_hf(c: config.Transformer, context: int | None) -> dict[str, Any]:
    trunk = block_trunk(c)
    return llama_to_hf(c, context) | {"attention_bias": bool(trunk.attention.bias), "mlp_bias": trunk.mlp.bias}


def from_hf(hf: HFConfig, head: config.Head) -> config.Transformer:
    return llama_from_hf(hf, head, bias=bias_from_hf(hf), mlp_bias=hf.get_bool("mlp_bias", False))


HEADS = decoder_classes("Llama", False, SEQUENCE_CLASS, TOKEN_CLASS)
register_family(Family("llama", "Llama", HEADS, to_hf, from_hf, prefix="model.", body_prefix=("LlamaModel",)))
