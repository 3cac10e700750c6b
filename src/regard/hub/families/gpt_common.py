"""What GPT, GPT-2 and ImageGPT say alike: causal, learned places, biases, in words that begin with n_."""

from typing import Any

from regard import config
from regard.hub.families.settled import of_blocks
from regard.hub.families.theirs import ACTIVATIONS, Theirs, their_word


def say_gpt(c: config.Transformer, length: int) -> dict[str, Any]:
    trunk = of_blocks(c)
    return {
        "vocab_size": c.embed.vocab,
        "n_positions": length,
        "n_embd": trunk.dim,
        "n_layer": trunk.depth,
        "n_head": trunk.heads[0],
        "embd_pdrop": trunk.dropout.embed,
        "attn_pdrop": trunk.dropout.attention,
        "resid_pdrop": trunk.dropout.sublayer,
        "layer_norm_epsilon": trunk.norm.eps,
    }


def hear_gpt(theirs: Theirs, mlp: config.MLP, **trunk: Any) -> config.Trunk:
    """`trunk` is what else a family has."""
    return config.Trunk(
        dim=theirs.whole("n_embd"),
        depth=theirs.whole("n_layer"),
        position=config.Learned(length=theirs.whole("n_positions")),
        mask="causal",
        attention=config.Attention(heads=theirs.whole("n_head")),
        mlp=mlp,
        dropout=config.Dropout(
            embed=theirs.number("embd_pdrop", 0.1),
            attention=theirs.number("attn_pdrop", 0.1),
            sublayer=theirs.number("resid_pdrop", 0.1),
        ),
        **trunk,
    )


# ---------------------------------------------------------------- the later two


def say_thinking(c: config.Transformer) -> dict[str, Any]:
    mlp = of_blocks(c).mlp
    return {"n_inner": mlp.hidden, "activation_function": their_word(mlp.activation, ACTIVATIONS)}


def hear_thinking(theirs: Theirs, usual: str) -> config.MLP:
    """Their feed-forward layer; and nothing that changes how they look."""
    theirs.only("scale_attn_weights", True)
    theirs.only("scale_attn_by_inverse_layer_idx", False)
    theirs.only("add_cross_attention", False)
    hidden = theirs.whole("n_inner", 4 * theirs.whole("n_embd"))
    return config.MLP(hidden=hidden, activation=theirs.word("activation_function", ACTIVATIONS, usual))


def hear_eps(theirs: Theirs) -> float:
    return theirs.number("layer_norm_epsilon", 1e-5)
