"""Is order seen? Tokens change places: without positions, the last one finds in them what it found before.

Only the first attention is asked: behind a causal mask, deeper ones know something of order without any positions.
"""

from typing import Any

import torch

from regard import config
from regard.core.model import Transformer, Trunk
from regard.core.tokens import Tokens, line
from regard.core.watch import looking
from regard.train.doctor.case import Case
from regard.train.doctor.findings import Finding, fine, look, wrong
from regard.train.doctor.lively import NOISE, others, said
from regard.train.evaluate import moved as moved_to
from regard.train.health import cut

LONGEST = 48


def positions(case: Case) -> Finding:
    found = {side: seen for side in ("trunk", "encoder") if (seen := order(case, side)) is not None}
    if not found and isinstance(case.model.c.trunk, config.Recurrent):
        return fine(f"{case.model.c.trunk.cell} layers read tokens in their order")
    if not found:
        return fine("nobody sees two tokens whose order could matter")
    c = case.model.c
    for side, size in found.items():
        trunk = c.trunk if side == "trunk" or c.encoder is None else c.encoder.trunk
        path = "model.trunk.position" if side == "trunk" else "model.encoder.trunk.position"
        if size > NOISE:
            continue
        if trunk.position.kind == "none" and not case.textual:
            return fine(f"{path} is none: tokens are a set to the {side}, as the nodes of a graph are")
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
    if not isinstance(trunk, Trunk):
        return None
    if not case.textual:
        return of_tokens(case, trunk)
    ids = torch.arange(1, 1 + min(LONGEST, case.settings.context))[None]
    seen = visible(trunk, line(torch.empty(1, ids.shape[1], 0)))
    if len(seen) < 2:
        return None
    ids = others(ids, model.c.embed.vocab, {id for id in (model.c.embed.pad, model.c.embed.end) if id is not None})
    moved, strange = ids.clone(), ids.clone()
    moved[0, seen] = ids[0, seen.roll(1)]
    strange[0, seen] = others(ids, model.c.embed.vocab, set())[0, seen]
    plain, turned, different = (first_look(model, side, each.to(case.run.device)) for each in (ids, moved, strange))
    return float((turned - plain).norm() / (different - plain).norm().clamp(min=1e-9))


@torch.no_grad()
def of_tokens(case: Case, trunk: Trunk) -> float | None:
    """The same of what is no text: vectors change places behind the front end, which may have places of its own."""
    model, rest = case.lively, moved_to(cut(next(case.read()), 1), case.run.device)
    tokens = model.embed(rest.pop("ids"), **rest)
    if len(tokens.x) > 1:  # channels read one by one are rows
        return None
    seen = visible(trunk, tokens)
    if len(seen) < 2:
        return None
    turned, strange = tokens.x.clone(), tokens.x.clone()
    turned[0, seen] = tokens.x[0, seen.roll(1)]
    noise = torch.randn(strange[0, seen].shape, generator=torch.Generator().manual_seed(1)).to(strange)
    strange[0, seen] = noise * tokens.x.std()
    plain, other, new = (first_look(model, "trunk", tokens.carrying(x)) for x in (tokens.x, turned, strange))
    return float((other - plain).norm() / (new - plain).norm().clamp(min=1e-9))


def visible(trunk: Trunk, places: Tokens) -> torch.Tensor:
    """The places that the last token sees besides its own."""
    mask = trunk.masks[0][places.real is not None, places.document is not None]
    table, count = mask.table(places, places), places.count
    return table.expand(1, count, count)[0, -1, :-1].nonzero()[:, 0]


def first_look(model: Transformer, side: str, ids: Any) -> torch.Tensor:
    """What the first attention of a trunk adds to the last token."""
    address = f"{side}.0.attn.out"
    with looking(model, address, queries=slice(-1, None)) as seen:
        said(model, {"ids": ids} if model.encoder is None else {"ids": ids[:, :3], "source": ids}
             if side == "encoder" else {"ids": ids, "source": ids[:, :3]})  # fmt: skip
    return seen[address]
