"""Is order seen? Tokens change places: without positions, the last one finds in them what it found before.

Only the first attention is asked: behind a causal mask, deeper ones know something of order without any positions.
"""

import torch

from regard.core.model import Transformer, Trunk
from regard.core.tokens import line
from regard.core.watch import looking
from regard.train.doctor.case import Case
from regard.train.doctor.findings import Finding, fine, look, wrong
from regard.train.doctor.lively import NOISE, others, said

LONGEST = 48


def positions(case: Case) -> Finding:
    found = {side: seen for side in ("trunk", "encoder") if (seen := order(case, side)) is not None}
    if not found:
        return fine("nobody sees two tokens whose order could matter")
    c = case.model.c
    for side, size in found.items():
        trunk = c.trunk if side == "trunk" or c.encoder is None else c.encoder.trunk
        path = "model.trunk.position" if side == "trunk" else "model.encoder.trunk.position"
        if size > NOISE:
            continue
        if trunk.position.kind == "none":
            return look(f"{path} is none, so the {side} knows the order of tokens only by what its mask hides",
                        f"{path}.kind=learned")  # fmt: skip
        return wrong(f"{path} is {trunk.position.kind!r}, and tokens in another order look the same to the {side} "
                     f"(they change its first look by {size:.1g} of what other tokens would): positions say nothing",
                     f"{path}.kind={'sinusoidal' if trunk.position.kind == 'learned' else 'learned'}")  # fmt: skip
    return fine(", ".join(f"another order changes the {side}'s first look by {size:.0%} of what other tokens would"
                          for side, size in found.items()))  # fmt: skip


def order(case: Case, side: str) -> float | None:
    """How much another order changes what the last token sees, against other tokens in the same places."""
    model, trunk = case.lively, getattr(case.lively, side)
    if trunk is None:
        return None
    ids = torch.arange(1, 1 + min(LONGEST, case.settings.context))[None]
    seen = visible(trunk, ids.shape[1])
    if len(seen) < 2:
        return None
    ids = others(ids, model.c.embed.vocab, {id for id in (model.c.embed.pad, model.c.embed.end) if id is not None})
    moved, strange = ids.clone(), ids.clone()
    moved[0, seen] = ids[0, seen.roll(1)]
    strange[0, seen] = others(ids, model.c.embed.vocab, set())[0, seen]
    plain, turned, different = (first_look(model, side, each.to(case.run.device)) for each in (ids, moved, strange))
    return float((turned - plain).norm() / (different - plain).norm().clamp(min=1e-9))


def visible(trunk: Trunk, count: int) -> torch.Tensor:
    """The places that the last of so many tokens sees besides its own."""
    places = line(torch.empty(1, count, 0))
    table = trunk.masks[0][False, False].table(places, places)
    return table.expand(1, count, count)[0, -1, :-1].nonzero()[:, 0]


def first_look(model: Transformer, side: str, ids: torch.Tensor) -> torch.Tensor:
    """What the first attention of a trunk adds to the last token."""
    address = f"{side}.0.attn.out"
    with looking(model, address, queries=slice(-1, None)) as seen:
        said(model, {"ids": ids} if model.encoder is None else {"ids": ids[:, :3], "source": ids}
             if side == "encoder" else {"ids": ids, "source": ids[:, :3]})  # fmt: skip
    return seen[address]
