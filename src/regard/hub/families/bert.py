"""BERT (Devlin et al. 2019): bidirectional, post-norm, learned positions, segments; masked LM and next sentence."""

from typing import Any

from regard import config
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
    return encoder_to_hf(c)


def from_hf(hf: HFConfig, head: config.Head) -> config.Transformer:
    return encoder_from_hf(hf, head)


def next_sentence_head(hf: HFConfig) -> config.PoolingHead:
    """Next sentence prediction: does the second sentence follow the first?"""
    return config.PoolingHead(dense=True, out=2)


def pretraining_head(hf: HFConfig) -> config.Head:
    return config.PretrainingHead(lm=tied_mlm_head(hf), pooling=next_sentence_head(hf))


HEADS = {
    "BertForMaskedLM": tied_mlm_head,
    "BertModel": body_head,
    "BertForPreTraining": pretraining_head,
    "BertForSequenceClassification": classification_head,
    "BertForTokenClassification": token_classification_head,
    "BertForQuestionAnswering": encoder_qa_head,
    "BertForNextSentencePrediction": next_sentence_head,
}
register_family(Family("bert", "BERT", HEADS, to_hf, from_hf, prefix="bert.", body_prefix=("BertModel",)))
