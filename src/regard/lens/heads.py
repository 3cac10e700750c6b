"""What every head of a model does: where it looks, how widely, how far, and which other heads do the same.

    found = heads(model, ids, marks)      a Head for each, with its scores and the role that fits it best
    similarity(patterns(model, ids))      (all heads, all heads) from 0, nothing in common, to 1, the same
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard import config
from regard.core.kernels import KERNELS
from regard.core.watch import looking
from regard.lens.roles import ROLES, Score, repeated, score

NAMED = 0.25  # a head has a role when it goes a quarter of the way from chance to always


@dataclass(frozen=True)
class Head:
    """One head: its scores by role, how wide and how far it looks, and its strongest role, if one stands out."""

    layer: int
    head: int
    scores: dict[str, Score]
    entropy: float  # bits; 2^entropy is the number of tokens it looks at
    relative: float  # entropy over that of looking at everything visible alike: 0 one token, 1 all of them
    distance: float  # tokens between who asks and who is looked at

    @property
    def role(self) -> str | None:
        best = max(self.scores, key=lambda name: self.scores[name].lift, default=None)
        return best if best is not None and self.scores[best].lift >= NAMED else None


def refusal(model: Any) -> str:
    """Why the heads of a model cannot be read this way, in words, or nothing."""
    c: config.Transformer = model.c
    if c.encoder is not None:
        return "the model reads a source with an encoder of its own; heads are shown for models of one trunk"
    kernel = c.trunk.attention.kernel
    if kernel != "auto" and not KERNELS[kernel].exact:
        return f"kernel {kernel!r} has no table of who looks at whom"
    return ""


@torch.no_grad()
def patterns(model: Any, ids: Tensor) -> list[Tensor]:  # a (B, H, N, N) for each layer
    """Where every head looks while the model reads ids (B, N); rows sum to one."""
    if why := refusal(model):
        raise ValueError(why)
    training, device = model.training, next(model.parameters()).device
    model.eval()
    try:
        with looking(model, "trunk.*.attn.pattern") as seen:
            model(ids.to(device))
    finally:
        model.train(training)
    found = [seen[f"trunk.{i}.attn.pattern"].float().cpu() for i in range(model.c.trunk.depth)]
    return [each / each.sum(-1, keepdim=True).clamp(min=1e-9) for each in found]  # bf16 rows sum to nearly one


@torch.no_grad()
def visible(model: Any, ids: Tensor) -> list[Tensor]:  # a (B, N, N) for each layer
    """Where looking is allowed, by the layer's mask."""
    tokens = model.embed(ids.to(next(model.parameters()).device))
    masks = [each[tokens.real is not None, tokens.document is not None] for each in model.trunk.masks]
    tables = [mask.table(tokens, tokens).expand(tokens.batch, tokens.count, tokens.count).cpu() for mask in masks]
    return [tables[i % len(tables)] for i in range(model.c.trunk.depth)]


def heads(model: Any, ids: Tensor, marks: Tensor, vocabulary: Tensor | None = None) -> list[Head]:  #: S150
    """Every head, read on ids (B, N) of real text; `marks` (B, N) says which tokens are delimiters.

    Induction is asked of random ids from the `vocabulary` (all of it, unless said), as many, said twice.
    """
    words = torch.arange(model.c.embed.vocab) if vocabulary is None else vocabulary
    if ids.shape[1] < 4:
        raise ValueError(f"ids: heads are read on four tokens or more, got {ids.shape[1]}")
    again = repeated(words, ids.shape[1] // 2)
    views = {False: (ids.cpu(), marks.cpu()), True: (again, torch.zeros_like(again, dtype=torch.bool))}
    looked = {twice: (patterns(model, view[0]), visible(model, view[0])) for twice, view in views.items()}
    found = []
    for layer, (seen, allowed) in enumerate(zip(*looked[False], strict=True)):
        scores = {
            role.name: score(role, looked[role.repeats][0][layer], looked[role.repeats][1][layer], *views[role.repeats])
            for role in ROLES
        }
        wide, share, far = entropy(seen), relative(seen, allowed), distance(seen)
        for head in range(seen.shape[1]):
            own = {name: each[head] for name, each in scores.items()}
            found.append(Head(layer, head, own, float(wide[head]), float(share[head]), float(far[head])))
    return found


def spread(pattern: Tensor) -> Tensor:
    """The entropy of each row in bits: (…, K) -> (…)."""
    return -(pattern * pattern.clamp(min=1e-12).log2()).sum(-1)


def entropy(pattern: Tensor) -> Tensor:  # (B, H, Q, K) -> (H,)  #: S156
    """Mean entropy of a head's rows in bits: 0 looks at one token, log2(n) at n of them alike."""
    return spread(pattern).mean((0, 2))


def relative(pattern: Tensor, allowed: Tensor) -> Tensor:  # -> (H,)
    """Entropy over the most there could be, averaged over the rows that have a choice."""
    most = allowed.sum(-1).clamp(min=1).float().log2()  # (B, Q)
    choice = most > 0
    if not bool(choice.any()):
        return torch.zeros(pattern.shape[1])
    share = spread(pattern).transpose(1, 2)[choice] / most[choice][:, None]
    return share.mean(0)


def distance(pattern: Tensor) -> Tensor:  # -> (H,)
    """How many tokens away a head looks, on average."""
    queries, keys = (torch.arange(size) for size in pattern.shape[-2:])
    far = (queries[:, None] - keys[None, :]).abs().float()
    return (pattern * far).sum(-1).mean((0, 2))


def similarity(found: list[Tensor]) -> Tensor:  #: S191
    """1 - the Jensen-Shannon distance between heads, averaged over rows: 1 for heads that look alike, 0 for heads
    that never look at the same token.

    sqrt(H((p + q)/2) - (H(p) + H(q))/2), in bits, for two rows p and q. The first row is left out: it has no choice.
    """
    every = torch.cat(found, 1)[:, :, 1:]  # (B, all heads, N - 1, N)
    own, rows = spread(every), []
    for i in range(every.shape[1]):  # one head against all: a table of pairs at once would be large
        apart = spread((every + every[:, i : i + 1]) / 2) - (own + own[:, i : i + 1]) / 2
        rows.append(1 - apart.clamp(0, 1).sqrt().mean((0, 2)))
    return torch.stack(rows)
