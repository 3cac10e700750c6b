"""T5 (Raffel et al. 2020): an encoder-decoder without biases, pre-norm RMS, bucketed relative positions on the scores.

1.0 has ReLU and a tied head with logits scaled by 1/sqrt(d); 1.1 and Flan have a gated MLP and an untied head.
"""

from typing import Any

from regard import config
from regard.hub.families.canonical import block_trunk
from regard.hub.families.encoder_decoder_common import both_trunks
from regard.hub.families.hf_config import HF_ACTIVATIONS, HFConfig, body_without_head, hf_word
from regard.hub.families.registry import Family, register_family

ALONE = "T5EncoderModel"  # the encoder alone


def to_hf(c: config.Transformer, context: int | None) -> dict[str, Any]:
    reads, writes = (block_trunk(c), block_trunk(c)) if c.encoder is None else both_trunks(c)
    place = reads.position if isinstance(reads.position, config.T5Bias) else config.T5Bias()
    return {
        "vocab_size": c.embed.vocab,
        "d_model": reads.dim,
        "d_kv": reads.head_width,
        "d_ff": reads.mlp.hidden or 4 * reads.dim,
        "num_layers": reads.depth,
        "num_decoder_layers": writes.depth,
        "num_heads": reads.heads[0],
        "relative_attention_num_buckets": place.num_buckets,
        "relative_attention_max_distance": place.max_distance,
        "dropout_rate": reads.dropout.residual,
        "layer_norm_epsilon": reads.norm.eps,
        "is_encoder_decoder": c.encoder is not None,
        **t5_mlp_to_hf(reads.mlp),
        **head_to_hf(c.head),
    }


def t5_mlp_to_hf(c: config.MLP) -> dict[str, Any]:
    """The keys of the MLP. In a gated one "gelu" has always been the tanh approximation."""
    word = hf_word(c.activation, HF_ACTIVATIONS)
    known = {"gelu_new": "gelu", "gelu": "gelu_python"}.get(word, word) if c.gated else word
    return {"feed_forward_proj": f"gated-{known}" if c.gated else known, "dense_act_fn": word, "is_gated_act": c.gated}


def head_to_hf(c: config.Head) -> dict[str, Any]:
    tied, loud = (c.tied, c.scale == 1) if isinstance(c, config.LMHead) else (True, False)
    return {"tie_word_embeddings": tied, "scale_decoder_outputs": not loud}


def from_hf(hf: HFConfig, head: config.Head) -> config.Transformer:
    alone = ALONE in hf.get("architectures", ())
    depth = hf.get_int("num_layers")
    embed = config.TextEmbedding(vocab=hf.get_int("vocab_size"))
    if alone:
        return config.Transformer(embed=embed, trunk=trunk_from_t5(hf, depth, True), head=head, init="t5")
    return config.Transformer(
        embed=embed,
        trunk=trunk_from_t5(hf, hf.get_int("num_decoder_layers", depth), False, mask="causal", cross="last"),
        encoder=config.Encoder(trunk=trunk_from_t5(hf, depth, True)),
        head=head,
        init="t5",
    )


def trunk_from_t5(hf: HFConfig, depth: int, both: bool, **more: Any) -> config.Trunk:
    rate = hf.get_float("dropout_rate", 0.1)
    return config.Trunk(
        dim=hf.get_int("d_model"),
        depth=depth,
        position=config.T5Bias(
            num_buckets=hf.get_int("relative_attention_num_buckets", 32),
            max_distance=hf.get_int("relative_attention_max_distance", 128),
            bidirectional=both,
        ),
        attention=config.Attention(heads=hf.get_int("num_heads"), head_dim=hf.get_int("d_kv", 64), scale=1.0, bias=()),
        mlp=t5_mlp_from_hf(hf),
        norm=config.Norm(kind="rms", eps=hf.get_float("layer_norm_epsilon", 1e-6)),
        dropout=config.Dropout(embed=rate, attention=rate, mlp=rate, residual=rate),
        **more,
    )


def t5_mlp_from_hf(hf: HFConfig) -> config.MLP:
    said = str(hf.get("feed_forward_proj", "relu"))
    gated = said.startswith("gated-")
    word = "gelu_new" if said == "gated-gelu" else said.removeprefix("gated-")
    if not hf.get("dense_act_fn") and word not in HF_ACTIVATIONS:
        raise hf.error("feed_forward_proj", f"known are {', '.join(HF_ACTIVATIONS)}, alone or behind gated-")
    return config.MLP(
        hidden=hf.get_int("d_ff"),
        activation=hf.get_str("dense_act_fn", HF_ACTIVATIONS, word),
        gated=hf.get_bool("is_gated_act", gated),
        bias=False,
    )


def lm_head(hf: HFConfig) -> config.Head:
    """The LM head: a tied one scales its logits. Newer configs tie the head of every model, and only
    `scale_decoder_outputs` tells the two kinds apart."""
    tied = hf.get_bool("tie_word_embeddings", True)
    small = hf.get_bool("scale_decoder_outputs", tied)
    return config.LMHead(tied=tied and small, scale=hf.get_int("d_model") ** -0.5 if small else 1.0)


register_family(
    Family(
        "t5",
        "T5",
        {"T5ForConditionalGeneration": lm_head, "T5Model": body_without_head, ALONE: body_without_head},
        to_hf,
        from_hf,
        length="n_positions",
    )
)
