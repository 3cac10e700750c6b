"""ViT (Dosovitskiy et al. 2021): image patches after a class token, learned positions, pre-norm."""

from typing import Any

from regard import config
from regard.hub.families.canonical import block_trunk
from regard.hub.families.hf_config import HF_ACTIVATIONS, HFConfig, hf_word, labels_to_hf, num_labels
from regard.hub.families.registry import Family, register_family

SHAPES = {"tanh": "tanh", **HF_ACTIVATIONS}


def vit_to_hf(c: config.Transformer, context: int | None) -> dict[str, Any]:
    trunk, embed = block_trunk(c), c.embed
    assert isinstance(embed, config.PatchEmbedding)
    return {
        "image_size": embed.image_size,
        "patch_size": embed.patch_size,
        "num_channels": embed.channels,
        "hidden_size": trunk.dim,
        "num_hidden_layers": trunk.depth,
        "num_attention_heads": trunk.heads[0],
        "intermediate_size": trunk.mlp.hidden or 4 * trunk.dim,
        "hidden_act": hf_word(trunk.mlp.activation, HF_ACTIVATIONS),
        "hidden_dropout_prob": trunk.dropout.residual,
        "attention_probs_dropout_prob": trunk.dropout.attention,
        "layer_norm_eps": trunk.norm.eps,
        "qkv_bias": "q" in trunk.attention.bias,
        **pooler_to_hf(c.head),
        **labels_to_hf(c.head),
    }


def vit_from_hf(hf: HFConfig, head: config.Head, cls: bool | int = True) -> config.Transformer:
    """The ViT config; `cls` is the number of learned tokens: DeiT has two."""
    embed = config.PatchEmbedding(
        patch_size=square_side(hf, "patch_size", 16),
        image_size=square_side(hf, "image_size", 224),
        channels=hf.get_int("num_channels", 3),
        cls_tokens=cls,
        resize=config.ImageResize(mode="stretch"),
    )
    dropout = hf.get_float("hidden_dropout_prob", 0.0)
    trunk = config.Trunk(
        dim=hf.get_int("hidden_size", 768),
        depth=hf.get_int("num_hidden_layers", 12),
        position=config.LearnedPosition(length=embed.count),
        attention=config.Attention(
            heads=hf.get_int("num_attention_heads", 12),
            bias=("q", "k", "v", "out") if hf.get_bool("qkv_bias", True) else ("out",),
        ),
        mlp=config.MLP(
            hidden=hf.get_int("intermediate_size", 3072),
            activation=hf.get_str("hidden_act", HF_ACTIVATIONS, "gelu"),
        ),
        norm=config.Norm(eps=hf.get_float("layer_norm_eps", 1e-12)),
        dropout=config.Dropout(
            embed=dropout, attention=hf.get_float("attention_probs_dropout_prob", 0.0), residual=dropout
        ),
    )
    return config.Transformer(embed=embed, trunk=trunk, head=head, init="vit")


def square_side(hf: HFConfig, key: str, default: int) -> int:
    """The side of a square image or patch, given as a number or as [rows, columns]."""
    match hf.get(key):
        case [int(rows), int(columns)] if rows == columns:
            return HFConfig({key: rows}, hf.path).get_int(key)
        case [_, *_]:
            raise hf.error(key, "models here can only have squares, such as 224 or [224, 224]")
    return hf.get_int(key, default)


# ---------------------------------------------------------------- heads


def vit_classification_head(hf: HFConfig) -> config.Head:
    return config.PoolingHead(out=num_labels(hf))


def vit_pooler_head(hf: HFConfig) -> config.Head:
    """The vectors of all tokens, and the first one's through the pooler; no head where the config has no pooler."""
    if not hf.get_bool("add_pooling_layer", True):
        return config.NoHead()
    hf.require("pooler_output_size", hf.get_int("hidden_size", 768))
    shape = hf.get_str("pooler_act", SHAPES, "tanh")
    return config.PretrainingHead(lm=config.NoHead(), pooling=config.PoolingHead(dense=True, activation=shape))


def pooler_to_hf(head: config.Head) -> dict[str, Any]:
    if isinstance(head, config.PretrainingHead):
        return {"pooler_act": hf_word(head.pooling.activation, SHAPES)}
    return {"add_pooling_layer": False} if isinstance(head, config.NoHead) else {}


register_family(
    Family(
        "vit",
        "ViT",
        {"ViTForImageClassification": vit_classification_head, "ViTModel": vit_pooler_head},
        vit_to_hf,
        vit_from_hf,
        prefix="vit.",
        body_prefix=("ViTModel",),
        front_end=config.PatchEmbedding,
    )
)
