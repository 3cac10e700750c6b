"""CLIP (Radford et al. 2021): a tower that sees and one that reads, compared; and each of the two by itself.

Both are pre-norm with learned places. The text is read causally, and the vector of its end token stands for it.
"""

import math
from typing import Any

from regard import config
from regard.hub.families.settled import of_blocks
from regard.hub.families.table import Family, enter
from regard.hub.families.theirs import ACTIVATIONS, Theirs, their_word
from regard.hub.families.vit import side

PROJECTION = 512
COLOURS: dict[str, Any] = {
    "mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711),
}  # fmt: skip
HIGHEST = 2  # the end token of early configs: no id at all, but wherever the highest id of a text stands


# ---------------------------------------------------------------- both towers


def say(c: config.Towers, context: int | None) -> dict[str, Any]:
    if len(c.towers) != 2:
        raise ValueError(f"towers: there are {len(c.towers)}, where CLIP has two")
    sees, reads = c.towers
    if not isinstance(sees.trunk, config.Trunk) or not isinstance(reads.trunk, config.Trunk):
        raise ValueError("towers: one of them is recurrent, where CLIP has blocks in both")
    if not isinstance(sees.embed, config.Patches) or type(reads.embed) is not config.Embed:
        raise ValueError(f"towers: they have {sees.embed.kind!r} and {reads.embed.kind!r} before them, where CLIP has "
                         "'patches' and 'text'")  # fmt: skip
    return {
        "vision_config": {**say_vision(sees, None), "model_type": "clip_vision_model"},
        "text_config": {**say_text(reads, context), "model_type": "clip_text_model"},
        "projection_dim": width(reads),
        "logit_scale_init_value": round(math.log(c.scale), 4),
    }


def hear(theirs: Theirs, head: config.Head) -> config.Towers:
    """`head` is what both towers have, but for where the vector is taken from."""
    scale = math.exp(theirs.number("logit_scale_init_value", 2.6592))
    assert isinstance(head, config.Pooled)
    sees = hear_vision(part(theirs, "vision_config"), head)
    reads = hear_text(part(theirs, "text_config"), config.Pooled(place="end", out=head.out, bias=False))
    return config.Towers(towers=(sees, reads), scale=scale, limit=max(scale, config.Towers(towers=(sees, reads)).limit))


def part(theirs: Theirs, key: str) -> Theirs:
    """The table of a tower; what an early version called text_config_dict has the last word where it is there."""
    return theirs.inside(f"{key}_dict" if theirs.get(f"{key}_dict") else key)


def projected(theirs: Theirs) -> config.Head:
    return config.Pooled(out=theirs.whole("projection_dim", PROJECTION), bias=False)


def width(c: config.Transformer) -> int:
    """What the vectors are mapped to."""
    return getattr(c.head, "out", None) or PROJECTION


# ---------------------------------------------------------------- the one that sees


def say_vision(c: config.Transformer, context: int | None) -> dict[str, Any]:
    assert isinstance(c.embed, config.Patches)
    sizes = {"image_size": c.embed.image, "patch_size": c.embed.size, "num_channels": c.embed.channels}
    return sizes | say_trunk(c)


def hear_vision(theirs: Theirs, head: config.Head) -> config.Transformer:
    embed = config.Patches(
        size=side(theirs, "patch_size", 32),
        image=side(theirs, "image_size", 224),
        channels=theirs.whole("num_channels", 3),
        bias=False,
        frame=config.Frame(fit="shorter", resample="bicubic"),
        **(COLOURS if theirs.get("num_channels", 3) == 3 else {}),
    )
    trunk = hear_trunk(theirs, (768, 3072, 12), position=config.Learned(length=embed.count), embed_norm=True)
    return config.Transformer(embed=embed, trunk=trunk, head=head, init="bert")


def first(theirs: Theirs) -> config.Head:
    """The first token's vector alone: the others go through no norm there, and come out of `looking` as they are."""
    return config.Pooled()


# ---------------------------------------------------------------- the one that reads


def say_text(c: config.Transformer, context: int | None) -> dict[str, Any]:
    position = of_blocks(c).position
    length = position.length if isinstance(position, config.Learned) else context
    return {
        "vocab_size": c.embed.vocab,
        "max_position_embeddings": length if isinstance(length, int) else 77,
        "eos_token_id": HIGHEST if isinstance(c.embed, config.Embed) and c.embed.highest else c.embed.end,
        **say_trunk(c),
    }


def hear_text(theirs: Theirs, head: config.Head) -> config.Transformer:
    vocab = theirs.whole("vocab_size", 49_408)
    position = config.Learned(length=theirs.whole("max_position_embeddings", 77))
    trunk = hear_trunk(theirs, (512, 2048, 8), position=position, mask="causal")
    said = theirs.whole("eos_token_id", 49_407)
    highest = said == HIGHEST
    embed = config.Embed(vocab=vocab, end=vocab - 1 if highest else said, highest=highest)
    return config.Transformer(embed=embed, trunk=trunk, head=head, init="bert")


def ended(theirs: Theirs) -> config.Head:
    """Every token's vector, and that of the end token for the whole."""
    return config.Both(vocabulary=config.Bare(), pooled=config.Pooled(place="end"))


def ended_projected(theirs: Theirs) -> config.Head:
    return config.Pooled(place="end", out=theirs.whole("projection_dim", PROJECTION), bias=False)


# ---------------------------------------------------------------- what both have


def say_trunk(c: config.Transformer) -> dict[str, Any]:
    trunk = of_blocks(c)
    return {
        "hidden_size": trunk.dim,
        "num_hidden_layers": trunk.depth,
        "num_attention_heads": trunk.heads[0],
        "intermediate_size": trunk.mlp.hidden or 4 * trunk.dim,
        "hidden_act": their_word(trunk.mlp.activation, ACTIVATIONS),
        "layer_norm_eps": trunk.norm.eps,
        "attention_dropout": trunk.dropout.attention,
        "projection_dim": width(c),
    }


def hear_trunk(theirs: Theirs, usual: tuple[int, int, int], **more: Any) -> config.Trunk:
    """`usual` are width, hidden and heads where they are not said."""
    dim, hidden, heads = usual
    return config.Trunk(
        dim=theirs.whole("hidden_size", dim),
        depth=theirs.whole("num_hidden_layers", 12),
        attention=config.Attention(heads=theirs.whole("num_attention_heads", heads)),
        mlp=config.MLP(
            hidden=theirs.whole("intermediate_size", hidden),
            activation=theirs.word("hidden_act", ACTIVATIONS, "quick_gelu"),
        ),
        norm=config.Norm(eps=theirs.number("layer_norm_eps", 1e-5)),
        dropout=config.Dropout(embed=0.0, attention=theirs.number("attention_dropout", 0.0), sublayer=0.0),
        **more,
    )


enter(Family("clip", "CLIP", {"CLIPModel": projected}, say, hear, front=config.Towers))
enter(Family("clip_vision_model", "CLIP's tower for images",
             {"CLIPVisionModelWithProjection": projected, "CLIPVisionModel": first}, say_vision, hear_vision,
             prefix="vision_model.", alone=("CLIPVisionModel",), map="clip", front=config.Patches))  # fmt: skip
enter(Family("clip_text_model", "CLIP's tower for texts",
             {"CLIPTextModelWithProjection": ended_projected, "CLIPTextModel": ended}, say_text, hear_text,
             prefix="text_model.", alone=("CLIPTextModel",), map="clip"))  # fmt: skip
