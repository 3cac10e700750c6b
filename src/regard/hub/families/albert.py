"""ALBERT (Lan et al. 2020): BERT with narrow embeddings and one layer that is used again and again."""

from typing import Any

from regard import config
from regard.hub.families.encoders import body, classes, ends, hear_encoder, say_encoder, tags, tied_words
from regard.hub.families.settled import of_blocks
from regard.hub.families.table import Family, enter
from regard.hub.families.theirs import Theirs


def say(c: config.Transformer, context: int | None) -> dict[str, Any]:
    trunk = of_blocks(c)
    return say_encoder(c) | {"embedding_size": trunk.width or trunk.dim}


def hear(theirs: Theirs, head: config.Head) -> config.Transformer:
    theirs.only("num_hidden_groups", 1)
    theirs.only("inner_group_num", 1)
    width = theirs.whole("embedding_size", 128)
    if width == theirs.whole("hidden_size"):
        raise theirs.wrong("embedding_size", "as wide as hidden_size, with a map between them that models here only "
                           "have where widths differ")  # fmt: skip
    theirs = theirs.usually(hidden_act="gelu_new", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return hear_encoder(theirs, head, width=width, shared=True)


def both(theirs: Theirs) -> config.Head:
    """Words, and which of two sentences was the first."""
    return config.Both(vocabulary=tied_words(theirs), pooled=classes(theirs))


HEADS = {
    "AlbertForMaskedLM": tied_words,
    "AlbertModel": body,
    "AlbertForPreTraining": both,
    "AlbertForSequenceClassification": classes,
    "AlbertForTokenClassification": tags,
    "AlbertForQuestionAnswering": ends,
}
enter(Family("albert", "ALBERT", HEADS, say, hear, prefix="albert.", alone=("AlbertModel",)))
