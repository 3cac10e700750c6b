"""Cross-entropy over the vocabulary, optionally in chunks of rows, so that the logits are never all in memory.

    rows of x      logits of these rows                      what is kept
    ┌──┐  ─ W' ►  ┌──────────────── V ─┐  ─ softmax - label ►  loss += ...   dx[rows] = g W   dW += g' x
    ├──┤          └────────────────────┘
    ├──┤  the next rows use the same memory

With N tokens and a vocabulary of V the logits and their gradient are 2·N·V numbers, most of a small model's memory.
Here loss and gradients are computed in one pass, so backward only scales them by the incoming gradient. In a compiled
model this is one opaque operation: it runs eagerly, without a graph break. It has no second derivatives.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.packing import IGNORE_INDEX
from regard.data.packing import IGNORE_INDEX as NOTHING
from regard.models.heads import DeferredLogits, defer_logits
from regard.tasks.collate import TaskBatch


def chunked_cross_entropy(hidden: DeferredLogits, labels: Tensor, smoothing: float = 0.0, rows: int = 1024) -> Tensor:
    """The sum of F.cross_entropy(x W' + b, labels, label_smoothing=smoothing), `rows` tokens at a time."""
    x, weight, bias = hidden
    learn = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in hidden)
    loss: Tensor = chunked_loss(x.flatten(0, -2), weight, bias, labels.flatten(), smoothing, rows, learn)[0]
    return loss


@torch.library.custom_op("regard::chunked_loss", mutates_args=())
def chunked_loss(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, rows: int, learn: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss, and its gradients for x, weight and bias, which are empty where no gradient is needed."""
    loss, dx, dw, db = empty_gradients(x, weight, bias, learn)
    for out in (loss, dx, dw, db):
        out.zero_()
    with torch.autocast(x.device.type, enabled=False):
        for start in range(0, len(x), rows):
            some, label = x[start : start + rows], labels[start : start + rows]
            logits = F.linear(some, weight, bias).to(loss.dtype)
            total = logits.logsumexp(-1)
            loss += smoothed_nll(logits, total, label, smoothing)
            if not learn:
                continue
            g = logit_gradients(logits, total, label, smoothing).to(x.dtype)
            dx[start : start + rows] = g @ weight
            dw += g.mT @ some
            if bias is not None:
                db += g.sum(0)
    return loss, dx, dw.to(weight.dtype), db if bias is None else db.to(bias.dtype)


def empty_gradients(
    x: Tensor, weight: Tensor, bias: Tensor | None, learn: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradient buffers, in fp32 or higher precision."""
    full, none = torch.promote_types(x.dtype, torch.float32), x.new_empty(0)
    if not learn:
        return x.new_empty((), dtype=full), none, x.new_empty(0), x.new_empty(0)
    db = none if bias is None else torch.empty_like(bias, dtype=full)
    return x.new_empty((), dtype=full), torch.empty_like(x), torch.empty_like(weight, dtype=full), db


def smoothed_nll(logits: Tensor, total: Tensor, label: Tensor, smoothing: float) -> Tensor:
    """Label-smoothed negative log-likelihood: a fraction `smoothing` is the mean over all tokens; `total` is
    logsumexp."""
    asked = label != NOTHING
    said = logits.gather(-1, label.where(asked, 0)[:, None])[:, 0]
    each = total - said
    if smoothing:
        each = total - (1 - smoothing) * said - smoothing * logits.mean(-1)
    return each.where(asked, 0).sum()


def logit_gradients(logits: Tensor, total: Tensor, label: Tensor, smoothing: float) -> Tensor:
    """The gradient of the loss with respect to logits, softmax - label, computed in place."""
    asked = label != NOTHING
    g = logits.sub_(total[:, None]).exp_()  # softmax
    if smoothing:
        g -= smoothing / g.shape[-1]
    certain = g.new_full((len(g), 1), smoothing - 1)
    return g.scatter_add_(-1, label.where(asked, 0)[:, None], certain).masked_fill_(~asked[:, None], 0)


@chunked_loss.register_fake
def fake_chunked_loss(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, rows: int, learn: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    loss, dx, dw, db = empty_gradients(x, weight, bias, learn)
    return loss, dx, dw.to(weight.dtype), db if bias is None else db.to(bias.dtype)


def save_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.biased = inputs[2] is not None
    ctx.set_materialize_grads(False)


def scale_gradients(ctx: Any, grad: Tensor, *others: Tensor | None) -> tuple[Tensor | None, ...]:
    if any(other is not None for other in others):
        raise RuntimeError("the loss in chunks has no second derivatives; use it without chunks")
    dx, dw, db = ctx.saved_tensors
    return grad.to(dx.dtype) * dx, grad.to(dw.dtype) * dw, grad.to(db.dtype) * db if ctx.biased else None, *[None] * 4


chunked_loss.register_autograd(scale_gradients, setup_context=save_gradients)

MODEL_INPUTS = ("source", "real", "source_real", "document", "segment")  # arguments of a model's forward besides ids


def model_outputs(model: nn.Module, batch: TaskBatch, deferred: bool = False) -> Any:
    """The model's output for a batch, as logits or DeferredLogits."""
    rest = {name: batch[name] for name in MODEL_INPUTS if name in batch}
    return defer_logits(model, batch["ids"], **rest) if deferred else model(batch["ids"], **rest)


def cross_entropy_sum(
    outputs: Tensor | DeferredLogits, labels: Tensor, smoothing: float = 0.0, rows: int = 1024
) -> Tensor:
    """The sum of -log p(label) in fp32, with label smoothing; labels of -100 are ignored."""
    if isinstance(outputs, DeferredLogits):
        return chunked_cross_entropy(outputs, labels, smoothing, rows)
    logits = outputs.flatten(0, -2).float()
    return F.cross_entropy(
        logits, labels.flatten(), ignore_index=IGNORE_INDEX, label_smoothing=smoothing, reduction="sum"
    )


def count_labels(labels: Tensor) -> int:
    """The number of labels that are not ignored."""
    return int((labels != IGNORE_INDEX).sum())
