"""Swin (Liu et al. 2021): stages of blocks with 2-D windows, shifted in every second block.

    56 x 56 patches ─ stage ─ 28 x 28 ─ stage ─ 14 x 14 ─ stage ─ 7 x 7 ─ stage ─►

Where windows do not fill a grid, `transformers` attends to padding, and where they are larger it fails; both are
refused here. There is no setting for drop path.
"""

import math
from collections.abc import Sequence
from typing import Any

from regard import config
from regard.hub.families.canonical import block_trunk
from regard.hub.families.hf_config import HF_ACTIVATIONS, MAX_INT, HFConfig, hf_word, labels_to_hf, num_labels
from regard.hub.families.registry import Family, register_family
from regard.hub.families.vit import square_side

DEPTHS, HEADS = (2, 2, 6, 2), (3, 6, 12, 24)
COLOURS: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}  # of ImageNet


def to_hf(c: config.Transformer, context: int | None) -> dict[str, Any]:
    last, embed = block_trunk(c), c.embed
    assert isinstance(embed, config.StageEmbedding)
    trunks = (*embed.trunks, last)
    return {
        "image_size": embed.patches.image_size,
        "patch_size": embed.patches.patch_size,
        "num_channels": embed.patches.channels,
        "embed_dim": trunks[0].dim,
        "depths": [trunk.depth for trunk in trunks],
        "num_heads": [trunk.heads[0] for trunk in trunks],
        "window_size": last.position.max_distance + 1 if isinstance(last.position, config.RelativeBias) else 7,
        "mlp_ratio": mlp_ratio(trunks),
        "qkv_bias": "q" in last.attention.bias,
        "hidden_act": hf_word(last.mlp.activation, HF_ACTIVATIONS),
        "hidden_dropout_prob": last.dropout.residual,
        "attention_probs_dropout_prob": last.dropout.attention,
        "drop_path_rate": 0.0,
        "layer_norm_eps": last.norm.eps,
        **labels_to_hf(c.head),
    }


def mlp_ratio(trunks: Sequence[config.Trunk]) -> float:
    """The ratio that gives all hidden widths, hidden = int(ratio·dim), where there is one."""
    least = max((trunk.mlp.hidden or 4 * trunk.dim) / trunk.dim for trunk in trunks)
    whole = all(int(least * trunk.dim) == (trunk.mlp.hidden or 4 * trunk.dim) for trunk in trunks)
    return least if whole else math.nextafter(least, math.inf)  # a rounded quotient may give one less


def from_hf(hf: HFConfig, head: config.Head) -> config.Transformer:
    hf.require("use_absolute_embeddings", False)
    depths, heads = int_list(hf, "depths", DEPTHS), int_list(hf, "num_heads", HEADS)
    if len(depths) < 2 or len(heads) != len(depths):
        raise hf.error("num_heads", f"expected two stages or more, and one number for each of {list(depths)}")
    patches = config.PatchEmbedding(
        patch_size=square_side(hf, "patch_size", 4),
        image_size=square_side(hf, "image_size", 224),
        channels=hf.get_int("num_channels", 3),
        cls_tokens=False,
        norm=True,
        resize=config.ImageResize(mode="stretch", resample="bicubic"),
        **(COLOURS if hf.get("num_channels", 3) == 3 else {}),
    )
    *trunks, last = (stage_from_hf(hf, place, patches.side, depths, heads) for place in range(len(depths)))
    embed = config.StageEmbedding(patches=patches, trunks=tuple(trunks))
    return config.Transformer(embed=embed, trunk=last, head=head, init="vit")


def stage_from_hf(hf: HFConfig, place: int, grid: int, depths: Sequence[int], heads: Sequence[int]) -> config.Trunk:
    """The trunk of one stage; `grid` is the side of the first stage's grid."""
    dim, last = hf.get_int("embed_dim", 96) * 2**place, place == len(depths) - 1
    dropout = hf.get_float("hidden_dropout_prob", 0.0)
    return config.Trunk(
        dim=dim,
        depth=depths[place],
        mask=stage_masks(hf, grid // 2**place, depths[place]),
        position=config.RelativeBias(
            max_distance=hf.get_int("window_size", 7) - 1, axes=2, scaled=False, tables="layer"
        ),
        attention=config.Attention(
            heads=heads[place],
            bias=("q", "k", "v", "out") if hf.get_bool("qkv_bias", True) else ("out",),
        ),
        mlp=config.MLP(
            hidden=max(1, int(hf.get_float("mlp_ratio", 4.0) * dim)),
            activation=hf.get_str("hidden_act", HF_ACTIVATIONS, "gelu"),
        ),
        norm=config.Norm(eps=hf.get_float("layer_norm_eps", 1e-5)),
        final_norm=last,
        dropout=config.Dropout(
            embed=dropout if place == 0 else 0.0,
            attention=hf.get_float("attention_probs_dropout_prob", 0.0),
            residual=dropout,
        ),
    )


def stage_masks(hf: HFConfig, grid: int, depth: int) -> str | tuple[str, ...]:
    """The masks of a stage's layers, in turn; a window as large as the grid is not shifted."""
    size = hf.get_int("window_size", 7)
    if grid < size or grid % size:
        raise hf.error("window_size", f"a stage has {grid} x {grid} tokens, which such windows do not fill")
    moved = grid > size > 1 and depth > 1
    return (f"window2d({size})", f"window2d({size}, {size // 2})") if moved else f"window2d({size})"


def int_list(hf: HFConfig, key: str, default: Sequence[int]) -> tuple[int, ...]:
    found = hf.get(key, list(default))
    if not isinstance(found, list) or not all(type(one) is int and 1 <= one <= MAX_INT for one in found):
        raise hf.error(key, "expected a list of whole numbers from 1, one for each stage")
    return tuple(found)


# ---------------------------------------------------------------- heads


def swin_classification_head(hf: HFConfig) -> config.Head:
    return config.PoolingHead(pooling="mean", out=num_labels(hf))


def mean_pooling_head(hf: HFConfig) -> config.Head:
    """The vectors of all tokens, and their mean."""
    return config.PretrainingHead(lm=config.NoHead(), pooling=config.PoolingHead(pooling="mean"))


register_family(
    Family(
        "swin",
        "Swin",
        {"SwinForImageClassification": swin_classification_head, "SwinModel": mean_pooling_head},
        to_hf,
        from_hf,
        prefix="swin.",
        body_prefix=("SwinModel",),
        front_end=config.StageEmbedding,
    )
)
