"""OpenAI GPT (Radford et al. 2018): causal, post-norm, learned positions, biases everywhere but at the head."""

from typing import Any

from regard import config
from regard.hub.families.canonical import block_trunk, max_length
from regard.hub.families.decoder_common import SEQUENCE_CLASS, decoder_classes, decoder_embedding, is_tied
from regard.hub.families.gpt_common import gpt_from_hf, gpt_to_hf, norm_eps_from_hf
from regard.hub.families.hf_config import HFConfig, hf_word, labels_to_hf
from regard.hub.families.registry import Family, register_family

AFN = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}  # its gelu is the tanh approximation


def to_hf(c: config.Transformer, context: int | None) -> dict[str, Any]:
    return {
        **gpt_to_hf(c, max_length(block_trunk(c), context, 512)),
        "afn": hf_word(block_trunk(c).mlp.activation, AFN),
        "tie_word_embeddings": is_tied(c),
        **labels_to_hf(c.head),
    }


def from_hf(hf: HFConfig, head: config.Head) -> config.Transformer:
    mlp = config.MLP(hidden=4 * hf.get_int("n_embd"), activation=hf.get_str("afn", AFN, "gelu"))
    trunk = gpt_from_hf(hf, mlp, norm=config.Norm(eps=norm_eps_from_hf(hf)), norm_placement="post")
    return config.Transformer(embed=decoder_embedding(hf, head), trunk=trunk, head=head, init="bert")


HEADS = decoder_classes("OpenAIGPT", True, SEQUENCE_CLASS, speaks="LMHeadModel")
register_family(
    Family(
        "openai-gpt",
        "OpenAI GPT",
        HEADS,
        to_hf,
        from_hf,
        "n_positions",
        "transformer.",
        body_prefix=("OpenAIGPTModel",),
    )
)
