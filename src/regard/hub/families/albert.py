"""ALBERT (Lan et al. 2020): BERT with narrow embeddings and one layer shared by the whole depth."""

from typing import Any

from regard import config
from regard.hub.families.canonical import block_trunk
from regard.hub.families.encoder_common import (
    body_head,
    classification_head,
    encoder_from_hf,
    encoder_qa_head,
    encoder_to_hf,
    tied_mlm_head,
    token_classification_head,
)
from regard.hub.families.hf_config import HFConfig
from regard.hub.families.registry import Family, register_family


def to_hf(c: config.Transformer, context: int | None) -> dict[str, Any]:
    trunk = block_trunk(c)
    return encoder_to_hf(c) | {"embedding_size": trunk.embed_dim or trunk.dim}


def from_hf(hf: HFConfig, head: config.Head) -> config.Transformer:
    hf.require("num_hidden_groups", 1)
    hf.require("inner_group_num", 1)
    width = hf.get_int("embedding_size", 128)
    if width == hf.get_int("hidden_size"):
        raise hf.error("embedding_size", "as wide as hidden_size, with a map between them that models here only "
                           "have where widths differ")  # fmt: skip
    hf = hf.default(hidden_act="gelu_new", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return encoder_from_hf(hf, head, embed_dim=width, share_layers=True)


def pretraining_head(hf: HFConfig) -> config.Head:
    """Masked LM and sentence order prediction."""
    return config.PretrainingHead(lm=tied_mlm_head(hf), pooling=classification_head(hf))


HEADS = {
    "AlbertForMaskedLM": tied_mlm_head,
    "AlbertModel": body_head,
    "AlbertForPreTraining": pretraining_head,
    "AlbertForSequenceClassification": classification_head,
    "AlbertForTokenClassification": token_classification_head,
    "AlbertForQuestionAnswering": encoder_qa_head,
}
register_family(Family("albert", "ALBERT", HEADS, to_hf, from_hf, prefix="albert.", body_prefix=("AlbertModel",)))
