"""BART (Lewis et al. 2020): the original encoder-decoder, with learned positions and a norm on embeddings.

A sequence is classified by the decoder's last vector: the decoder reads the source shifted by one position, as
`model(target, source=source)`, where the target is the start token and the source without its last token.
"""

from dataclasses import replace
from typing import Any

from regard import config
from regard.hub.families.canonical import max_length
from regard.hub.families.encoder_decoder_common import both_trunks, embedding_from_hf, trunk_from_hf, trunks_to_hf
from regard.hub.families.hf_config import HFConfig, body_without_head, labels_to_hf
from regard.hub.families.hf_config import num_labels as labels
from regard.hub.families.registry import Family, register_family

OFFSET = 2  # positions begin at 2: padding once had a position of its own


def bart_to_hf(c: config.Transformer, context: int | None) -> dict[str, Any]:
    longest = max_length(both_trunks(c)[1], context, 1024)
    tied = not isinstance(c.head, config.LMHead) or c.head.tied
    words = {"max_position_embeddings": longest, "tie_word_embeddings": tied}
    ends = {} if c.embed.eos_id is None else {"eos_token_id": c.embed.eos_id}
    return trunks_to_hf(c) | words | ends | labels_to_hf(c.head)


def bart_from_hf(hf: HFConfig, head: config.Head, norm_placement: str = "post") -> config.Transformer:
    hf.require("tie_word_embeddings", True)
    position = config.LearnedPosition(length=hf.get_int("max_position_embeddings", 1024), offset=OFFSET)
    around: dict[str, Any] = {"position": position, "norm_placement": norm_placement, "embed_norm": True}
    embed = embedding_from_hf(hf)
    if isinstance(head, config.PoolingHead):  # `transformers` pools at the end token, which is the last token of both
        embed = replace(embed, eos_id=eos_id(hf))
    return config.Transformer(
        embed=embed,
        trunk=trunk_from_hf(hf, "decoder", **around),
        encoder=config.Encoder(trunk=trunk_from_hf(hf, "encoder", **around)),
        head=head,
        init="bert",
    )


def eos_id(hf: HFConfig) -> int:
    found = hf.get("eos_token_id", 2)
    if type(found) is not int:
        raise hf.error("eos_token_id", "expected one whole number")
    return found


def lm_head(hf: HFConfig) -> config.Head:
    return config.LMHead(bias=True)


def bart_classification_head(hf: HFConfig, usual: int = 3) -> config.Head:
    """Three labels by default: entailment, contradiction, neutral."""
    many = labels(hf) if hf.get("id2label") or hf.get("num_labels") else usual
    return config.PoolingHead(pooling="last", dense=True, out=many)


def qa_head(hf: HFConfig) -> config.Head:
    return config.TokenHead(out=2)


def bart_heads(name: str) -> dict[str, Any]:
    classes = {
        "ForConditionalGeneration": lm_head,
        "Model": body_without_head,
        "ForSequenceClassification": bart_classification_head,
        "ForQuestionAnswering": qa_head,
    }
    return {name + each: head for each, head in classes.items()}


register_family(
    Family("bart", "BART", bart_heads("Bart"), bart_to_hf, bart_from_hf, prefix="model.", body_prefix=("BartModel",))
)
