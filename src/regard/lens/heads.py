"""Statistics of attention heads: role, entropy, distance, and similarity to other heads.

summarize_heads(model, ids)                      a HeadSummary for each, with its scores and the role that fits best
head_similarity(attention_views(model, ids))     (all heads, all heads) from 0, nothing in common, to 1, the same
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard import config
from regard.lens.attention_maps import AttentionView, attention_views, unwrap_model
from regard.lens.roles import ROLES, HeadRole, RoleScore, available_facts, repeated_ids, score_role

NAMED = 0.25  # a head has a role when it goes a quarter of the way from chance to always
LEAST = 4  # tokens


@dataclass(frozen=True)
class HeadSummary:
    """One head: its scores by role, how wide and how far it looks, and its strongest role, if one stands out."""

    where: str
    head: int
    scores: dict[str, RoleScore]
    entropy: float  # bits; 2^entropy is the number of tokens it looks at
    relative: float  # entropy over that of looking at everything visible alike: 0 one token, 1 all of them
    distance: float | None  # tokens between query and key, patches in an image; none for cross-attention

    @property
    def layer(self) -> int:
        return int(self.where.rsplit(".", 2)[1])

    @property
    def role(self) -> str | None:
        best = max(self.scores, key=lambda name: self.scores[name].lift, default=None)
        return best if best is not None and self.scores[best].lift >= NAMED else None


def summarize_heads(  #: S150
    model: Any, *inputs: Any, marks: Collection[int] = (), vocabulary: Tensor | None = None, **named: Any
) -> list[HeadSummary]:
    """Every head, read while the model reads what it is given; `marks` are the ids of delimiters.

    Induction is asked of random ids from the `vocabulary` (all of it, unless said), as many, said twice.
    """
    once = attention_views(model, *inputs, marks=marks, **named)
    longest = max(max(view.visible.shape[1:]) for view in once)
    if longest < LEAST:
        raise config.ConfigError(f"heads are read on four tokens or more, got {longest}")
    found = views_on_repeats(model, inputs, named, once, vocabulary)
    return [head for view in once for head in describe_heads(view, found.get(view.where))]


def views_on_repeats(
    model: Any, inputs: tuple[Any, ...], named: dict[str, Any], once: list[AttentionView], vocabulary: Tensor | None
) -> dict[str, AttentionView]:
    """The same attentions on ids that stand there twice, where that makes sense."""
    asked = [view.where for view in once if available_facts(view) >= INDUCTION.needs]
    if not asked:  # no ids that could be said twice
        return {}
    fronts = [each.c.embed for each in getattr(unwrap_model(model), "towers", [unwrap_model(model)])]
    again = [repeat_ids(x, front, vocabulary) for x, front in zip(inputs, fronts, strict=False)]
    if all(new is old for new, old in zip(again, inputs, strict=True)):
        return {}
    kept = {name: x for name, x in named.items() if name.startswith("source")}  # the rest speaks of the ids before
    return {view.where: view for view in attention_views(model, *again, **kept) if view.where in asked}


def repeat_ids(x: Any, front: Any, vocabulary: Tensor | None) -> Any:
    if not isinstance(x, Tensor) or x.is_floating_point() or x[0].numel() < LEAST:
        return x
    words = torch.arange(front.vocab) if vocabulary is None else vocabulary.cpu()
    silent = [ident for ident in (front.pad_id, front.eos_id) if ident is not None]
    return repeated_ids(words[~torch.isin(words, torch.tensor(silent, dtype=torch.long))], x[0].numel() // 2, len(x))


def describe_heads(view: AttentionView, again: AttentionView | None) -> list[HeadSummary]:
    scores = {role.name: found for role in ROLES if (found := role_scores(role, again if role.repeats else view))}
    wide, share, far = head_entropy(view), relative_entropy(view), mean_distance(view)
    return [
        HeadSummary(
            view.where, head, {name: each[head] for name, each in scores.items()},
            float(wide[head]), float(share[head]), None if far is None else float(far[head]),
        )
        for head in range(view.pattern.shape[1])
    ]  # fmt: skip


def role_scores(role: HeadRole, view: AttentionView | None) -> list[RoleScore] | None:
    return score_role(role, view) if view is not None and available_facts(view) >= role.needs else None


INDUCTION = next(role for role in ROLES if role.repeats)


# ---------------------------------------------------------------- how wide, how far


def row_entropy(pattern: Tensor) -> Tensor:
    """The entropy of each row in bits: (…, K) -> (…)."""
    return -(pattern * pattern.clamp(min=1e-12).log2()).sum(-1)


def head_entropy(view: AttentionView) -> Tensor:  # (H,)  #: S156
    """Mean entropy of a head's rows in bits: 0 looks at one token, log2(n) at n of them alike."""
    return row_entropy(view.pattern).transpose(1, 2)[view.rows].mean(0)


