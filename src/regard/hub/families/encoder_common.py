"""Shared by BERT and related families: post-norm, a norm after the embeddings, learned positions; and their heads."""

from dataclasses import replace
from typing import Any

from regard import config
from regard.hub.families.canonical import block_trunk
from regard.hub.families.hf_config import HF_ACTIVATIONS, HFConfig, hf_word, labels_to_hf, num_labels


def encoder_to_hf(c: config.Transformer) -> dict[str, Any]:
    trunk, head = block_trunk(c), c.head
    assert isinstance(c.embed, config.TextEmbedding)  # the family's front end
    length, offset = positions_to_hf(trunk.position)
    return {
        "vocab_size": c.embed.vocab,
        "hidden_size": trunk.dim,
        "num_hidden_layers": trunk.depth,
        "num_attention_heads": trunk.heads[0],
        "intermediate_size": trunk.mlp.hidden or 4 * trunk.dim,
        "hidden_act": hf_word(trunk.mlp.activation, HF_ACTIVATIONS),
        "hidden_dropout_prob": trunk.dropout.residual,
        "attention_probs_dropout_prob": trunk.dropout.attention,
        "max_position_embeddings": length + offset,
        "type_vocab_size": c.embed.segments,
        "layer_norm_eps": trunk.norm.eps,
        "tie_word_embeddings": is_tied_head(head),
        **({"add_pooling_layer": False} if isinstance(head, config.NoHead) else {}),  # for the round trip; not written
        **labels_to_hf(head.pooling if isinstance(head, config.PretrainingHead) else head),
    }


def positions_to_hf(c: config.Position) -> tuple[int, int]:
    """The number of learned positions and the offset of the first; these families have one dimension only."""
    return (c.length, c.offset) if isinstance(c, config.LearnedPosition) and isinstance(c.length, int) else (512, 0)


def is_tied_head(c: config.Head) -> bool:
    """Whether the LM head is tied to the embedding; True without an LM head, since a new one would be tied."""
    words = c.lm if isinstance(c, config.PretrainingHead) else c
    return words.tied if isinstance(words, config.LMHead) else True


def encoder_from_hf(hf: HFConfig, head: config.Head, offset: int = 0, **trunk: Any) -> config.Transformer:
    """The config of a BERT-like encoder; `offset` positions come before the first, `trunk` has the family's other
    settings."""
    hf.require("is_decoder", False)
    hf.require("add_cross_attention", False)
    hf.require("position_embedding_type", "absolute")
    activation = hf.get_str("hidden_act", HF_ACTIVATIONS, "gelu")
    rate = hf.get_float("hidden_dropout_prob", 0.1)
    return config.Transformer(
        embed=config.TextEmbedding(vocab=hf.get_int("vocab_size"), segments=hf.get_int("type_vocab_size", 2)),
        trunk=config.Trunk(
            dim=hf.get_int("hidden_size"),
            depth=hf.get_int("num_hidden_layers"),
            position=config.LearnedPosition(length=hf.get_int("max_position_embeddings", 512) - offset, offset=offset),
            attention=config.Attention(heads=hf.get_int("num_attention_heads")),
            mlp=config.MLP(hidden=hf.get_int("intermediate_size"), activation=activation),
            norm=config.Norm(eps=hf.get_float("layer_norm_eps", 1e-12)),
            norm_placement="post",
            embed_norm=True,
            dropout=config.Dropout(
                embed=rate, attention=hf.get_float("attention_probs_dropout_prob", 0.1), residual=rate
            ),
            **trunk,
        ),
        head=head,
        init="bert",
    )


# ---------------------------------------------------------------- heads


def body_head(hf: HFConfig) -> config.Head:
    """The head of the body class: the vectors of all tokens, and a pooled one where there is a pooler."""
    if not hf.get_bool("add_pooling_layer", True):
        return config.NoHead()
    return config.PretrainingHead(lm=config.NoHead(), pooling=config.PoolingHead(dense=True))


def mlm_head(hf: HFConfig) -> config.LMHead:
    """The masked LM head: a dense layer with the trunk's activation and a norm, then logits over the vocabulary."""
    return config.LMHead(transform=True, bias=True, tied=hf.get_bool("tie_word_embeddings", True))


def tied_mlm_head(hf: HFConfig) -> config.LMHead:
    """The masked LM head, always tied: `transformers` would store two biases for an untied one, one of them unused."""
    hf.require("tie_word_embeddings", True)
    return mlm_head(hf)


def with_gelu_head(hf: HFConfig, head: config.LMHead) -> config.LMHead:
    """The head with GELU in its dense layer, whatever the trunk's activation."""
    same = hf.get_str("hidden_act", HF_ACTIVATIONS, "gelu") == "gelu"
    return head if same else replace(head, activation="gelu")


def classification_head(hf: HFConfig) -> config.PoolingHead:
    """Sequence classification through the pooler or a layer like it."""
    return config.PoolingHead(dense=True, out=num_labels(hf))


def token_classification_head(hf: HFConfig) -> config.Head:
    """Token classification."""
    return config.TokenHead(out=num_labels(hf))


def encoder_qa_head(hf: HFConfig) -> config.Head:
    """Start and end logits of an answer at every token."""
    if num_labels(hf) != 2:
        raise hf.error("id2label", "expected two labels: an answer has a first and a last token")
    return config.TokenHead(out=2)
