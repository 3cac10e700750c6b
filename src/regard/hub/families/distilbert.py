"""DistilBERT (Sanh et al. 2019): BERT with half its layers, without segments and pooler, with its own config keys."""

from dataclasses import replace
from typing import Any

from regard import config
from regard.hub.families.canonical import block_trunk
from regard.hub.families.encoder_common import (
    classification_head,
    encoder_qa_head,
    is_tied_head,
    mlm_head,
    positions_to_hf,
    token_classification_head,
)
from regard.hub.families.hf_config import HF_ACTIVATIONS, HFConfig, body_without_head, hf_word, labels_to_hf
from regard.hub.families.registry import Family, register_family


def to_hf(c: config.Transformer, context: int | None) -> dict[str, Any]:
    trunk = block_trunk(c)
    return {
        "vocab_size": c.embed.vocab,
        "dim": trunk.dim,
        "n_layers": trunk.depth,
        "n_heads": trunk.heads[0],
        "hidden_dim": trunk.mlp.hidden or 4 * trunk.dim,
        "activation": hf_word(trunk.mlp.activation, HF_ACTIVATIONS),
        "dropout": trunk.dropout.residual,
        "attention_dropout": trunk.dropout.attention,
        "max_position_embeddings": positions_to_hf(trunk.position)[0],
        "tie_word_embeddings": is_tied_head(c.head),
        **labels_to_hf(c.head),
    }


def from_hf(hf: HFConfig, head: config.Head) -> config.Transformer:
    """The DistilBERT config; sinusoidal positions (`sinusoidal_pos_embds`) are stored as learned ones, and loaded as
    such."""
    rate = hf.get_float("dropout", 0.1)
    trunk = config.Trunk(
        dim=hf.get_int("dim"),
        depth=hf.get_int("n_layers"),
        position=config.LearnedPosition(length=hf.get_int("max_position_embeddings", 512)),
        attention=config.Attention(heads=hf.get_int("n_heads")),
        mlp=config.MLP(
            hidden=hf.get_int("hidden_dim"), activation=hf.get_str("activation", HF_ACTIVATIONS, "gelu")
        ),
        norm=config.Norm(eps=1e-12),
        norm_placement="post",
        embed_norm=True,
        dropout=config.Dropout(embed=rate, attention=hf.get_float("attention_dropout", 0.1), residual=rate),
    )  # fmt: skip
    return config.Transformer(
        embed=config.TextEmbedding(vocab=hf.get_int("vocab_size")), trunk=trunk, head=head, init="bert"
    )


def relu_classification_head(hf: HFConfig) -> config.Head:
    return replace(classification_head(hf), activation="relu")


HEADS = {
    "DistilBertForMaskedLM": mlm_head,
    "DistilBertModel": body_without_head,
    "DistilBertForSequenceClassification": relu_classification_head,
    "DistilBertForTokenClassification": token_classification_head,
    "DistilBertForQuestionAnswering": encoder_qa_head,
}
register_family(
    Family("distilbert", "DistilBERT", HEADS, to_hf, from_hf, prefix="distilbert.", body_prefix=("DistilBertModel",))
)
