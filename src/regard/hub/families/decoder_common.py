"""Shared by decoders: the heads they are fine-tuned with, and the sliding window of each layer."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from regard import config
from regard.core.masks import And, Causal, Window, mask
from regard.hub.families.hf_config import HFConfig, body_without_head, num_labels

DEEPEST = 4096  # layers; what each of them sees is said one by one


# ---------------------------------------------------------------- heads


def causal_lm_head(hf: HFConfig, tied: bool) -> config.Head:
    """What comes next; `tied` unless they say something else."""
    return config.LMHead(tied=hf.get_bool("tie_word_embeddings", tied))


def sequence_head(hf: HFConfig) -> config.Head:
    """A class for the whole text, by its last token: the only one that has seen all the others."""
    return config.PoolingHead(pooling="last", out=num_labels(hf), bias=False)


def token_head(hf: HFConfig) -> config.Head:
    return config.TokenHead(out=num_labels(hf))


def qa_head(hf: HFConfig) -> config.Head:
    """How well an answer begins and ends at each token."""
    return config.TokenHead(out=2)


SEQUENCE_CLASS, TOKEN_CLASS, QA_CLASS = "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"
OTHERS = {SEQUENCE_CLASS: sequence_head, TOKEN_CLASS: token_head, QA_CLASS: qa_head}


def decoder_classes(
    name: str, tied: bool, *others: str, speaks: str = "ForCausalLM"
) -> dict[str, Callable[[HFConfig], config.Head]]:
    """Their classes of a decoder and the head of each: the one that `speaks`, the body, and these others."""
    heads: dict[str, Callable[[HFConfig], config.Head]] = {
        speaks: partial(causal_lm_head, tied=tied),
        "Model": body_without_head,
    }
    return {f"{name}{kind}": head for kind, head in (heads | {each: OTHERS[each] for each in others}).items()}


def decoder_embedding(hf: HFConfig, head: config.Head) -> config.TextEmbedding:
    """The front end. A head on the last token must know padding, even where no attention mask is given."""
    vocab, pad = hf.get_int("vocab_size"), hf.get("pad_token_id")
    known = isinstance(head, config.PoolingHead) and type(pad) is int and 0 <= pad < vocab
    return config.TextEmbedding(vocab=vocab, pad_id=pad if known else None)


def is_tied(c: config.Transformer) -> bool:
    return isinstance(c.head, config.LMHead) and c.head.tied


# ---------------------------------------------------------------- windows


def layer_mask(window: int | None) -> str:
    """The mask of a layer that sees `window` tokens, itself among them; all before it where that is None."""
    return "causal" if window is None else f"causal & window({window - 1})"


def layer_windows(trunk: config.Trunk) -> list[int | None]:
    """How many tokens each layer sees; a mask that is no such window is said as none, which is heard as another."""
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
    """A list with one of the known words for each layer."""
    words = found if isinstance(found, list) else []
    if strange := [str(each)[:40] for each in words if each not in known]:
        raise hf.error(key, f"{strange[0]!r} is not known; expected {' or '.join(known)}")
    if len(words) != depth:
        raise hf.error(key, f"expected {' or '.join(known)} for each of {depth} layers")
    return words
