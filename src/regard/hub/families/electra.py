"""ELECTRA (Clark et al. 2020): BERT with narrow embeddings, trained to detect replaced tokens."""

from dataclasses import replace
from typing import Any

from regard import config
from regard.hub.families.canonical import block_trunk
from regard.hub.families.encoder_common import (
    classification_head,
    encoder_from_hf,
    encoder_qa_head,
    encoder_to_hf,
    mlm_head,
    token_classification_head,
    with_gelu_head,
)
from regard.hub.families.hf_config import HF_ACTIVATIONS, HFConfig, body_without_head
from regard.hub.families.registry import Family, register_family


def to_hf(c: config.Transformer, context: int | None) -> dict[str, Any]:
    trunk, said = block_trunk(c), encoder_to_hf(c)
    if isinstance(c.head, config.TokenHead) and c.head.dense:  # the discriminator's output is no label
        said = {key: value for key, value in said.items() if key not in ("id2label", "label2id")}
    return said | {"embedding_size": trunk.embed_dim or trunk.dim}


def from_hf(hf: HFConfig, head: config.Head) -> config.Transformer:
    return encoder_from_hf(hf, head, embed_dim=hf.get_int("embedding_size", 128))


def discriminator_head(hf: HFConfig) -> config.Head:
    """The discriminator, one logit a token: was it replaced?"""
    return config.TokenHead(out=1, dense=True, activation=hf.get_str("hidden_act", HF_ACTIVATIONS, "gelu"))


def generator_head(hf: HFConfig) -> config.Head:
    return with_gelu_head(hf, mlm_head(hf))


def gelu_classification_head(hf: HFConfig) -> config.Head:
    return replace(classification_head(hf), activation="gelu")


HEADS = {
    "ElectraForPreTraining": discriminator_head,
    "ElectraForMaskedLM": generator_head,
    "ElectraModel": body_without_head,
    "ElectraForSequenceClassification": gelu_classification_head,
    "ElectraForTokenClassification": token_classification_head,
    "ElectraForQuestionAnswering": encoder_qa_head,
}
register_family(Family("electra", "ELECTRA", HEADS, to_hf, from_hf, prefix="electra.", body_prefix=("ElectraModel",)))
