"""Log-likelihood of texts, token by token, and zero-shot ranking of labels by it.

    text      the     cat     sat
    log p      ·     -2.1    -1.4        the first has no context; the sum is log p of the text (chain rule)

The most probable label after the prompt is chosen. A content-free `calibration_prompt` corrects for labels that are
probable anywhere (Zhao et al. 2021), and `score_per` token or character for their lengths.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.errors import ConfigError, DataError, RunError
from regard.generation.conversation_cache import common_prefix
from regard.generation.limits import check_prompts, context_window, min_prompt_tokens
from regard.generation.session import DAMAGED_LOGITS, inference_mode
from regard.inference.batching import length_batches, run_batched

ENTRIES = 2**26  # entries of a tensor of logits: 256 MiB
Per = Literal["label", "token", "character"]
Logs = list[float | None]


@dataclass(frozen=True, kw_only=True)
class TextLikelihood:
    """The tokens of a text with their log-probabilities (natural logarithm); None for a token without context."""

    text: str
    ids: tuple[int, ...]
    logs: tuple[float | None, ...]

    @property
    def scored(self) -> list[float]:
        return [log for log in self.logs if log is not None]

    @property
    def total(self) -> float:
        """The log-likelihood of the text: the sum over its tokens (chain rule)."""
        return math.fsum(self.scored)  #: S084

    @property
    def perplexity(self) -> float:
        """Perplexity, exp of the mean negative log-likelihood: the number of equally likely tokens of the same
        uncertainty."""
        return math.exp(min(-self.total / len(self.scored), 700.0))


def score_texts(
    model: Any, texts: Sequence[str], progress: Callable[[int], object] | None = None, *,
    names: Sequence[str] | None = None, refuse: Callable[[int, DataError], object] | None = None,
    cut: Callable[[int], object] | None = None,
) -> list[Any]:  # fmt: skip
    """The log-likelihood of each text, token by token, by plain forward passes: a TextLikelihood each.

    A text that cannot be encoded raises, or is None where `refuse` handles the error; one that exceeds the context
    window is truncated where `cut` is called for it. `names` stand in error messages.
    """
    check_language_model(model)
    before, most = leading_tokens(model), context_window(model, model.generation_limits)
    names = names or ([f"text {place}" for place in range(1, len(texts) + 1)] if len(texts) > 1 else ["text"])
    rows: dict[int, list[int]] = {}
    for place, (text, name) in enumerate(zip(texts, names, strict=True)):
        try:
            row = [*before, *encode_text(model, text, f"{name}: ")]
            if cut is not None and most is not None and len(row) - 1 > most:
                cut(place)
                row = row[: most + 1]
            rows[place] = check_scorable(model, row, text, name)
        except DataError as problem:
            if refuse is None:
                raise
            refuse(place, problem)
    logs = dict(zip(rows, token_log_probs(model, list(rows.values()), progress), strict=True))
    return [TextLikelihood(text=text, ids=tuple(rows[place][len(before) :]), logs=tuple(logs[place][len(before) :]))
            if place in rows else None for place, text in enumerate(texts)]  # fmt: skip


def check_scorable(model: Any, row: list[int], text: str, name: str) -> list[int]:
    """Check that a text in ids fits the context window and has at least one token with a context."""
    if len(row) < max(min_prompt_tokens(model), 1) + 1:
        raise DataError(f"{name}: {text!r} is too short: its only token has no context, so it has no "
                        "log-probability; give more of it")  # fmt: skip
    check_text_length(model, len(row) - 1, name)
    check_prompts(model, [row])
    return row


def token_log_probs(
    model: Any, rows: Sequence[Sequence[int]], progress: Callable[[int], object] | None = None
) -> list[Logs]:  # fmt: skip
    """For each row of ids, the log-probability of each id given those before it.

    The last id of a row is not fed, so rows that differ in it alone share a forward pass.
    """
    readers: dict[tuple[int, ...], list[int]] = {}
    for place, row in enumerate(rows):
        readers.setdefault(tuple(row[:-1]), []).append(place)
    check_text_length(model, max(map(len, readers), default=0))
    check_prompts(model, rows)
    found, few, texts = dict[int, Logs](), max(min_prompt_tokens(model), 1), list(readers)

    def run(batch: list[tuple[int, ...]]) -> Iterator[None]:
        for read, table in zip(batch, log_prob_tables(model, batch), strict=True):
            for place in readers[read]:
                said = torch.tensor(rows[place][1:], device=table.device)
                logs: list[float] = table.gather(1, said[:, None])[:, 0].tolist()
                found[place] = [*[None] * few, *logs[few - 1 :]]
            yield None

    batches = length_batches(list(map(len, texts)), ENTRIES // int(model.head.out_features))
    run_batched(model, texts, batches, run, None if progress is None else lambda _: progress(len(found)))
    return [found[place] for place in range(len(rows))]


def log_prob_tables(model: Any, batch: list[tuple[int, ...]]) -> Iterator[Tensor]:  # (N, V) each
    """The log-probabilities after each token of some texts."""
    device, longest = next(model.parameters()).device, max(map(len, batch))
    ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in batch], device=device)
    lengths = torch.tensor([len(text) for text in batch], device=device)
    real = torch.arange(longest, device=device) < lengths[:, None]
    with inference_mode(list(model.modules())):
        logits: Tensor = model(ids, real=None if bool(real.all()) else real)
    for text, row in zip(batch, logits, strict=True):
        row = row[: len(text)]
        if not bool(row.isfinite().all()):
            raise RunError(DAMAGED_LOGITS)
        yield F.log_softmax(row if row.dtype == torch.float64 else row.float(), -1)


# ---------------------------------------------------------------- labels


def rank_labels(
    model: Any, prompts: Sequence[str], labels: Sequence[str], *, score_per: Per = "label",
    calibration_prompt: str | None = None, progress: Callable[[int], object] | None = None,
) -> list[dict[str, float]]:  # fmt: skip
    """For each prompt the probability of every label among these labels, the most probable first."""
    check_language_model(model)
    check_label_list(labels, score_per)
    asked = [*prompts, *([] if calibration_prompt is None else [calibration_prompt])]
    rows = [encode_labels(model, prompt, labels) for prompt in asked]
    logs = iter(token_log_probs(model, [row for _, each in rows for row in each], progress))
    scores = torch.tensor(
        [[label_score(next(logs)[start:], label, score_per) for label in labels] for start, _ in rows]
    ).double()
    scores = scores if calibration_prompt is None else scores[:-1] - scores[-1]
    return [{labels[place]: float(share[place]) for place in share.argsort(descending=True, stable=True).tolist()}
            for share in scores.softmax(-1)]  # fmt: skip  #: S113


def label_score(logs: Logs, label: str, per: str) -> float:
    total = math.fsum(log for log in logs if log is not None)
    return total / {"label": 1, "token": len(logs), "character": len(label)}[per]


def encode_labels(model: Any, prompt: str, labels: Sequence[str]) -> tuple[int, list[list[int]]]:
    """The prompt with each label in ids, and where the first of them differs from the prompt alone.

    Tokens may cross the border: in "It is good" the token " good" contains the last space of the prompt "It is ".
    """
    before, alone = leading_tokens(model), encode_text(model, prompt, "prompt: ") if prompt else []
    wholes = [encode_text(model, prompt + label, "label: ") for label in labels]
    start = min(min(common_prefix(alone, whole), len(whole) - 1) for whole in wholes)
    if not start and alone:  # the border is inside the first token
        wholes, start = [[*alone, *encode_text(model, label, "label: ")] for label in labels], len(alone)
    first = before if start or before else model.with_start_token([])
    return len(first) + start, [[*first, *whole] for whole in wholes]


def check_label_list(labels: Sequence[str], per: str) -> None:
    if isinstance(labels, str) or len(labels) < 2 or "" in labels or len(set(labels)) < len(labels):
        raise ConfigError(f"labels: {labels!r}; give a list of two or more, none of them empty or twice")
    if per not in get_args(Per):
        raise ConfigError(f"score_per: no {per!r}; there are {', '.join(get_args(Per))}")


# ---------------------------------------------------------------- checks


def check_language_model(model: Any) -> None:
    if model.encoder is not None:
        raise ConfigError("this model is an encoder-decoder, and a likelihood needs a decoder; choose "
                          "a decoder")  # fmt: skip
    min_prompt_tokens(model)
    if model.output_tokenizer is None:
        raise DataError("this model has no tokenizer; set model.tokenizer")


def check_text_length(model: Any, longest: int, name: str = "text") -> None:
    most = context_window(model, model.generation_limits)
    if most is not None and longest > most:
        raise DataError(f"{name}: {longest:,} tokens are more than the {most:,} that this model reads at once; give "
                        "less of it, or `regard evaluate` a long text piece by piece")  # fmt: skip


def leading_tokens(model: Any) -> list[int]:
    """The special tokens before every text; a model trained here has none."""
    before: list[int] = model.output_tokenizer.leading_ids if model.task is None else []
    return before


def encode_text(model: Any, text: str, name: str) -> list[int]:
    try:
        ids: list[int] = model.output_tokenizer.encode(text)
    except DataError as problem:
        raise DataError(f"{name}{problem}") from None
    if not ids:
        raise DataError(f"{name}{text!r} has no tokens; give it some words")
    before = leading_tokens(model)
    return ids[len(before) :] if before and ids[: len(before)] == before else ids  # start tokens are added anyway
