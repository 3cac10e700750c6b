"""What encoder-decoders have in common: two stacks of layers, and a word for each side before the same settings.

    encoder_layers, encoder_attention_heads, encoder_ffn_dim
    decoder_layers, decoder_attention_heads, decoder_ffn_dim

BART, mBART, Marian and Whisper say them so, and differ in where norms stand and how places are told.
"""

import math
from typing import Any

from regard import config
from regard.hub.families.settled import of_blocks
from regard.hub.families.theirs import ACTIVATIONS, Theirs, their_word


def sides(c: config.Transformer) -> tuple[config.Trunk, config.Trunk]:
    """The trunk that reads and the trunk that writes."""
    if c.encoder is None:
        raise ValueError("encoder is none, where an encoder-decoder has one")
    if not isinstance(c.encoder.trunk, config.Trunk):
        raise ValueError(f"encoder.trunk.kind is {c.encoder.trunk.kind!r}, where an encoder-decoder has 'blocks'")
    return c.encoder.trunk, of_blocks(c)


def say_sides(c: config.Transformer) -> dict[str, Any]:
    reads, writes = sides(c)
    dropout = writes.dropout
    said: dict[str, Any] = {"vocab_size": c.embed.vocab, "d_model": writes.dim}
    for side, trunk in (("encoder", reads), ("decoder", writes)):
        said[f"{side}_layers"] = trunk.depth
        said[f"{side}_attention_heads"] = trunk.heads[0]
        said[f"{side}_ffn_dim"] = trunk.mlp.hidden or 4 * trunk.dim
    return said | {
        "activation_function": their_word(writes.mlp.activation, ACTIVATIONS),
        "dropout": dropout.sublayer,
        "attention_dropout": dropout.attention,
        "activation_dropout": dropout.mlp,
        "scale_embedding": getattr(c.embed, "scale", 1) != 1,
        "is_encoder_decoder": True,
    }


def hear_side(theirs: Theirs, side: str, **more: Any) -> config.Trunk:
    """One of both trunks; `more` is what the family alone knows."""
    rate, bias = theirs.number("dropout", 0.1), more.pop("bias", config.Attention().bias)
    across: dict[str, Any] = {"mask": "causal", "cross": "last"} if side == "decoder" else {}
    return config.Trunk(
        dim=theirs.whole("d_model"),
        depth=theirs.whole(f"{side}_layers"),
        attention=config.Attention(heads=theirs.whole(f"{side}_attention_heads"), bias=bias),
        mlp=config.MLP(
            hidden=theirs.whole(f"{side}_ffn_dim"),
            activation=theirs.word("activation_function", ACTIVATIONS, "gelu"),
        ),
        dropout=config.Dropout(
            embed=rate,
            attention=theirs.number("attention_dropout", 0.0),
            mlp=theirs.number("activation_dropout", 0.0),
            sublayer=rate,
        ),
        **across,
        **more,
    )


def hear_embed(theirs: Theirs, key: str = "vocab_size") -> config.Embed:
    loud = theirs.flag("scale_embedding", False)
    return config.Embed(vocab=theirs.whole(key), scale=math.sqrt(theirs.whole("d_model")) if loud else 1.0)
