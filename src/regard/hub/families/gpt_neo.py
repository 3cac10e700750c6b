"""GPT-Neo (Black et al. 2021): GPT-2 with global and local attention in turn; no scale, no bias of q, k, v."""

from typing import Any

from regard import config
from regard.hub.families import decoder_common
from regard.hub.families.canonical import block_trunk, max_length, shortest_tile
from regard.hub.families.decoder_common import (
    QA_CLASS,
    SEQUENCE_CLASS,
    TOKEN_CLASS,
    decoder_classes,
    decoder_embedding,
    is_tied,
    layer_mask,
    layer_windows,
)
from regard.hub.families.hf_config import HF_ACTIVATIONS, HFConfig, hf_word, labels_to_hf
from regard.hub.families.registry import Family, register_family

FAR, NEAR = "global", "local"


def to_hf(c: config.Transformer, context: int | None) -> dict[str, Any]:
    trunk = block_trunk(c)
    seen = layer_windows(trunk)
    return {
        "vocab_size": c.embed.vocab,
        "max_position_embeddings": max_length(trunk, context, 2048),
        "hidden_size": trunk.dim,
        "num_layers": trunk.depth,
        "num_heads": trunk.heads[0],
        "intermediate_size": trunk.mlp.hidden,
        "attention_types": [[[FAR if window is None else NEAR for window in seen], 1]],
        "window_size": next((window for window in seen if window is not None), 256),
        "activation_function": hf_word(trunk.mlp.activation, HF_ACTIVATIONS),
        "embed_dropout": trunk.dropout.embed,
        "attention_dropout": trunk.dropout.attention,
        "resid_dropout": trunk.dropout.residual,
        "layer_norm_epsilon": trunk.norm.eps,
        "tie_word_embeddings": is_tied(c),
        **labels_to_hf(c.head),
    }


def from_hf(hf: HFConfig, head: config.Head) -> config.Transformer:
    dim, near = hf.get_int("hidden_size"), layer_mask(hf.get_int("window_size", 256))
    trunk = config.Trunk(
        dim=dim,
        depth=decoder_common.layer_count(hf, "num_layers"),
        position=config.LearnedPosition(length=hf.get_int("max_position_embeddings")),
        mask=shortest_tile([near if each == NEAR else "causal" for each in layer_types(hf)]),
        attention=config.Attention(heads=hf.get_int("num_heads"), scale=1.0, bias=("out",)),
        mlp=config.MLP(
            hidden=hf.get_int("intermediate_size", 4 * dim),
            activation=hf.get_str("activation_function", HF_ACTIVATIONS, "gelu_new"),
        ),
        norm=config.Norm(eps=hf.get_float("layer_norm_epsilon", 1e-5)),
        dropout=config.Dropout(
            embed=hf.get_float("embed_dropout", 0.0),
            attention=hf.get_float("attention_dropout", 0.0),
            residual=hf.get_float("resid_dropout", 0.0),
        ),
    )
    return config.Transformer(embed=decoder_embedding(hf, head), trunk=trunk, head=head, init="gpt2")


def layer_types(hf: HFConfig) -> list[str]:
    """Expand attention_types: [[["global", "local"], 12]] is both, twelve times."""
    depth, found = decoder_common.layer_count(hf, "num_layers"), list[str]()
    said = hf.get("attention_types", [[[FAR, NEAR], 12]])
    for each in said if isinstance(said, list) else [said]:
        match each:
            case [list(kinds), int(times)] if 0 <= times * len(kinds) <= depth:
                found += kinds * times
            case _:
                raise hf.error("attention_types", f"expected [[['{FAR}', '{NEAR}'], times]] for {depth} layers")
    return decoder_common.check_layer_types(hf, "attention_types", found, (FAR, NEAR), depth)


HEADS = decoder_classes("GPTNeo", True, SEQUENCE_CLASS, TOKEN_CLASS, QA_CLASS)
register_family(
    Family("gpt_neo", "GPT-Neo", HEADS, to_hf, from_hf, prefix="transformer.", body_prefix=("GPTNeoModel",))
)
