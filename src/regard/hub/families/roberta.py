"""RoBERTa (Liu et al. 2019): BERT trained longer; positions begin after the padding id."""

from typing import Any

from regard import config
from regard.hub.families import encoder_common
from regard.hub.families.canonical import block_trunk
from regard.hub.families.encoder_common import (
    body_head,
    classification_head,
    encoder_from_hf,
    encoder_qa_head,
    encoder_to_hf,
    positions_to_hf,
    token_classification_head,
)
from regard.hub.families.hf_config import HFConfig
from regard.hub.families.registry import Family, register_family


def to_hf(c: config.Transformer, context: int | None) -> dict[str, Any]:
    pad = positions_to_hf(block_trunk(c).position)[1] - 1
    if c.embed.pad_id not in (None, pad):
        raise ValueError(
            f"embed.pad_id is {c.embed.pad_id}, where RoBERTa with trunk.position.offset {pad + 1} has {pad}"
        )
    return encoder_to_hf(c) | {"pad_token_id": pad}


def from_hf(hf: HFConfig, head: config.Head) -> config.Transformer:
    pad, length = hf.get("pad_token_id", 1), hf.get_int("max_position_embeddings", 512)
    if type(pad) is not int or not 0 <= pad < length - 1:
        raise hf.error("pad_token_id", f"places begin after it, and there are {length} (max_position_embeddings); "
                           f"expected a whole number below {length - 1}")  # fmt: skip
    return encoder_from_hf(hf, head, offset=pad + 1)


def lm_head(hf: HFConfig) -> config.Head:
    return encoder_common.with_gelu_head(hf, encoder_common.tied_mlm_head(hf))


HEADS = {
    "RobertaForMaskedLM": lm_head,
    "RobertaModel": body_head,
    "RobertaForSequenceClassification": classification_head,
    "RobertaForTokenClassification": token_classification_head,
    "RobertaForQuestionAnswering": encoder_qa_head,
}
register_family(Family("roberta", "RoBERTa", HEADS, to_hf, from_hf, prefix="roberta.", body_prefix=("RobertaModel",)))
