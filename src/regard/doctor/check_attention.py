"""Checks of masks and positions: when tokens that must not be visible change, no output may change.

    causal      the second half of each row        changes nothing in the first
    padding     the padding                        changes nothing at real tokens
    documents   the first document of a row        changes nothing in the others

Positions: tokens are permuted; without position encoding, the last token's output stays the same. Only the first
attention layer is tested: after a causal mask, deeper ones depend on the order even without positions.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard import config
from regard.core.hooks import looking
from regard.core.masks import Prefix, mask
from regard.core.model import Transformer, Trunk
from regard.core.tokens import Tokens, sequence_tokens
from regard.data.batching import batch_to_device
from regard.data.batching import batch_to_device as moved_to
from regard.doctor.case import DoctorCase, DoctorFinding, finding_note, finding_ok, finding_problem
from regard.doctor.probe_run import POSITION_NOISE, forward_outputs, other_ids
from regard.training.diagnostics import cut_rows

ROWS = 4
RUN = 3  # so many equal tokens at the end of a row count as padding, where the batch has no mask


def influence(case: DoctorCase, batch: dict[str, Tensor], changed: Tensor, seen: Tensor, side: str = "ids") -> float:
    """The largest change of the outputs at `seen` (B, N) when the ids at `changed` change, in standard deviations."""
    given = batch_to_device(batch, case.run.device)
    ids = given[side]
    new = torch.where(broadcast_mask(changed.to(ids.device), ids), replacement_inputs(case, side, ids), ids)
    before, after = (outputs_at(forward_outputs(case.lively, given | {side: table}), seen) for table in (ids, new))
    return max(float((a - b).abs().max() / a.std().clamp(min=1e-9)) for a, b in zip(before, after, strict=True))


def replacement_inputs(case: DoctorCase, side: str, ids: Tensor) -> Tensor:
    """Replacements at every position: other ids, or random numbers."""
    if ids.is_floating_point():
        return torch.randn(ids.shape, generator=torch.Generator().manual_seed(1)).to(ids)
    c = side_front_end(case, side)
    return other_ids(ids, c.vocab, {id for id in (c.pad_id, c.eos_id) if id is not None})


def broadcast_mask(places: Tensor, ids: Tensor) -> Tensor:
    """A mask (B, N), broadcast to inputs of more axes."""
    return places.view(*places.shape, *([1] * (ids.dim() - places.dim())))


def side_front_end(case: DoctorCase, side: str) -> Any:
    """The config of the front end for the ids, or for the source."""
    c = case.model.c
    return c.encoder.embed if side == "source" and c.encoder is not None and c.encoder.embed is not None else c.embed


def outputs_at(out: Tensor | tuple[Tensor, ...], seen: Tensor) -> Iterator[Tensor]:
    """The outputs at these positions; an output of a whole row counts if the row has any."""
    for each in out if isinstance(out, tuple) else (out,):
        yield each[seen.to(each.device)] if each.dim() == 3 else each[seen.any(-1).to(each.device)]


def check_causality(case: DoctorCase) -> DoctorFinding:
    if not case.causal:
        return check_bidirectional(case)
    if not case.textual:
        return finding_ok("does not apply: the input is not text")
    batch = cut_rows(next(case.read()), ROWS)
    count = batch["ids"].shape[1]
    border = max([count // 2, *(leaf.length for text in case.model.c.trunk.masks for leaf in mask(text).leaves
                                if isinstance(leaf, Prefix))])  # fmt: skip
    if count < 2 or border >= count:
        return finding_ok(f"rows of {count} tokens have no later tokens to hide")
    early = torch.arange(count).expand(batch["ids"].shape) < border
    size = influence(case, batch, ~early, early & batch.get("real", early))
    if size <= POSITION_NOISE:  #: S162
        return finding_ok(f"other tokens from position {border} on change no output before it")
    return finding_problem(f"other tokens from position {border} on change outputs before it by {size:.2g} "
                           "standard deviations: "
                 "the model sees the tokens that it should predict", "model.mask=causal")  # fmt: skip


def check_bidirectional(case: DoctorCase) -> DoctorFinding:
    """A task that is not causal should have a bidirectional mask."""
    c = case.model.c
    if c.head.kind != "pooling" and not any(mask(text).ahead for text in c.trunk.masks):
        return finding_note(f"this task allows bidirectional attention, and the mask {c.trunk.masks[0]!r} hides later "
                            "tokens",
                    "model.mask=full")  # fmt: skip
    return finding_ok("this task allows bidirectional attention")


def check_padding(case: DoctorCase) -> DoctorFinding:
    told = []
    for side in ("ids", "source"):
        found = next((found for batch in case.read() if (found := padding_of(case, batch, side)) is not None), None)
        if found is None:
            continue
        real, batch = found
        seen = batch.get("real", torch.ones_like(batch["ids"], dtype=torch.bool)) if side == "source" else real
        part = f"{float(1 - real.float().mean()):.0%} of a batch's {side} is padding"
        if (size := influence(case, batch, ~real, seen, side)) > POSITION_NOISE:
            name = "real" if side == "ids" else "source_real"
            return finding_problem(f"{part}, and other tokens there change the outputs of real ones by {size:.2g} "
                                   "standard deviations: "
                         "the model attends to padding", f"{name}= in every batch, True for tokens")  # fmt: skip
        told.append(part)
    return finding_ok(f"{' and '.join(told)}, and no token attends to it" if told else "no batch is padded")


def padding_of(case: DoctorCase, batch: dict[str, Tensor], side: str) -> tuple[Tensor, dict[str, Tensor]] | None:
    """The mask of real tokens of a batch, and the model inputs; None without padding."""
    name = "real" if side == "ids" else "source_real"
    if side not in batch or isinstance(case.first, Tensor) or "document" in batch:  # these have no padding
        return None
    if name in batch:
        whole = bool(batch[name].all()) or batch[side].shape[:2] != batch[name].shape  # not a mask of tokens
        return None if whole else (batch[name], batch)
    if not case.textual or batch[side].dtype != torch.long:  # an image is no sequence of tokens
        return None
    pad, own = side_front_end(case, side).pad_id, getattr(case.run.objective, "specials", None)
    fill = pad if pad is not None else 0 if own is None else own.fill
    there = batch[side] != fill
    real = (there.flip(-1).cumsum(-1).flip(-1) > 0) & (there.cumsum(-1) > 0)  # all but the fill at the ends of a row
    if int((~real).sum(-1).max()) < RUN or not bool(real.any(-1).all()):
        return None
    return real, batch | {name: real} if pad is not None else batch  # a model with a pad_id builds the mask itself


def check_documents(case: DoctorCase) -> DoctorFinding | None:
    packed = [batch for batch in case.read() if "document" in batch]
    if not packed:
        return None
    batch = max(packed, key=lambda batch: int((batch["document"] > 0).sum()))
    first = batch["document"] == batch["document"][:, :1]
    if bool(first.all()):
        return finding_note("rows are packed, and no examined row has a second document", "train.pack=false")
    if (size := influence(case, batch, first, ~first)) <= POSITION_NOISE:
        return finding_ok("packed documents do not see each other")
    return finding_problem("other tokens in the first document of a row change the outputs of the next ones by "
                           f"{size:.2g} "
                 "standard deviations", "train.pack=false")  # fmt: skip


LONGEST = 48


def check_positions(case: DoctorCase) -> DoctorFinding:
    found = {side: seen for side in ("trunk", "encoder") if (seen := order_effect(case, side)) is not None}
    if not found and isinstance(case.model.c.trunk, config.RecurrentStack):
        return finding_ok(f"{case.model.c.trunk.cell} layers process tokens in their order")
    if not found:
        return finding_ok("no token attends to two tokens whose order could matter")
    c = case.model.c
    for side, size in found.items():
        trunk = c.trunk if side == "trunk" or c.encoder is None else c.encoder.trunk
        path = "model.trunk.position" if side == "trunk" else "model.encoder.trunk.position"
        if size > POSITION_NOISE:
            continue
        if trunk.position.kind == "none" and not case.textual:
            return finding_ok(f"{path} is none: the {side} treats tokens as a set, like the nodes of a graph")
        if trunk.position.kind == "none":
            return finding_note(f"{path} is none, so only its mask shows the {side} the order of tokens",
                        f"{path}.kind=learned")  # fmt: skip
        return finding_problem(f"{path} is {trunk.position.kind!r}, and another order of the tokens changes the "
                               f"{side}'s "
                     f"first attention by {size:.1g} of what other tokens do: the position encoding has no effect",
                     f"{path}.kind={'sinusoidal' if trunk.position.kind == 'learned' else 'learned'}")  # fmt: skip
    return finding_ok(", ".join(f"another order changes the {side}'s first attention by {size:.0%} of what "
                                "other tokens do"
                          for side, size in found.items()))  # fmt: skip


def order_effect(case: DoctorCase, side: str) -> float | None:
    """The effect of another order on the first attention output of the last token, relative to that of other tokens."""
    model, trunk = case.lively, getattr(case.lively, side)
    if not isinstance(trunk, Trunk):
        return None
    if not case.textual:
        return token_order_effect(case, trunk)
    ids = torch.arange(1, 1 + min(LONGEST, case.settings.context))[None]
    seen = visible_to_last(trunk, sequence_tokens(torch.empty(1, ids.shape[1], 0)))
    if len(seen) < 2:
        return None
    ids = other_ids(
        ids, model.c.embed.vocab, {id for id in (model.c.embed.pad_id, model.c.embed.eos_id) if id is not None}
    )
    moved, strange = ids.clone(), ids.clone()
    moved[0, seen] = ids[0, seen.roll(1)]
    strange[0, seen] = other_ids(ids, model.c.embed.vocab, set())[0, seen]
    plain, turned, different = (
        first_attention_output(model, side, each.to(case.run.device)) for each in (ids, moved, strange)
    )
    return float((turned - plain).norm() / (different - plain).norm().clamp(min=1e-9))


@torch.no_grad()
def token_order_effect(case: DoctorCase, trunk: Trunk) -> float | None:
    """The effect of another order for inputs besides text: vectors are permuted after the front end and its own
    positions."""
    model, rest = case.lively, moved_to(cut_rows(next(case.read()), 1), case.run.device)
    tokens = model.embed(rest.pop("ids"), **rest)
    if len(tokens.x) > 1:  # channels are separate rows
        return None
    seen = visible_to_last(trunk, tokens)
    if len(seen) < 2:
        return None
    turned, strange = tokens.x.clone(), tokens.x.clone()
    turned[0, seen] = tokens.x[0, seen.roll(1)]
    noise = torch.randn(strange[0, seen].shape, generator=torch.Generator().manual_seed(1)).to(strange)
    strange[0, seen] = noise * tokens.x.std()
    plain, other, new = (
        first_attention_output(model, "trunk", tokens.with_vectors(x)) for x in (tokens.x, turned, strange)
    )
    return float((other - plain).norm() / (new - plain).norm().clamp(min=1e-9))


def visible_to_last(trunk: Trunk, places: Tokens) -> torch.Tensor:
    """The positions that the last token attends to, without its own."""
    mask = trunk.masks[0][places.is_real is not None, places.document is not None]
    table, count = mask.table(places, places), places.count
    return table.expand(1, count, count)[0, -1, :-1].nonzero()[:, 0]


def first_attention_output(model: Transformer, side: str, ids: Any) -> torch.Tensor:
    """The output of a trunk's first attention at the last token."""
    address = f"{side}.0.attn.out"
    with looking(model, address, queries=slice(-1, None)) as seen:
        forward_outputs(model, {"ids": ids} if model.encoder is None else {"ids": ids[:, :3], "source": ids}
             if side == "encoder" else {"ids": ids, "source": ids[:, :3]})  # fmt: skip
    return seen[address]
