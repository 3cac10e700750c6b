"""DistilBERT (Sanh et al. 2019): BERT with half of its layers, without segments and pooler, in words of its own."""

from dataclasses import replace
from typing import Any

from regard import config
from regard.hub.families.encoders import classes, ends, say_places, tags, ties, words
from regard.hub.families.settled import of_blocks
from regard.hub.families.table import Family, enter
from regard.hub.families.theirs import ACTIVATIONS, Theirs, bare, say_labels, their_word


def say(c: config.Transformer, context: int | None) -> dict[str, Any]:
    trunk = of_blocks(c)
    return {
        "vocab_size": c.embed.vocab,
        "dim": trunk.dim,
        "n_layers": trunk.depth,
        "n_heads": trunk.heads[0],
        "hidden_dim": trunk.mlp.hidden or 4 * trunk.dim,
        "activation": their_word(trunk.mlp.activation, ACTIVATIONS),
        "dropout": trunk.dropout.sublayer,
        "attention_dropout": trunk.dropout.attention,
        "max_position_embeddings": say_places(trunk.position)[0],
        "tie_word_embeddings": ties(c.head),
        **say_labels(c.head),
    }


def hear(theirs: Theirs, head: config.Head) -> config.Transformer:
    """Sinusoidal places (`sinusoidal_pos_embds`) are stored as trained ones are, and read as these."""
    rate = theirs.number("dropout", 0.1)
    trunk = config.Trunk(
        dim=theirs.whole("dim"),
        depth=theirs.whole("n_layers"),
        position=config.Learned(length=theirs.whole("max_position_embeddings", 512)),
        attention=config.Attention(heads=theirs.whole("n_heads")),
        mlp=config.MLP(
            hidden=theirs.whole("hidden_dim"), activation=theirs.word("activation", ACTIVATIONS, "gelu")
        ),
        norm=config.Norm(eps=1e-12),
        place="post",
        embed_norm=True,
        dropout=config.Dropout(embed=rate, attention=theirs.number("attention_dropout", 0.1), sublayer=rate),
    )  # fmt: skip
    return config.Transformer(embed=config.Embed(vocab=theirs.whole("vocab_size")), trunk=trunk, head=head, init="bert")


def relu_classes(theirs: Theirs) -> config.Head:
    return replace(classes(theirs), activation="relu")


HEADS = {
    "DistilBertForMaskedLM": words,
    "DistilBertModel": bare,
    "DistilBertForSequenceClassification": relu_classes,
    "DistilBertForTokenClassification": tags,
    "DistilBertForQuestionAnswering": ends,
}
enter(Family("distilbert", "DistilBERT", HEADS, say, hear, prefix="distilbert.", alone=("DistilBertModel",)))
