"""Llama (Touvron et al. 2023): causal, pre-norm RMS, rotary positions, gated feed-forward, grouped heads.

Its relatives differ in what layers see, in biases and in norms on q and k: `common` and `relative` are for all of them.
"""

from typing import Any

from regard import config
from regard.hub.families.decoders import LABEL, TAGS, classes, is_tied, words
from regard.hub.families.rotary import hear_rotary, say_rotary
from regard.hub.families.settled import of_blocks
from regard.hub.families.table import Family, enter
from regard.hub.families.theirs import ACTIVATIONS, Theirs, say_labels, their_word


def common(c: config.Transformer, context: int | None) -> dict[str, Any]:
    """What a Llama and each of its relatives says."""
    trunk = of_blocks(c)
    rotary = trunk.position if isinstance(trunk.position, config.Rotary) else config.Rotary()
    return {
        "vocab_size": c.embed.vocab,
        "hidden_size": trunk.dim,
        "intermediate_size": trunk.mlp.hidden or 4 * trunk.dim,
        "num_hidden_layers": trunk.depth,
        "num_attention_heads": trunk.heads[0],
        "num_key_value_heads": trunk.attention.counts(0, trunk.dim)[1],
        "head_dim": trunk.head_width,
        "hidden_act": their_word(trunk.mlp.activation, ACTIVATIONS),
        # dynamic scaling begins where their longest text ends
        "max_position_embeddings": rotary.length if rotary.scaling == "dynamic" else context or rotary.length,
        "rope_parameters": say_rotary(rotary),
        "rms_norm_eps": trunk.norm.eps,
        "attention_dropout": trunk.dropout.attention,
        "tie_word_embeddings": is_tied(c),
        **say_labels(c.head),
    }


def relative(
    theirs: Theirs, head: config.Head, mask: str | tuple[str, ...] = "causal", bias: tuple[str, ...] = (),
    width: int | None = None, qk_norm: bool = False, mlp_bias: bool = False,
) -> config.Transformer:  # fmt: skip
    """A Llama with this `mask` and these biases in its heads, which are `width` wide if nothing is said of it."""
    dim, heads = theirs.whole("hidden_size"), theirs.whole("num_attention_heads")
    width = theirs.whole("head_dim", width or max(dim // heads, 1))
    if width % 2:
        raise theirs.wrong("head_dim", f"heads {width} wide do not turn in pairs of channels; expected an even width")
    norm = config.Norm(kind="rms", eps=theirs.number("rms_norm_eps", 1e-6))
    trunk = config.Trunk(
        dim=dim,
        depth=theirs.whole("num_hidden_layers"),
        position=hear_rotary(theirs, theirs.whole("max_position_embeddings", 2048)),
        mask=mask,
        attention=config.Attention(
            heads=heads, groups=theirs.whole("num_key_value_heads", heads), width=width, bias=bias,
            qk_norm=norm if qk_norm else None,
        ),
        mlp=config.MLP(
            hidden=theirs.whole("intermediate_size"),
            activation=theirs.word("hidden_act", ACTIVATIONS, "silu"),
            gated=True,
            bias=mlp_bias,
        ),
        norm=norm,
        dropout=config.Dropout(embed=0.0, attention=theirs.number("attention_dropout", 0.0), sublayer=0.0),
    )  # fmt: skip
    return config.Transformer(embed=words(theirs, head), trunk=trunk, head=head, init="bert")


def hear_bias(theirs: Theirs) -> tuple[str, ...]:
    """All four maps of the heads have one, or none."""
    return config.Attention().bias if theirs.flag("attention_bias", False) else ()


def say(c: config.Transformer, context: int | None) -> dict[str, Any]:
    trunk = of_blocks(c)
    return common(c, context) | {"attention_bias": bool(trunk.attention.bias), "mlp_bias": trunk.mlp.bias}


def hear(theirs: Theirs, head: config.Head) -> config.Transformer:
    return relative(theirs, head, bias=hear_bias(theirs), mlp_bias=theirs.flag("mlp_bias", False))


HEADS = classes("Llama", False, LABEL, TAGS)
enter(Family("llama", "Llama", HEADS, say, hear, prefix="model.", alone=("LlamaModel",)))
