"""GPT-2 (Radford et al. 2019): causal, pre-norm, learned positions, biases everywhere but at the head."""

from typing import Any

from regard import config
from regard.hub.families.decoders import LABEL, SPAN, TAGS, classes, is_tied, words
from regard.hub.families.gpts import hear_eps, hear_gpt, hear_thinking, say_gpt, say_thinking
from regard.hub.families.settled import length, of_blocks
from regard.hub.families.table import Family, enter
from regard.hub.families.theirs import Theirs, say_labels


def say(c: config.Transformer, context: int | None) -> dict[str, Any]:
    return {**say_gpt(c, length(of_blocks(c), context, 1024)), **say_thinking(c), "tie_word_embeddings": is_tied(c),
            **say_labels(c.head)}  # fmt: skip


def hear(theirs: Theirs, head: config.Head) -> config.Transformer:
    trunk = hear_gpt(theirs, hear_thinking(theirs, "gelu_new"), norm=config.Norm(eps=hear_eps(theirs)))
    return config.Transformer(embed=words(theirs, head), trunk=trunk, head=head, init="gpt2")


HEADS = classes("GPT2", True, LABEL, TAGS, SPAN, speaks="LMHeadModel")
enter(Family("gpt2", "GPT-2", HEADS, say, hear, "n_positions", "transformer.", alone=("GPT2Model",)))
