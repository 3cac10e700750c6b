"""Which token is asked for at each place? The gradient of the loss tells: it points up for one token alone.

    read       the  cat  sat  on        asked for: one place later is right, the same place is copying,
    asked for  cat  sat  on   the       two places later was shifted twice
"""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.heads import Vocabulary
from regard.train.doctor.case import Case
from regard.train.doctor.findings import Finding, fine, wrong
from regard.train.evaluate import moved
from regard.train.health import some

MOST, SOME = 0.9, 0.5  # of all places: more than language repeats itself, and than masking leaves to be read
ROWS = 8


def labels(case: Case) -> Finding:
    found = wanted(case)
    if found is None:
        return fine("no words are asked for, so none can be copied")
    ids, asked, where, real = found
    many = int(where.sum())
    if not many:
        return wrong("nothing is asked of the first batch", "task: mend its labels")
    shares = {ahead: share(ids, asked, where, ahead) for ahead in range(4)}
    if real is not None and bool((where & ~real).any()):
        part = float((where & ~real).sum() / many)
        return wrong(f"{part:.0%} of the tokens asked for are padding", "labels: -100 where nothing is asked")
    if shares[0] > (MOST if case.causal else SOME):  #: S162
        return wrong(f"at {shares[0]:.0%} of {many:,} places the token asked for is the one that is read there: the "
                     "model need only copy", remedy(case))  # fmt: skip
    best = max(shares, key=lambda ahead: shares[ahead])
    if case.causal and best > 1 and shares[best] > MOST:
        return wrong(f"at {shares[best]:.0%} of {many:,} places the token asked for stands {best} places later, not "
                     "one: the labels are shifted more than once", remedy(case))  # fmt: skip
    if case.causal:
        return fine(f"at {shares[1]:.0%} of {many:,} places the next token is asked for, at {shares[0]:.0%} the one "
                    "that is read there")  # fmt: skip
    return fine(f"{many:,} tokens are asked for, of which {shares[0]:.0%} stand there to be read")


def remedy(case: Case) -> str:
    return "labels: the ids, shifted by one" if case.causal else "task.mask=0.8 task.random=0.1"


def wanted(case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor | None] | None:
    """(B, N) each: the ids that are read, those that are asked for, where any is, and which tokens are real."""
    model, read, made = case.lively, list[Any](), list[Tensor]()
    heads = [part for part in model.modules() if isinstance(part, Vocabulary)]
    if not heads:
        return None

    def reads(part: Any, args: Any, named: Any) -> None:
        read.append((args[0], named))

    hooks = [model.embed.register_forward_pre_hook(reads, with_kwargs=True),
             heads[0].register_forward_hook(lambda part, args, out: made.append(kept(out)))]  # fmt: skip
    batch = moved(some(case.first, case.run.objective, ROWS), case.run.device)
    try:
        with torch.enable_grad():
            sum(plainly(case.run.objective).sums(model, batch).values()).backward()
    finally:
        for hook in hooks:
            hook.remove()
        model.zero_grad()
    grad = made[-1].grad
    if grad is None or grad.dim() != 3:
        return None
    ids, named = read[-1]  # the decoder reads last
    return ids, grad.argmin(-1), grad.abs().sum(-1) > 0, named.get("real")


def kept(out: Tensor) -> Tensor:
    out.retain_grad()
    return out


def plainly(objective: Any) -> Any:
    """The same, with all logits at once."""
    held = is_dataclass(objective) and "chunk" in {field.name for field in fields(objective)}
    return replace(objective, chunk=None) if held and not isinstance(objective, type) else objective


def share(ids: Tensor, asked: Tensor, where: Tensor, ahead: int) -> float:
    """How often the token asked for stands so many places later."""
    count = ids.shape[1] - ahead
    if count < 1 or asked.shape != ids.shape:
        return 0.0
    there = where[:, :count]
    return float(((asked[:, :count] == ids[:, ahead:]) & there).sum() / there.sum().clamp(min=1))
