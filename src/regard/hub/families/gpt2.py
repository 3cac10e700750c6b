"""GPT-2 (Radford et al. 2019): causal, pre-norm, learned positions, biases everywhere but at the head."""

from typing import Any

from regard import config
from regard.hub.families.canonical import block_trunk, max_length
from regard.hub.families.decoder_common import (
    QA_CLASS,
    SEQUENCE_CLASS,
    TOKEN_CLASS,
    decoder_classes,
    decoder_embedding,
    is_tied,
)
from regard.hub.families.gpt_common import gpt_from_hf, gpt_to_hf, mlp_from_hf, mlp_to_hf, norm_eps_from_hf
from regard.hub.families.hf_config import HFConfig, labels_to_hf
from regard.hub.families.registry import Family, register_family


def to_hf(c: config.Transformer, context: int | None) -> dict[str, Any]:
    return {
        **gpt_to_hf(c, max_length(block_trunk(c), context, 1024)),
        **mlp_to_hf(c),
        "tie_word_embeddings": is_tied(c),
        **labels_to_hf(c.head),
    }


def from_hf(hf: HFConfig, head: config.Head) -> config.Transformer:
    trunk = gpt_from_hf(hf, mlp_from_hf(hf, "gelu_new"), norm=config.Norm(eps=norm_eps_from_hf(hf)))
    return config.Transformer(embed=decoder_embedding(hf, head), trunk=trunk, head=head, init="gpt2")


HEADS = decoder_classes("GPT2", True, SEQUENCE_CLASS, TOKEN_CLASS, QA_CLASS, speaks="LMHeadModel")
register_family(
    Family("gpt2", "GPT-2", HEADS, to_hf, from_hf, "n_positions", "transformer.", body_prefix=("GPT2Model",))
)
