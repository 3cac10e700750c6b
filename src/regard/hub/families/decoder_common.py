"""Shared by decoder families: the heads for fine-tuning, and the sliding window of each layer."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from regard import config
from regard.core.masks import And, Causal, Window, mask
from regard.hub.families.hf_config import HFConfig, body_without_head, num_labels

DEEPEST = 4096  # layers; some configs list the attention type of each


# ---------------------------------------------------------------- heads


def causal_lm_head(hf: HFConfig, tied: bool) -> config.Head:
    """The LM head; `tied` is the default of the family."""
    return config.LMHead(tied=hf.get_bool("tie_word_embeddings", tied))


def sequence_head(hf: HFConfig) -> config.Head:
    """Sequence classification by the last token, the only one that attends to all others."""
    return config.PoolingHead(pooling="last", out=num_labels(hf), bias=False)


def token_head(hf: HFConfig) -> config.Head:
    return config.TokenHead(out=num_labels(hf))


def qa_head(hf: HFConfig) -> config.Head:
    """Start and end logits of an answer at each token."""
    return config.TokenHead(out=2)


SEQUENCE_CLASS, TOKEN_CLASS, QA_CLASS = "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"
OTHERS = {SEQUENCE_CLASS: sequence_head, TOKEN_CLASS: token_head, QA_CLASS: qa_head}


def decoder_classes(
    name: str, tied: bool, *others: str, speaks: str = "ForCausalLM"
) -> dict[str, Callable[[HFConfig], config.Head]]:
    """The classes of a decoder in `transformers`, each with its head: the LM named by `speaks`, the body, and the
    others."""
    heads: dict[str, Callable[[HFConfig], config.Head]] = {
        speaks: partial(causal_lm_head, tied=tied),
        "Model": body_without_head,
    }
    return {f"{name}{kind}": head for kind, head in (heads | {each: OTHERS[each] for each in others}).items()}


def decoder_embedding(hf: HFConfig, head: config.Head) -> config.TextEmbedding:
    """The text embedding. A head on the last token needs the padding id even without an attention mask."""
    vocab, pad = hf.get_int("vocab_size"), hf.get("pad_token_id")
    known = isinstance(head, config.PoolingHead) and type(pad) is int and 0 <= pad < vocab
    return config.TextEmbedding(vocab=vocab, pad_id=pad if known else None)


def is_tied(c: config.Transformer) -> bool:
    return isinstance(c.head, config.LMHead) and c.head.tied


# ---------------------------------------------------------------- windows


def layer_mask(window: int | None) -> str:
    """The mask of a layer that attends to `window` tokens, itself included; full causal for None."""
    return "causal" if window is None else f"causal & window({window - 1})"


def layer_windows(trunk: config.Trunk) -> list[int | None]:
    """The window of each layer; None for any other mask, for which the round trip of the config then differs."""
    seen = [window_of_mask(text) for text in trunk.masks]
    return [seen[layer % len(seen)] for layer in range(trunk.depth)]


def window_of_mask(text: str) -> int | None:
    match mask(text):
        case And(terms=(Causal(), Window(radius=radius))):
            return int(radius) + 1
    return None


def layer_count(hf: HFConfig, key: str) -> int:
    depth = hf.get_int(key)
    if depth > DEEPEST:
        raise hf.error(key, f"whose layers see different things has at most {DEEPEST:,} of them")
    return depth


def check_layer_types(hf: HFConfig, key: str, found: Any, known: Sequence[str], depth: int) -> list[str]:
    """Check that a list has one of the known types for each layer."""
    words = found if isinstance(found, list) else []
    if strange := [str(each)[:40] for each in words if each not in known]:
        raise hf.error(key, f"{strange[0]!r} is not known; expected {' or '.join(known)}")
    if len(words) != depth:
        raise hf.error(key, f"expected {' or '.join(known)} for each of {depth} layers")
    return words
