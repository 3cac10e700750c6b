"""GPT-Neo (Black et al. 2021): GPT-2 whose layers look far and near in turn; scores have no scale, q, k, v no bias."""

from typing import Any

from regard import config
from regard.hub.families import decoders
from regard.hub.families.decoders import LABEL, SPAN, TAGS, classes, is_tied, looks, windows, words
from regard.hub.families.settled import length, of_blocks, tiled
from regard.hub.families.table import Family, enter
from regard.hub.families.theirs import ACTIVATIONS, Theirs, say_labels, their_word

FAR, NEAR = "global", "local"


def say(c: config.Transformer, context: int | None) -> dict[str, Any]:
    trunk = of_blocks(c)
    seen = windows(trunk)
    return {
        "vocab_size": c.embed.vocab,
        "max_position_embeddings": length(trunk, context, 2048),
        "hidden_size": trunk.dim,
        "num_layers": trunk.depth,
        "num_heads": trunk.heads[0],
        "intermediate_size": trunk.mlp.hidden,
        "attention_types": [[[FAR if window is None else NEAR for window in seen], 1]],
        "window_size": next((window for window in seen if window is not None), 256),
        "activation_function": their_word(trunk.mlp.activation, ACTIVATIONS),
        "embed_dropout": trunk.dropout.embed,
        "attention_dropout": trunk.dropout.attention,
        "resid_dropout": trunk.dropout.sublayer,
        "layer_norm_epsilon": trunk.norm.eps,
        "tie_word_embeddings": is_tied(c),
        **say_labels(c.head),
    }


def hear(theirs: Theirs, head: config.Head) -> config.Transformer:
    dim, near = theirs.whole("hidden_size"), looks(theirs.whole("window_size", 256))
    trunk = config.Trunk(
        dim=dim,
        depth=decoders.layer_count(theirs, "num_layers"),
        position=config.Learned(length=theirs.whole("max_position_embeddings")),
        mask=tiled([near if each == NEAR else "causal" for each in layers(theirs)]),
        attention=config.Attention(heads=theirs.whole("num_heads"), scale=1.0, bias=("out",)),
        mlp=config.MLP(
            hidden=theirs.whole("intermediate_size", 4 * dim),
            activation=theirs.word("activation_function", ACTIVATIONS, "gelu_new"),
        ),
        norm=config.Norm(eps=theirs.number("layer_norm_epsilon", 1e-5)),
        dropout=config.Dropout(
            embed=theirs.number("embed_dropout", 0.0),
            attention=theirs.number("attention_dropout", 0.0),
            sublayer=theirs.number("resid_dropout", 0.0),
        ),
    )
    return config.Transformer(embed=words(theirs, head), trunk=trunk, head=head, init="gpt2")


def layers(theirs: Theirs) -> list[str]:
    """[[["global", "local"], 12]] is twelve times both."""
    depth, found = decoders.layer_count(theirs, "num_layers"), list[str]()
    said = theirs.get("attention_types", [[[FAR, NEAR], 12]])
    for each in said if isinstance(said, list) else [said]:
        match each:
            case [list(kinds), int(times)] if 0 <= times * len(kinds) <= depth:
                found += kinds * times
            case _:
                raise theirs.wrong("attention_types", f"expected [[['{FAR}', '{NEAR}'], times]] for {depth} layers")
    return decoders.expected(theirs, "attention_types", found, (FAR, NEAR), depth)


HEADS = classes("GPTNeo", True, LABEL, TAGS, SPAN)
enter(Family("gpt_neo", "GPT-Neo", HEADS, say, hear, prefix="transformer.", alone=("GPTNeoModel",)))
