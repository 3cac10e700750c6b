"""T5 (Raffel et al. 2020): an encoder-decoder without biases, pre-norm RMS, places in buckets on the scores.

1.0 has ReLU and logits times 1/sqrt(d) by the table of the embedding; 1.1 and Flan have a gate and a head of their own.
"""

from typing import Any

from regard import config
from regard.hub.families.pairs import sides
from regard.hub.families.settled import of_blocks
from regard.hub.families.table import Family, enter
from regard.hub.families.theirs import ACTIVATIONS, Theirs, bare, their_word

ALONE = "T5EncoderModel"  # the half that reads


def say(c: config.Transformer, context: int | None) -> dict[str, Any]:
    reads, writes = (of_blocks(c), of_blocks(c)) if c.encoder is None else sides(c)
    place = reads.position if isinstance(reads.position, config.Buckets) else config.Buckets()
    return {
        "vocab_size": c.embed.vocab,
        "d_model": reads.dim,
        "d_kv": reads.head_width,
        "d_ff": reads.mlp.hidden or 4 * reads.dim,
        "num_layers": reads.depth,
        "num_decoder_layers": writes.depth,
        "num_heads": reads.heads[0],
        "relative_attention_num_buckets": place.buckets,
        "relative_attention_max_distance": place.distance,
        "dropout_rate": reads.dropout.sublayer,
        "layer_norm_epsilon": reads.norm.eps,
        "is_encoder_decoder": c.encoder is not None,
        **say_thought(reads.mlp),
        **say_head(c.head),
    }


def say_thought(c: config.MLP) -> dict[str, Any]:
    """The feed-forward layer. Behind a gate "gelu" has always meant the one by tanh."""
    word = their_word(c.activation, ACTIVATIONS)
    known = {"gelu_new": "gelu", "gelu": "gelu_python"}.get(word, word) if c.gated else word
    return {"feed_forward_proj": f"gated-{known}" if c.gated else known, "dense_act_fn": word, "is_gated_act": c.gated}


def say_head(c: config.Head) -> dict[str, Any]:
    tied, loud = (c.tied, c.scale == 1) if isinstance(c, config.Vocabulary) else (True, False)
    return {"tie_word_embeddings": tied, "scale_decoder_outputs": not loud}


def hear(theirs: Theirs, head: config.Head) -> config.Transformer:
    alone = ALONE in theirs.get("architectures", ())
    depth = theirs.whole("num_layers")
    embed = config.Embed(vocab=theirs.whole("vocab_size"))
    if alone:
        return config.Transformer(embed=embed, trunk=trunk(theirs, depth, True), head=head, init="t5")
    return config.Transformer(
        embed=embed,
        trunk=trunk(theirs, theirs.whole("num_decoder_layers", depth), False, mask="causal", cross="last"),
        encoder=config.Encoder(trunk=trunk(theirs, depth, True)),
        head=head,
        init="t5",
    )


def trunk(theirs: Theirs, depth: int, both: bool, **more: Any) -> config.Trunk:
    rate = theirs.number("dropout_rate", 0.1)
    return config.Trunk(
        dim=theirs.whole("d_model"),
        depth=depth,
        position=config.Buckets(
            buckets=theirs.whole("relative_attention_num_buckets", 32),
            distance=theirs.whole("relative_attention_max_distance", 128),
            both=both,
        ),
        attention=config.Attention(heads=theirs.whole("num_heads"), width=theirs.whole("d_kv", 64), scale=1.0, bias=()),
        mlp=hear_thought(theirs),
        norm=config.Norm(kind="rms", eps=theirs.number("layer_norm_epsilon", 1e-6)),
        dropout=config.Dropout(embed=rate, attention=rate, mlp=rate, sublayer=rate),
        **more,
    )


def hear_thought(theirs: Theirs) -> config.MLP:
    said = str(theirs.get("feed_forward_proj", "relu"))
    gated = said.startswith("gated-")
    word = "gelu_new" if said == "gated-gelu" else said.removeprefix("gated-")
    if not theirs.get("dense_act_fn") and word not in ACTIVATIONS:
        raise theirs.wrong("feed_forward_proj", f"known are {', '.join(ACTIVATIONS)}, alone or behind gated-")
    return config.MLP(
        hidden=theirs.whole("d_ff"),
        activation=theirs.word("dense_act_fn", ACTIVATIONS, word),
        gated=theirs.flag("is_gated_act", gated),
        bias=False,
    )


def vocabulary(theirs: Theirs) -> config.Head:
    """Whoever ties the head makes its logits smaller. Newer files say that all tie, and only that some are as loud."""
    tied = theirs.flag("tie_word_embeddings", True)
    small = theirs.flag("scale_decoder_outputs", tied)
    return config.Vocabulary(tied=tied and small, scale=theirs.whole("d_model") ** -0.5 if small else 1.0)


enter(Family("t5", "T5", {"T5ForConditionalGeneration": vocabulary, "T5Model": bare, ALONE: bare}, say, hear,
             length="n_positions"))  # fmt: skip
