"""CLIP (Radford et al. 2021): an image tower and a text tower; and each of the two alone.

Both are pre-norm with learned positions. The text tower is causal, and pools at the end token.
"""

import math
from typing import Any

from regard import config
from regard.hub.families.canonical import block_trunk
from regard.hub.families.hf_config import HF_ACTIVATIONS, HFConfig, hf_word
from regard.hub.families.registry import Family, register_family
from regard.hub.families.vit import square_side

PROJECTION = 512
COLOURS: dict[str, Any] = {
    "mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711),
}  # fmt: skip
HIGHEST = 2  # the end token of early configs: not an id, but the position of the highest id of a text


# ---------------------------------------------------------------- both towers


def to_hf(c: config.DualEncoder, context: int | None) -> dict[str, Any]:
    if len(c.towers) != 2:
        raise ValueError(f"towers: there are {len(c.towers)}, where CLIP has two")
    sees, reads = c.towers
    if not isinstance(sees.trunk, config.Trunk) or not isinstance(reads.trunk, config.Trunk):
        raise ValueError("towers: one of them is recurrent, where CLIP has blocks in both")
    if not isinstance(sees.embed, config.PatchEmbedding) or type(reads.embed) is not config.TextEmbedding:
        raise ValueError(f"towers: they have {sees.embed.kind!r} and {reads.embed.kind!r} as inputs, where CLIP has "
                         "'patches' and 'text'")  # fmt: skip
    return {
        "vision_config": {**vision_to_hf(sees, None), "model_type": "clip_vision_model"},
        "text_config": {**text_to_hf(reads, context), "model_type": "clip_text_model"},
        "projection_dim": projection_width(reads),
        "logit_scale_init_value": round(math.log(c.initial_scale), 4),
    }


def from_hf(hf: HFConfig, head: config.Head) -> config.DualEncoder:
    """Both towers from a CLIP config; `head` is that of both, except for the pooling."""
    scale = math.exp(hf.get_float("logit_scale_init_value", 2.6592))
    assert isinstance(head, config.PoolingHead)
    sees = vision_from_hf(tower_config(hf, "vision_config"), head)
    reads = text_from_hf(tower_config(hf, "text_config"), config.PoolingHead(pooling="eos", out=head.out, bias=False))
    return config.DualEncoder(
        towers=(sees, reads),
        initial_scale=scale,
        max_scale=max(scale, config.DualEncoder(towers=(sees, reads)).max_scale),
    )


def tower_config(hf: HFConfig, key: str) -> HFConfig:
    """The config of a tower; text_config_dict of early versions wins where it is present."""
    return hf.table(f"{key}_dict" if hf.get(f"{key}_dict") else key)


def projection_head(hf: HFConfig) -> config.Head:
    return config.PoolingHead(out=hf.get_int("projection_dim", PROJECTION), bias=False)


def projection_width(c: config.Transformer) -> int:
    """The width of the projection of both towers."""
    return getattr(c.head, "out", None) or PROJECTION


# ---------------------------------------------------------------- the image tower


def vision_to_hf(c: config.Transformer, context: int | None) -> dict[str, Any]:
    assert isinstance(c.embed, config.PatchEmbedding)
    sizes = {"image_size": c.embed.image_size, "patch_size": c.embed.patch_size, "num_channels": c.embed.channels}
    return sizes | trunk_to_hf(c)


def vision_from_hf(hf: HFConfig, head: config.Head) -> config.Transformer:
    embed = config.PatchEmbedding(
        patch_size=square_side(hf, "patch_size", 32),
        image_size=square_side(hf, "image_size", 224),
        channels=hf.get_int("num_channels", 3),
        bias=False,
        resize=config.ImageResize(mode="shortest_edge", resample="bicubic"),
        **(COLOURS if hf.get("num_channels", 3) == 3 else {}),
    )
    trunk = trunk_from_hf(hf, (768, 3072, 12), position=config.LearnedPosition(length=embed.count), embed_norm=True)
    return config.Transformer(embed=embed, trunk=trunk, head=head, init="bert")


