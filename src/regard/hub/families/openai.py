"""OpenAI GPT (Radford et al. 2018): causal, post-norm, learned positions, biases everywhere but at the head."""

from typing import Any

from regard import config
from regard.hub.families.decoders import LABEL, classes, is_tied, words
from regard.hub.families.gpts import hear_eps, hear_gpt, say_gpt
from regard.hub.families.settled import length, of_blocks
from regard.hub.families.table import Family, enter
from regard.hub.families.theirs import Theirs, say_labels, their_word

AFN = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}  # what it calls gelu is the one by tanh


def say(c: config.Transformer, context: int | None) -> dict[str, Any]:
    return {**say_gpt(c, length(of_blocks(c), context, 512)), "afn": their_word(of_blocks(c).mlp.activation, AFN),
            "tie_word_embeddings": is_tied(c), **say_labels(c.head)}  # fmt: skip


def hear(theirs: Theirs, head: config.Head) -> config.Transformer:
    mlp = config.MLP(hidden=4 * theirs.whole("n_embd"), activation=theirs.word("afn", AFN, "gelu"))
    trunk = hear_gpt(theirs, mlp, norm=config.Norm(eps=hear_eps(theirs)), place="post")
    return config.Transformer(embed=words(theirs, head), trunk=trunk, head=head, init="bert")


HEADS = classes("OpenAIGPT", True, LABEL, speaks="LMHeadModel")
enter(Family("openai-gpt", "OpenAI GPT", HEADS, say, hear, "n_positions", "transformer.", alone=("OpenAIGPTModel",)))
