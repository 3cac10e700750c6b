"""Check of labels: finds the label at each position by the gradient of the loss, which is negative for its logit alone.

input      the  cat  sat  on        the next token as label is right, the same token is copying,
label      cat  sat  on   the       the token after the next was shifted twice
"""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.data.batching import batch_to_device
from regard.doctor.case import DoctorCase, DoctorFinding, finding_ok, finding_problem
from regard.models.heads import LMHead
from regard.training.diagnostics import first_rows

MOST, SOME = 0.9, 0.5  # of all positions: more than natural repetition, and than masked LM leaves unmasked
ROWS = 8


def check_labels(case: DoctorCase) -> DoctorFinding:
    found = requested_tokens(case)
    if found is None:
        return finding_ok("the loss has no token labels, so none can be copied")
    ids, asked, where, real = found
    many = int(where.sum())
    if not many:
        return finding_problem("the first batch has no labels", "task: correct its labels")
    shares = {ahead: share_ahead(ids, asked, where, ahead) for ahead in range(4)}
    if real is not None and bool((where & ~real).any()):
        part = float((where & ~real).sum() / many)
        return finding_problem(f"{part:.0%} of the labels are padding", "labels: -100 at padding")
    if shares[0] > (MOST if case.causal else SOME):  #: S162
        return finding_problem(f"at {shares[0]:.0%} of {many:,} positions the label is the input token itself: "
                               "the "
                     "model need only copy", suggest_label_fix(case))  # fmt: skip
    best = max(shares, key=lambda ahead: shares[ahead])
    if case.causal and best > 1 and shares[best] > MOST:
        return finding_problem(f"at {shares[best]:.0%} of {many:,} positions the label is the token {best} positions "
                               "later, not "
                     "one: the labels are shifted more than once", suggest_label_fix(case))  # fmt: skip
    if case.causal:
        return finding_ok(f"at {shares[1]:.0%} of {many:,} positions the label is the next token, at "
                          f"{shares[0]:.0%} "
                    "the input token")  # fmt: skip
    return finding_ok(f"{many:,} labels, of which {shares[0]:.0%} equal the input token")


def suggest_label_fix(case: DoctorCase) -> str:
    return (
        "labels: the ids, shifted by one" if case.causal else "task.mask_replace_prob=0.8 task.random_replace_prob=0.1"
    )


def requested_tokens(case: DoctorCase) -> tuple[Tensor, Tensor, Tensor, Tensor | None] | None:
    """The input ids, the labels, where there are labels, and the mask of real tokens, (B, N) each."""
    model, read, made = case.lively, list[Any](), list[Tensor]()
    heads = [part for part in model.modules() if isinstance(part, LMHead)]
    if not heads:
        return None

    def reads(part: Any, args: Any, named: Any) -> None:
        read.append((args[0], named))

    hooks = [model.embed.register_forward_pre_hook(reads, with_kwargs=True),
             heads[0].register_forward_hook(lambda part, args, out: made.append(keep_gradient(out)))]  # fmt: skip
    batch = batch_to_device(first_rows(case.first, case.run.objective, ROWS), case.run.device)
    try:
        with torch.enable_grad():
            sum(without_chunks(case.run.objective).loss_sums(model, batch).values()).backward()
    finally:
        for hook in hooks:
            hook.remove()
        model.zero_grad()
    grad = made[-1].grad
    if grad is None or grad.dim() != 3:
        return None
    ids, named = read[-1]  # the last call is the decoder's
    return ids, grad.argmin(-1), grad.abs().sum(-1) > 0, named.get("real")


def keep_gradient(out: Tensor) -> Tensor:
    out.retain_grad()
    return out


def without_chunks(objective: Any) -> Any:
    """The objective without a chunked loss, which would hide the logits."""
    held = is_dataclass(objective) and "chunk" in {field.name for field in fields(objective)}
    return replace(objective, chunk=None) if held and not isinstance(objective, type) else objective


def share_ahead(ids: Tensor, labels: Tensor, where: Tensor, ahead: int) -> float:
    """The share of positions whose label is the token `ahead` positions later."""
    count = ids.shape[1] - ahead
    if count < 1 or labels.shape != ids.shape:
        return 0.0
    there = where[:, :count]
    return float(((labels[:, :count] == ids[:, ahead:]) & there).sum() / there.sum().clamp(min=1))
