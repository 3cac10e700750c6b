"""Llama (Touvron et al. 2023): causal, pre-norm RMS, rotary positions, gated feed-forward, grouped heads."""

from typing import Any

from regard import config
from regard.hub.families.rotary import hear_rotary, say_rotary
from regard.hub.families.table import Family, enter, of_blocks
from regard.hub.families.theirs import ACTIVATIONS, Theirs, their_word


def say(c: config.Transformer, context: int | None) -> dict[str, Any]:
    trunk = of_blocks(c)
    attention = trunk.attention
    rotary = trunk.position if isinstance(trunk.position, config.Rotary) else config.Rotary()
    return {
        "vocab_size": c.embed.vocab,
        "hidden_size": trunk.dim,
        "intermediate_size": trunk.mlp.hidden or 4 * trunk.dim,
        "num_hidden_layers": trunk.depth,
        "num_attention_heads": trunk.heads[0],
        "num_key_value_heads": attention.counts(0, trunk.dim)[1],
        "head_dim": trunk.head_width,
        "hidden_act": their_word(trunk.mlp.activation, ACTIVATIONS),
        # dynamic scaling begins where their longest text ends
        "max_position_embeddings": rotary.length if rotary.scaling == "dynamic" else context or rotary.length,
        "rope_parameters": say_rotary(rotary),
        "rms_norm_eps": trunk.norm.eps,
        "attention_bias": bool(attention.bias),
        "attention_dropout": trunk.dropout.attention,
        "mlp_bias": trunk.mlp.bias,
        "tie_word_embeddings": isinstance(c.head, config.Vocabulary) and c.head.tied,
    }


def hear(theirs: Theirs) -> config.Transformer:
    dim, heads = theirs.whole("hidden_size"), theirs.whole("num_attention_heads")
    width = theirs.whole("head_dim", max(dim // heads, 1))
    if width % 2:
        raise theirs.wrong("head_dim", f"heads {width} wide do not turn in pairs of channels; expected an even width")
    trunk = config.Trunk(
        dim=dim,
        depth=theirs.whole("num_hidden_layers"),
        position=hear_rotary(theirs, theirs.whole("max_position_embeddings", 2048)),
        mask="causal",
        attention=config.Attention(
            heads=heads,
            groups=theirs.whole("num_key_value_heads", heads),
            width=width,
            bias=config.Attention().bias if theirs.flag("attention_bias", False) else (),
        ),
        mlp=config.MLP(
            hidden=theirs.whole("intermediate_size"),
            activation=theirs.word("hidden_act", ACTIVATIONS, "silu"),
            gated=True,
            bias=theirs.flag("mlp_bias", False),
        ),
        norm=config.Norm(kind="rms", eps=theirs.number("rms_norm_eps", 1e-6)),
        dropout=config.Dropout(embed=0.0, attention=theirs.number("attention_dropout", 0.0), sublayer=0.0),
    )
    head = config.Vocabulary(tied=theirs.flag("tie_word_embeddings", False))
    return config.Transformer(embed=config.Embed(vocab=theirs.whole("vocab_size")), trunk=trunk, head=head, init="bert")


enter(Family("llama", "Llama", "LlamaForCausalLM", "model.", "max_position_embeddings", say, hear))
