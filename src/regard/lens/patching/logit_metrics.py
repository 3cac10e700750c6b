"""Metrics on logits: one number for each row, by which an intervention on a model is measured.

    logit_difference(" Rome", " Paris")       the logit of one token less that of another
    probability(" Paris", at=4)               of one token, after token 4 of the prompt
    target_loss([3, 1, -100, 4])              mean cross-entropy of these ids, one for each token; -100 is left out
    lambda logits: logits[:, -1, 7]           logits (B, N, V), or (B, classes), to (B,)

A token is a text or an id; for a classifier it is the number of a class. A difference of logits is linear in what the
last block adds, but for the final norm; a probability saturates, so it may hide a part that has a large effect.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.errors import ConfigError
from regard.lens.attention_maps import unwrap_model
from regard.lens.prompt import Prompt, token_id
from regard.models.heads import DeferredLogits, LMHead, PoolingHead, PretrainingHead, TokenHead

IGNORED = -100  # torch's own number for a target that does not count
LogitFunction = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LogitMetric:
    """A metric before it meets a model: its tokens by name, and what it makes of their logits at one position."""

    name: str
    tokens: tuple[str | int, ...]
    read: Callable[[Tensor, tuple[int, ...]], Tensor]  # logits (B, n, V) and ids -> (B,)
    at: int | None = None
    whole: bool = False  # reads the logits of every position


def logit_difference(token: str | int, against: str | int, *, at: int | None = None) -> LogitMetric:
    """The logit of a token less that of another, after token `at`: the only [MASK] or the last token unless given."""
    return LogitMetric(
        f"logit difference {token!r} - {against!r}", (token, against),
        lambda logits, ids: logits[:, 0, ids[0]] - logits[:, 0, ids[1]], at,
    )  # fmt: skip


def probability(token: str | int, *, at: int | None = None) -> LogitMetric:
    """The probability of a token, after token `at`: the only [MASK] or the last token unless given."""
    return LogitMetric(f"probability of {token!r}", (token,), lambda x, ids: x[:, 0].softmax(-1)[:, ids[0]], at)


def target_loss(targets: Tensor | Sequence[int] | int) -> LogitMetric:
    """The mean cross-entropy of target ids: one for each token of the prompt, -100 where none counts; or a class."""
    wanted = torch.atleast_1d(torch.as_tensor(targets))

    def read(logits: Tensor, ids: tuple[int, ...]) -> Tensor:
        rows, count = logits.shape[:2]
        if wanted.shape[-1] != count:
            raise ConfigError(f"targets: {wanted.shape[-1]} ids, and the model answers at {count} places; give one for "
                              f"each, {IGNORED} where none counts")  # fmt: skip
        if (strange := wanted[(wanted != IGNORED) & ((wanted < 0) | (wanted >= logits.shape[2]))]).numel():
            raise ConfigError(f"targets: {int(strange[0])} is outside of the {logits.shape[2]} outputs of this model; "
                              f"give numbers below, or {IGNORED} where none counts")  # fmt: skip
        each = wanted.to(logits.device).expand(rows, count) if wanted.dim() == 1 else rows_of(wanted, logits)
        lost = F.cross_entropy(logits.flatten(0, 1), each.flatten(), ignore_index=IGNORED, reduction="none")
        return lost.view(rows, count).sum(1) / (each != IGNORED).sum(1)

    return LogitMetric("loss", (), read, whole=True)


def rows_of(wanted: Tensor, logits: Tensor) -> Tensor:
    """Targets (B, N) for as many rows; a batch of several patches repeats each row."""
    if len(logits) % len(wanted):
        raise ConfigError(f"targets: {len(wanted)} rows for a prompt of {len(logits)}")
    return wanted.to(logits.device).repeat_interleave(len(logits) // len(wanted), 0)


@dataclass(frozen=True)
class BoundMetric:
    """A metric that knows its model: `at` is the one position whose logits it reads, None for all of them."""

    name: str
    read: LogitFunction  # (B, n, V) -> (B,)
    at: int | None = None
    raw: bool = False  # a function of the caller's own, on logits as the model returns them

    def __call__(self, out: Any) -> Tensor:  # (B,)
        """The metric of what a model returns."""
        out = out[0] if isinstance(out, tuple) and not isinstance(out, DeferredLogits) else out
        if isinstance(out, DeferredLogits):
            out = F.linear(self.place_of(out.x), *out[1:])
        elif not self.raw:
            out = out[:, None] if out.dim() == 2 else out.flatten(1, -2)
            out = out if out.shape[1] == 1 else self.place_of(out)
        value = self.read(out if self.raw else out.float() if out.dtype.itemsize < 4 else out)
        if not isinstance(value, Tensor) or value.shape != out.shape[:1]:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ConfigError(f"metric: one number for each row, a tensor of shape ({len(out)},), got {got}")
        return value

    def place_of(self, x: Tensor) -> Tensor:  # (B, N, …) -> (B, 1, …), or all where all are read
        return x if self.at is None else x[:, self.at : self.at + 1]


def bind_metric(model: Any, prompt: Prompt, metric: LogitMetric | LogitFunction) -> BoundMetric:
    """The metric with ids for its tokens and a position; mistakes are refused before anything runs."""
    if not isinstance(metric, LogitMetric):
        if not callable(metric):
            raise ConfigError(f"metric: {metric!r} is none; give lens.logit_difference(...), or a function of logits")
        return BoundMetric(getattr(metric, "__name__", type(metric).__name__), metric, raw=True)
    model = unwrap_model(model)
    ids = tuple(answer_id(model, token) for token in metric.tokens)
    at = None if metric.whole else answer_position(model, prompt, metric.at)
    return BoundMetric(metric.name, lambda logits: metric.read(logits, ids), at)


def answer_id(model: Any, token: str | int) -> int:
    """The column of the logits: of a token for a language model, of a class for the others."""
    head = answering_head(model)
    if isinstance(head, LMHead):
        return token_id(model, token)
    classes = getattr(getattr(head, "out", None), "out_features", 0)
    if not classes:
        raise ConfigError("metric: this model answers with vectors and has no vocabulary; give a function of its own")
    if not isinstance(token, int) or not 0 <= token < classes:
        raise ConfigError(f"metric: {token!r} is no class of this model; give a number from 0 to {classes - 1}")
    return token


def answering_head(model: Any) -> Any:
    head = getattr(model, "head", None)
    return head.lm if isinstance(head, PretrainingHead) else head


def answer_position(model: Any, prompt: Prompt, at: int | None) -> int:
    """The position whose logits count, from 0; the only [MASK] of a text, or the last token, unless given."""
    head = answering_head(model)
    if isinstance(head, PoolingHead):
        return 0
    if not isinstance(head, LMHead | TokenHead) or prompt.first.is_floating_point():
        raise ConfigError("metric: this model does not answer token by token; give a function of what it returns")
    count = prompt.ids.shape[1]
    if at is None:
        tokenizer = getattr(model, "output_tokenizer", None)
        mask = None if tokenizer is None else tokenizer.special_ids.get("mask")
        found = [] if mask is None else (prompt.ids[0] == mask).nonzero().flatten().tolist()
        return int(found[0]) if len(found) == 1 else count - 1
    if not -count <= at < count:
        raise ConfigError(f"metric: at={at}, and the prompt has {count} tokens; name one of 0 to {count - 1}")
    return at % count


def run_metric(model: Any, prompt: Prompt, metric: BoundMetric, **settings: Any) -> Tensor:  # (B,)
    """The metric of one forward pass; logits are made for the position that it reads, where it reads one."""
    defers = metric.at is not None and isinstance(answering_head(model), LMHead)
    return metric(model(prompt.first, **prompt.given, **settings, **({"deferred": True} if defers else {})))