def cls_head(hf: HFConfig) -> config.Head:
    """The first token's vector; the others get no norm there, and `looking` shows them so."""
    return config.PoolingHead()


# ---------------------------------------------------------------- the text tower


def text_to_hf(c: config.Transformer, context: int | None) -> dict[str, Any]:
    position = block_trunk(c).position
    length = position.length if isinstance(position, config.LearnedPosition) else context
    return {
        "vocab_size": c.embed.vocab,
        "max_position_embeddings": length if isinstance(length, int) else 77,
        "eos_token_id": HIGHEST
        if isinstance(c.embed, config.TextEmbedding) and c.embed.eos_is_max_id
        else c.embed.eos_id,
        **trunk_to_hf(c),
    }


def text_from_hf(hf: HFConfig, head: config.Head) -> config.Transformer:
    vocab = hf.get_int("vocab_size", 49_408)
    position = config.LearnedPosition(length=hf.get_int("max_position_embeddings", 77))
    trunk = trunk_from_hf(hf, (512, 2048, 8), position=position, mask="causal")
    said = hf.get_int("eos_token_id", 49_407)
    highest = said == HIGHEST
    embed = config.TextEmbedding(vocab=vocab, eos_id=vocab - 1 if highest else said, eos_is_max_id=highest)
    return config.Transformer(embed=embed, trunk=trunk, head=head, init="bert")


def eos_head(hf: HFConfig) -> config.Head:
    """The vectors of all tokens, and that of the end token as the pooled one."""
    return config.PretrainingHead(lm=config.NoHead(), pooling=config.PoolingHead(pooling="eos"))


def eos_projection_head(hf: HFConfig) -> config.Head:
    return config.PoolingHead(pooling="eos", out=hf.get_int("projection_dim", PROJECTION), bias=False)


# ---------------------------------------------------------------- shared by both


def trunk_to_hf(c: config.Transformer) -> dict[str, Any]:
    trunk = block_trunk(c)
    return {
        "hidden_size": trunk.dim,
        "num_hidden_layers": trunk.depth,
        "num_attention_heads": trunk.heads[0],
        "intermediate_size": trunk.mlp.hidden or 4 * trunk.dim,
        "hidden_act": hf_word(trunk.mlp.activation, HF_ACTIVATIONS),
        "layer_norm_eps": trunk.norm.eps,
        "attention_dropout": trunk.dropout.attention,
        "projection_dim": projection_width(c),
    }


def trunk_from_hf(hf: HFConfig, usual: tuple[int, int, int], **more: Any) -> config.Trunk:
    """The trunk of a tower; `usual` are the defaults of width, hidden width and heads."""
    dim, hidden, heads = usual
    return config.Trunk(
        dim=hf.get_int("hidden_size", dim),
        depth=hf.get_int("num_hidden_layers", 12),
        attention=config.Attention(heads=hf.get_int("num_attention_heads", heads)),
        mlp=config.MLP(
            hidden=hf.get_int("intermediate_size", hidden),
            activation=hf.get_str("hidden_act", HF_ACTIVATIONS, "quick_gelu"),
        ),
        norm=config.Norm(eps=hf.get_float("layer_norm_eps", 1e-5)),
        dropout=config.Dropout(embed=0.0, attention=hf.get_float("attention_dropout", 0.0), residual=0.0),
        **more,
    )


register_family(Family("clip", "CLIP", {"CLIPModel": projection_head}, to_hf, from_hf, front_end=config.DualEncoder))
register_family(
    Family(
        "clip_vision_model",
        "CLIP's tower for images",
        {"CLIPVisionModelWithProjection": projection_head, "CLIPVisionModel": cls_head},
        vision_to_hf,
        vision_from_hf,
        prefix="vision_model.",
        body_prefix=("CLIPVisionModel",),
        map="clip",
        front_end=config.PatchEmbedding,
    )
)
register_family(Family("clip_text_model", "CLIP's tower for texts",
             {"CLIPTextModelWithProjection": eos_projection_head, "CLIPTextModel": eos_head}, text_to_hf, text_from_hf,
             prefix="text_model.", body_prefix=("CLIPTextModel",), map="clip"))  # fmt: skip
