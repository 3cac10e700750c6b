"""BERT (Devlin et al. 2019): reads both ways, post-norm, learned places, segments; trained on words and on pairs."""

from typing import Any

from regard import config
from regard.hub.families.encoders import body, classes, ends, hear_encoder, say_encoder, tags, tied_words
from regard.hub.families.table import Family, enter
from regard.hub.families.theirs import Theirs


def say(c: config.Transformer, context: int | None) -> dict[str, Any]:
    return say_encoder(c)


def hear(theirs: Theirs, head: config.Head) -> config.Transformer:
    return hear_encoder(theirs, head)


def pair(theirs: Theirs) -> config.Pooled:
    """Whether the second sentence comes after the first."""
    return config.Pooled(dense=True, out=2)


def both(theirs: Theirs) -> config.Head:
    return config.Both(vocabulary=tied_words(theirs), pooled=pair(theirs))


HEADS = {
    "BertForMaskedLM": tied_words,
    "BertModel": body,
    "BertForPreTraining": both,
    "BertForSequenceClassification": classes,
    "BertForTokenClassification": tags,
    "BertForQuestionAnswering": ends,
    "BertForNextSentencePrediction": pair,
}
enter(Family("bert", "BERT", HEADS, say, hear, prefix="bert.", alone=("BertModel",)))
