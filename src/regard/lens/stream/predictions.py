"""Predictions of a model at its positions: log-probabilities, which positions count, and labels of what is predicted.

Letters: B rows, N positions (one for a head that pools), V words or classes.
"""

from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.core.tokens import TokenLayout
from regard.lens.prompt import Prompt, token_id
from regard.lens.residual import Recording, Unembedding, find_head, logit_count
from regard.models.heads import LMHead, PoolingHead

MOST_LOGITS = 1 << 24  # numbers in one table of logits; longer inputs are decoded some positions at a time


def model_log_probs(run: Recording, part: slice = slice(None)) -> Tensor:  # (B, n, V)
    """What the model itself predicts at some positions."""
    return log_probabilities(run.logits(part))


def log_probabilities(logits: Tensor) -> Tensor:
    return (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)


def real_positions(decode: Unembedding) -> Tensor:  # (B, N)
    """True where a prediction counts: not at padding. A head that pools predicts once for each row."""
    tokens: TokenLayout = decode.tokens
    if decode.pools or tokens.is_real is None:
        count = 1 if decode.pools else tokens.count
        return torch.ones(tokens.batch, count, dtype=torch.bool, device=tokens.order.device)
    return tokens.is_real


def position_slices(decode: Unembedding, most: int | None = None) -> list[slice]:
    """Positions that are decoded together, so that tables of logits stay small; a head that pools needs them all."""
    if decode.pools:
        return [slice(None)]
    step = max(1, (most or MOST_LOGITS) // (decode.tokens.batch * logit_count(decode.model)))
    return [slice(start, start + step) for start in range(0, decode.tokens.count, step)]


# ---------------------------------------------------------------- labels


def position_labels(model: Any, prompt: Prompt, count: int) -> tuple[str, ...]:
    """A label for each position: the token that is read there, how a head pools, or a number."""
    head = find_head(model)
    if isinstance(head, PoolingHead):
        return (head.c.pooling,)
    return prompt.labels if len(prompt.labels) == count else tuple(map(str, range(count)))


def prediction_label(model: Any, place: int) -> str:
    """The text of a word or the name of a class; its number where it has none."""
    tokenizer = getattr(model, "output_tokenizer", None)
    if isinstance(find_head(model), LMHead):
        return tokenizer.token_text(place) if tokenizer is not None and place < len(tokenizer) else str(place)
    return class_names(model, logit_count(model)).get(place, str(place))


def class_names(model: Any, count: int) -> dict[int, str]:
    """Names of so many classes: those of training, or of the config.json that the model was read with."""
    known = getattr(getattr(model, "task", None), "classes", None) or ()
    if len(known) == count:
        return dict(enumerate(map(str, known)))
    table = getattr(getattr(model, "source_folder", None), "said", {}).get("id2label")
    table = table if isinstance(table, dict) else {}
    return {place: str(table[str(place)]) for place in range(count) if str(place) in table}


def prediction_id(model: Any, name: str | int, setting: str = "watch") -> int:
    """The number of a word or a class, given by its text or its number; an error names the `setting`."""
    if isinstance(find_head(model), LMHead) and isinstance(name, str):
        return token_id(model, name)
    logits = logit_count(model)
    known = {text: place for place, text in class_names(model, logits).items()}
    place = known.get(name, -1) if isinstance(name, str) else name
    if not 0 <= place < logits:
        raise ConfigError(f"{setting}: {name!r} is not among what this model predicts; give a number below {logits}"
                          + (f", or one of {', '.join(known)}" if known else ""))  # fmt: skip
    return place