def relative_entropy(view: AttentionView) -> Tensor:  # (H,)
    """Entropy over the most there could be, averaged over the rows that have a choice."""
    if not bool(view.choice.any()):
        return torch.zeros(view.pattern.shape[1])
    most = view.visible.sum(-1).float().log2()[view.choice]  # (rows,)
    return (row_entropy(view.pattern).transpose(1, 2)[view.choice] / most[:, None]).mean(0)


def mean_distance(view: AttentionView) -> Tensor | None:  # (H,)
    """How many tokens away a head looks, on average; a straight line in an image. Across there is no distance."""
    if not view.own:
        return None
    far = (view.q.at[:, :, None] - view.k.at[:, None]).square().sum(-1).sqrt()  # (B, Q, K)
    counted = view.pattern * (view.rows[..., None] & ~far.isnan())[:, None]
    return (counted * far.nan_to_num()[:, None]).sum((0, 2, 3)) / counted.sum((0, 2, 3)).clamp(min=1e-9)


# ---------------------------------------------------------------- heads that do the same


def head_similarity(found: list[AttentionView]) -> Tensor:  #: S191
    """1 - the Jensen-Shannon distance between heads, averaged over rows: 1 for heads that look alike, 0 for heads
    that never look at the same token, nan for heads that look at different things (an encoder's and a decoder's).

    sqrt(H((p + q)/2) - (H(p) + H(q))/2), in bits, for two rows p and q; over the rows in which both have a choice.
    """
    sizes = [view.pattern.shape[1] for view in found]
    likeness = torch.full((sum(sizes), sum(sizes)), torch.nan)
    places = torch.arange(sum(sizes)).split(sizes)
    for reads in dict.fromkeys((view.q, view.k) for view in found):
        same = [i for i, view in enumerate(found) if (view.q, view.k) == reads]
        index = torch.cat([places[i] for i in same])
        likeness[index[:, None], index] = compare_heads([found[i] for i in same])
    return likeness


def compare_heads(found: list[AttentionView]) -> Tensor:
    every = torch.cat([view.pattern for view in found], 1)  # (B, heads, Q, K)
    choice = torch.cat([view.choice[:, None].expand(view.pattern.shape[:3]) for view in found], 1)
    own, rows = row_entropy(every), []
    for i in range(every.shape[1]):  # one head against all: a table of pairs at once would be large
        both = choice & choice[:, i : i + 1]
        apart = row_entropy((every + every[:, i : i + 1]) / 2) - (own + own[:, i : i + 1]) / 2
        rows.append(((1 - apart.clamp(0, 1).sqrt()) * both).sum((0, 2)) / both.sum((0, 2)))
    return torch.stack(rows)


def most_similar_heads(likeness: Tensor) -> list[tuple[int, float] | None]:
    """For each head the other one that is most like it, and how much; None where there is none to compare with."""
    others = likeness.clone().fill_diagonal_(torch.nan).nan_to_num(-1.0)
    best = [(int(row.argmax()), float(row.max())) for row in others]
    return [(head, value) if value >= 0 else None for head, value in best]
