"""ELECTRA (Clark et al. 2020): BERT with narrow embeddings, trained to tell which words were replaced."""

from dataclasses import replace
from typing import Any

from regard import config
from regard.hub.families.encoders import classes, ends, hear_encoder, say_encoder, tags, with_gelu, words
from regard.hub.families.settled import of_blocks
from regard.hub.families.table import Family, enter
from regard.hub.families.theirs import ACTIVATIONS, Theirs, bare


def say(c: config.Transformer, context: int | None) -> dict[str, Any]:
    trunk, said = of_blocks(c), say_encoder(c)
    if isinstance(c.head, config.Each) and c.head.dense:  # a yes or no for every token is no label
        said = {key: value for key, value in said.items() if key not in ("id2label", "label2id")}
    return said | {"embedding_size": trunk.width or trunk.dim}


def hear(theirs: Theirs, head: config.Head) -> config.Transformer:
    return hear_encoder(theirs, head, width=theirs.whole("embedding_size", 128))


def replaced(theirs: Theirs) -> config.Head:
    """One number for every token: whether another stood there."""
    return config.Each(out=1, dense=True, activation=theirs.word("hidden_act", ACTIVATIONS, "gelu"))


def vocabulary(theirs: Theirs) -> config.Head:
    return with_gelu(theirs, words(theirs))


def gelu_classes(theirs: Theirs) -> config.Head:
    return replace(classes(theirs), activation="gelu")


HEADS = {
    "ElectraForPreTraining": replaced,
    "ElectraForMaskedLM": vocabulary,
    "ElectraModel": bare,
    "ElectraForSequenceClassification": gelu_classes,
    "ElectraForTokenClassification": tags,
    "ElectraForQuestionAnswering": ends,
}
enter(Family("electra", "ELECTRA", HEADS, say, hear, prefix="electra.", alone=("ElectraModel",)))
