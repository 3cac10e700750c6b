"""GPT-2 (Radford et al. 2019): causal, pre-norm, learned positions, biases everywhere but at the head."""

from typing import Any

from regard import config
from regard.hub.families.table import Family, enter, of_blocks
from regard.hub.families.theirs import ACTIVATIONS, Theirs, their_word


def say(c: config.Transformer, context: int | None) -> dict[str, Any]:
    trunk = of_blocks(c)
    dropout = trunk.dropout
    length = trunk.position.length if isinstance(trunk.position, config.Learned) else context
    return {
        "vocab_size": c.embed.vocab,
        "n_positions": length if isinstance(length, int) else 1024,
        "n_embd": trunk.dim,
        "n_layer": trunk.depth,
        "n_head": trunk.heads[0],
        "n_inner": trunk.mlp.hidden,
        "activation_function": their_word(trunk.mlp.activation, ACTIVATIONS),
        "embd_pdrop": dropout.embed,
        "attn_pdrop": dropout.attention,
        "resid_pdrop": dropout.sublayer,
        "layer_norm_epsilon": trunk.norm.eps,
        "tie_word_embeddings": isinstance(c.head, config.Vocabulary) and c.head.tied,
    }


def hear(theirs: Theirs) -> config.Transformer:
    theirs.only("scale_attn_weights", True)
    theirs.only("scale_attn_by_inverse_layer_idx", False)
    theirs.only("add_cross_attention", False)
    dim = theirs.whole("n_embd")
    trunk = config.Trunk(
        dim=dim,
        depth=theirs.whole("n_layer"),
        position=config.Learned(length=theirs.whole("n_positions")),
        mask="causal",
        attention=config.Attention(heads=theirs.whole("n_head")),
        mlp=config.MLP(
            hidden=theirs.whole("n_inner", 4 * dim),
            activation=theirs.word("activation_function", ACTIVATIONS, "gelu_new"),
        ),
        norm=config.Norm(eps=theirs.number("layer_norm_epsilon", 1e-5)),
        dropout=config.Dropout(
            embed=theirs.number("embd_pdrop", 0.1),
            attention=theirs.number("attn_pdrop", 0.1),
            sublayer=theirs.number("resid_pdrop", 0.1),
        ),
    )
    head = config.Vocabulary(tied=theirs.flag("tie_word_embeddings", True))
    return config.Transformer(embed=config.Embed(vocab=theirs.whole("vocab_size")), trunk=trunk, head=head, init="gpt2")


enter(Family("gpt2", "GPT-2", "GPT2LMHeadModel", "transformer.", "n_positions", say, hear))
