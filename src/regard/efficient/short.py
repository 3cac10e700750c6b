"""Short sequences on CPU: scale, mask and product in one call, then a softmax and another product.

PyTorch's fused kernel has a slow backward there; up to 256 keys this trains faster (bench/README.md).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.kernels import Ask, How, Plan, kernel, shared

TRAINING, FORWARD = 256, 64  # keys up to which it wins


def claims(ask: Ask) -> str:
    short = ask.device == "cpu" and ask.k.count <= (TRAINING if ask.grad else FORWARD)
    return "short sequences on CPU are faster as two plain products" if short else ""


@kernel("short", claims=claims, tabled=lambda ask: True)
def short(q: Tensor, k: Tensor, v: Tensor, plan: Plan, how: How) -> Tensor:
    """softmax(QK'·scale + bias) V over flat batches of heads; what is forbidden gets the least finite number."""
    B, H, Q, _ = q.shape
    table = plan.table(q, how.bias)
    q_, k_, v_ = (shared(x, q).reshape(B * H, x.shape[2], x.shape[3]) for x in (q, k, v))
    if table is None:
        return torch.bmm(drop(torch.bmm(q_ * how.scale, k_.mT), how), v_).view(B, H, Q, -1)
    least = torch.finfo(q.dtype).min
    flat = q.new_zeros(table.shape).masked_fill(~table, least) if table.dtype == torch.bool else table.clamp(min=least)
    flat = flat[0] if flat.shape[:2] == (1, 1) else flat.expand(B, H, -1, -1).flatten(0, 1)
    out = torch.bmm(drop(torch.baddbmm(flat, q_, k_.mT, alpha=how.scale), how), v_).view(B, H, Q, -1)
    allowed = table if table.dtype == torch.bool else table > float("-inf")
    someone = plan.ask.causal and how.bias is None  # oneself, at least
    return out if someone else out.masked_fill(~allowed.any(-1, keepdim=True), 0.0)


def drop(scores: Tensor, how: How) -> Tensor:
    return F.dropout(scores.softmax(-1), how.dropout)
