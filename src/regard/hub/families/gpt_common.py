"""Shared by GPT, GPT-2 and ImageGPT: causal, learned positions, biases, config keys that begin with n_."""

from typing import Any

from regard import config
from regard.hub.families.canonical import block_trunk
from regard.hub.families.hf_config import HF_ACTIVATIONS, HFConfig, hf_word


def gpt_to_hf(c: config.Transformer, length: int) -> dict[str, Any]:
    trunk = block_trunk(c)
    return {
        "vocab_size": c.embed.vocab,
        "n_positions": length,
        "n_embd": trunk.dim,
        "n_layer": trunk.depth,
        "n_head": trunk.heads[0],
        "embd_pdrop": trunk.dropout.embed,
        "attn_pdrop": trunk.dropout.attention,
        "resid_pdrop": trunk.dropout.residual,
        "layer_norm_epsilon": trunk.norm.eps,
    }


def gpt_from_hf(hf: HFConfig, mlp: config.MLP, **trunk: Any) -> config.Trunk:
    """The trunk of a GPT; `trunk` has further settings of the family."""
    return config.Trunk(
        dim=hf.get_int("n_embd"),
        depth=hf.get_int("n_layer"),
        position=config.LearnedPosition(length=hf.get_int("n_positions")),
        mask="causal",
        attention=config.Attention(heads=hf.get_int("n_head")),
        mlp=mlp,
        dropout=config.Dropout(
            embed=hf.get_float("embd_pdrop", 0.1),
            attention=hf.get_float("attn_pdrop", 0.1),
            residual=hf.get_float("resid_pdrop", 0.1),
        ),
        **trunk,
    )


# ---------------------------------------------------------------- GPT-2 and ImageGPT


def mlp_to_hf(c: config.Transformer) -> dict[str, Any]:
    mlp = block_trunk(c).mlp
    return {"n_inner": mlp.hidden, "activation_function": hf_word(mlp.activation, HF_ACTIVATIONS)}


def mlp_from_hf(hf: HFConfig, usual: str) -> config.MLP:
    """The MLP; refuses settings that change the attention."""
    hf.require("scale_attn_weights", True)
    hf.require("scale_attn_by_inverse_layer_idx", False)
    hf.require("add_cross_attention", False)
    hidden = hf.get_int("n_inner", 4 * hf.get_int("n_embd"))
    return config.MLP(hidden=hidden, activation=hf.get_str("activation_function", HF_ACTIVATIONS, usual))


def norm_eps_from_hf(hf: HFConfig) -> float:
    return hf.get_float("layer_norm_epsilon", 1e-5)
