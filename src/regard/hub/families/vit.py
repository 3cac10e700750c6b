"""ViT (Dosovitskiy et al. 2021): an image in patches behind a learned token, learned places, pre-norm."""

from typing import Any

from regard import config
from regard.hub.families.settled import of_blocks
from regard.hub.families.table import Family, enter
from regard.hub.families.theirs import ACTIVATIONS, Theirs, count, say_labels, their_word

SHAPES = {"tanh": "tanh", **ACTIVATIONS}


def say(c: config.Transformer, context: int | None) -> dict[str, Any]:
    trunk, embed = of_blocks(c), c.embed
    assert isinstance(embed, config.Patches)
    return {
        "image_size": embed.image,
        "patch_size": embed.size,
        "num_channels": embed.channels,
        "hidden_size": trunk.dim,
        "num_hidden_layers": trunk.depth,
        "num_attention_heads": trunk.heads[0],
        "intermediate_size": trunk.mlp.hidden or 4 * trunk.dim,
        "hidden_act": their_word(trunk.mlp.activation, ACTIVATIONS),
        "hidden_dropout_prob": trunk.dropout.sublayer,
        "attention_probs_dropout_prob": trunk.dropout.attention,
        "layer_norm_eps": trunk.norm.eps,
        "qkv_bias": "q" in trunk.attention.bias,
        **say_pooler(c.head),
        **say_labels(c.head),
    }


def hear(theirs: Theirs, head: config.Head, cls: bool | int = True) -> config.Transformer:
    """`cls` is the number of learned tokens: DeiT has one more."""
    embed = config.Patches(
        size=side(theirs, "patch_size", 16),
        image=side(theirs, "image_size", 224),
        channels=theirs.whole("num_channels", 3),
        cls=cls,
        frame=config.Frame(fit="squeeze"),
    )
    dropout = theirs.number("hidden_dropout_prob", 0.0)
    trunk = config.Trunk(
        dim=theirs.whole("hidden_size", 768),
        depth=theirs.whole("num_hidden_layers", 12),
        position=config.Learned(length=embed.count),
        attention=config.Attention(
            heads=theirs.whole("num_attention_heads", 12),
            bias=("q", "k", "v", "out") if theirs.flag("qkv_bias", True) else ("out",),
        ),
        mlp=config.MLP(
            hidden=theirs.whole("intermediate_size", 3072),
            activation=theirs.word("hidden_act", ACTIVATIONS, "gelu"),
        ),
        norm=config.Norm(eps=theirs.number("layer_norm_eps", 1e-12)),
        dropout=config.Dropout(
            embed=dropout, attention=theirs.number("attention_probs_dropout_prob", 0.0), sublayer=dropout
        ),
    )
    return config.Transformer(embed=embed, trunk=trunk, head=head, init="vit")


def side(theirs: Theirs, key: str, default: int) -> int:
    """The pixels of a side; images and patches are squares, which some say as [rows, columns]."""
    match theirs.get(key):
        case [int(rows), int(columns)] if rows == columns:
            return Theirs({key: rows}, theirs.path).whole(key)
        case [_, *_]:
            raise theirs.wrong(key, "models here can only have squares, such as 224 or [224, 224]")
    return theirs.whole(key, default)


# ---------------------------------------------------------------- heads


def classes(theirs: Theirs) -> config.Head:
    return config.Pooled(out=count(theirs))


def pooler(theirs: Theirs) -> config.Head:
    """Every token's vector and, through a layer of its own, the first one's; a body without it says so."""
    if not theirs.flag("add_pooling_layer", True):
        return config.Bare()
    theirs.only("pooler_output_size", theirs.whole("hidden_size", 768))
    shape = theirs.word("pooler_act", SHAPES, "tanh")
    return config.Both(vocabulary=config.Bare(), pooled=config.Pooled(dense=True, activation=shape))


def say_pooler(head: config.Head) -> dict[str, Any]:
    if isinstance(head, config.Both):
        return {"pooler_act": their_word(head.pooled.activation, SHAPES)}
    return {"add_pooling_layer": False} if isinstance(head, config.Bare) else {}


enter(Family("vit", "ViT", {"ViTForImageClassification": classes, "ViTModel": pooler}, say, hear, prefix="vit.",
             alone=("ViTModel",), front=config.Patches))  # fmt: skip
