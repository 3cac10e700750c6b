"""Who sees whom: tokens that nobody may see are changed, and whoever changes with them has seen them.

    causal      the second half of each row        changes nothing in the first
    padding     what is no token                   changes nothing where there are tokens
    documents   the first document of a row        changes nothing in the others
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.core.masks import Prefix, mask
from regard.train.doctor.case import Case
from regard.train.doctor.findings import Finding, fine, look, wrong
from regard.train.doctor.lively import NOISE, others, said
from regard.train.evaluate import moved
from regard.train.health import cut

ROWS = 4
RUN = 3  # as many of the same token at the end of a row are padding, where nobody says what is


def reach(case: Case, batch: dict[str, Tensor], changed: Tensor, seen: Tensor, side: str = "ids") -> float:
    """How much what is said at the places `seen` (B, N) changes with the ids at the places `changed`, in spreads."""
    given = moved(batch, case.run.device)
    ids = given[side]
    new = torch.where(over(changed.to(ids.device), ids), strange(case, side, ids), ids)
    before, after = (answers(said(case.lively, given | {side: table}), seen) for table in (ids, new))
    return max(float((a - b).abs().max() / a.std().clamp(min=1e-9)) for a, b in zip(before, after, strict=True))


def strange(case: Case, side: str, ids: Tensor) -> Tensor:
    """Something else in every place: other ids, or other numbers."""
    if ids.is_floating_point():
        return torch.randn(ids.shape, generator=torch.Generator().manual_seed(1)).to(ids)
    c = front(case, side)
    return others(ids, c.vocab, {id for id in (c.pad, c.end) if id is not None})


def over(places: Tensor, ids: Tensor) -> Tensor:
    """(B, N) laid over ids of more axes."""
    return places.view(*places.shape, *([1] * (ids.dim() - places.dim())))


def front(case: Case, side: str) -> Any:
    """The settings of the front end that reads the ids, or the source."""
    c = case.model.c
    return c.encoder.embed if side == "source" and c.encoder is not None and c.encoder.embed is not None else c.embed


def answers(out: Tensor | tuple[Tensor, ...], seen: Tensor) -> Iterator[Tensor]:
    """What is said at some places; what is said of a whole row counts if the row has any."""
    for each in out if isinstance(out, tuple) else (out,):
        yield each[seen.to(each.device)] if each.dim() == 3 else each[seen.any(-1).to(each.device)]


def causal(case: Case) -> Finding:
    if not case.causal:
        return both_ways(case)
    if not case.textual:
        return fine("does not apply: what is read is no text")
    batch = cut(next(case.read()), ROWS)
    count = batch["ids"].shape[1]
    border = max([count // 2, *(leaf.length for text in case.model.c.trunk.masks for leaf in mask(text).leaves
                                if isinstance(leaf, Prefix))])  # fmt: skip
    if count < 2 or border >= count:
        return fine(f"rows of {count} tokens have no later ones that may not be seen")
    early = torch.arange(count).expand(batch["ids"].shape) < border
    size = reach(case, batch, ~early, early & batch.get("real", early))
    if size <= NOISE:  #: S162
        return fine(f"other tokens from place {border} on change nothing before it")
    return wrong(f"other tokens from place {border} on change what is said before it by {size:.2g} of its spread: the "
                 "model sees the tokens that it should predict", "model.mask=causal")  # fmt: skip


def both_ways(case: Case) -> Finding:
    """A task that asks of every token what it is may look at those behind it, and should."""
    c = case.model.c
    if c.head.kind != "pooled" and not any(mask(text).ahead for text in c.trunk.masks):
        return look(f"this task may look both ways, and the mask {c.trunk.masks[0]!r} hides what comes after a token",
                    "model.mask=everything")  # fmt: skip
    return fine("this task may look both ways")


def padding(case: Case) -> Finding:
    told = []
    for side in ("ids", "source"):
        found = next((found for batch in case.read() if (found := padded(case, batch, side)) is not None), None)
        if found is None:
            continue
        real, batch = found
        seen = batch.get("real", torch.ones_like(batch["ids"], dtype=torch.bool)) if side == "source" else real
        part = f"{float(1 - real.float().mean()):.0%} of a batch's {side} is padding"
        if (size := reach(case, batch, ~real, seen, side)) > NOISE:
            name = "real" if side == "ids" else "source_real"
            return wrong(f"{part}, and other tokens there change what is said of real ones by {size:.2g} of its "
                         f"spread: padding is looked at", f"{name}= in every batch, True for tokens")  # fmt: skip
        told.append(part)
    return fine(f"{' and '.join(told)}, and nobody looks at it" if told else "no batch is padded")


def padded(case: Case, batch: dict[str, Tensor], side: str) -> tuple[Tensor, dict[str, Tensor]] | None:
    """Which tokens of a batch are real, and what the model is given of it; nothing if all are."""
    name = "real" if side == "ids" else "source_real"
    if side not in batch or isinstance(case.first, Tensor) or "document" in batch:  # windows and packed rows are full
        return None
    if name in batch:
        whole = bool(batch[name].all()) or batch[side].shape[:2] != batch[name].shape  # places that are no tokens
        return None if whole else (batch[name], batch)
    if not case.textual or batch[side].dtype != torch.long:  # a picture is no row of tokens
        return None
    pad, own = front(case, side).pad, getattr(case.run.objective, "specials", None)
    fill = pad if pad is not None else 0 if own is None else own.fill
    there = batch[side] != fill
    real = (there.flip(-1).cumsum(-1).flip(-1) > 0) & (there.cumsum(-1) > 0)  # all but what fills the ends of a row
    if int((~real).sum(-1).max()) < RUN or not bool(real.any(-1).all()):
        return None
    return real, batch | {name: real} if pad is not None else batch  # a model that knows its pad sees to it itself


def documents(case: Case) -> Finding | None:
    packed = [batch for batch in case.read() if "document" in batch]
    if not packed:
        return None
    batch = max(packed, key=lambda batch: int((batch["document"] > 0).sum()))
    first = batch["document"] == batch["document"][:, :1]
    if bool(first.all()):
        return look("rows are packed, and none of those looked at holds a second document", "train.pack=false")
    if (size := reach(case, batch, first, ~first)) <= NOISE:
        return fine("packed documents do not see each other")
    return wrong(f"other tokens in the first document of a row change what is said in the next ones by {size:.2g} of "
                 "its spread", "train.pack=false")  # fmt: skip
