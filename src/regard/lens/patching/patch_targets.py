"""Patch targets: the addresses of a model that are patched one position or one head at a time, and their labels.

    residual         the stream before the first block, and after each sublayer        place x position
    attn cross mlp   what a sublayer adds                                              place x position
    heads            what each head gathered, before the output projection             place x head
    head_positions   the same at one position                                          place and head x position

The places of an encoder come before those of its decoder.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError, DataError
from regard.lens.attention_maps import evaluation_mode, find_attentions, record_trunk_inputs
from regard.lens.patching.patched_runs import record_activations
from regard.lens.prompt import Prompt
from regard.lens.residual import residual_places

PARTS = ("residual", "attn", "cross", "mlp", "heads", "head_positions")


@dataclass(frozen=True, eq=False)
class PatchTarget:
    """One address and its patches: one for each cell of `shape`, in rows and columns of a grid."""

    address: str
    shape: tuple[int, ...]  # (N,), (H, 1) or (H, N)
    rows: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def where(self, rows: slice | Tensor, device: torch.device | None = None) -> Tensor:
        """True for what each of these patches replaces: (R, N), (R, H, 1) or (R, H, N)."""
        each = torch.arange(rows.start, rows.stop, device=device) if isinstance(rows, slice) else rows.to(device)
        cells = torch.arange(self.count, device=device).unflatten(0, self.shape)
        found: Tensor = cells == each.view(-1, *(1 for _ in self.shape))
        return found

    def position_groups(self, tokens: int) -> Iterator[tuple[int, Tensor]]:
        """The patches by position: where a group begins, and its patches; as many as read so many tokens from there."""
        cells = torch.arange(self.count).view(-1, self.shape[-1])
        start, count = 0, cells.shape[1]
        while start < count:
            stop = start + max(1, tokens // (len(cells) * (count - start)))
            yield start, cells[:, start:stop].T.flatten()
            start = stop


def patch_targets(model: Any, prompt: Prompt, parts: Sequence[str]) -> dict[str, list[PatchTarget]]:
    """The addresses of each part, with their patches; a part that this model lacks is refused."""
    found: dict[str, list[PatchTarget]] = {}
    labels = position_labels(model, prompt)
    if not parts:
        raise ConfigError(f"parts: there are none; name one or more of {', '.join(PARTS)}")
    for part in (parts,) if isinstance(parts, str) else parts:
        side, _, name = part.rpartition(".")
        if name not in PARTS or side not in ("", *labels):
            raise ConfigError(f"parts: no {part!r}; there are {', '.join(PARTS)}, of {' and '.join(labels)}")
        sides = (side,) if side else tuple(labels)
        here = {trunk: part_targets(model, name, trunk, labels[trunk]) for trunk in sides}
        if not any(here.values()):
            raise ConfigError(f"parts: this model has no {part!r}; leave it out")
        found |= {name if trunk == "trunk" else f"{trunk}.{name}": each for trunk, each in here.items() if each}
    return found


def part_targets(model: Any, name: str, trunk: str, labels: tuple[str, ...]) -> list[PatchTarget]:
    """The addresses of one part in one trunk."""
    if name == "residual":
        places = residual_places(model, trunk=trunk)
        return [PatchTarget(place.address, (len(labels),), (place.name,), labels) for place in places]
    if name.startswith("head"):
        every = find_attentions(model).items()
        each = name == "head_positions"
        return [head_target(where, attention.heads, labels, each) for where, attention in every
                if where.startswith(f"{trunk}.")]  # fmt: skip
    found = [address for address in model.addresses() if address.startswith(f"{trunk}.")]
    return [PatchTarget(address, (len(labels),), (address.split(".", 1)[1].removesuffix(".out"),), labels)
            for address in found if address.endswith(f".{name}.out")]  # fmt: skip


def head_target(where: str, heads: int, labels: tuple[str, ...], each: bool) -> PatchTarget:
    """Each head of one attention, at all positions at once or at each."""
    place, names = where.split(".", 1)[1], tuple(map(str, range(heads)))
    if not each:
        return PatchTarget(f"{where}.result", (heads, 1), (place,), names)
    return PatchTarget(f"{where}.result", (heads, len(labels)), tuple(f"{place} {head}" for head in names), labels)


# ---------------------------------------------------------------- positions and their labels


def position_labels(model: Any, prompt: Prompt) -> dict[str, tuple[str, ...]]:
    """A label for each position of every trunk: its token; row and column of an image patch; or its number."""
    trunks = [name for name in ("encoder", "trunk") if getattr(model, name, None) is not None]
    with evaluation_mode(model), record_trunk_inputs(model) as notes:
        record_activations(model, prompt, *(f"{name}.final" for name in trunks))
    labels = {}
    for name in trunks:
        read, tokens = notes[name].read, prompt.source_labels if name == "encoder" else prompt.labels
        if len(tokens) != (count := read.order.shape[1]):
            at = read.at[0] if read.image and read.at.shape[-1] == 2 else None
            tokens = tuple(str(i) if at is None else patch_label(at[i]) for i in range(count))
        labels[name] = tokens
    return labels


def patch_label(at: Tensor) -> str:
    return "cls" if bool(at.isnan().any()) else ",".join(str(int(x)) for x in at)


def check_pair(clean: Prompt, corrupted: Prompt) -> None:
    """Refuse two prompts that do not match token by token."""
    pairs = [("prompt", clean.first, corrupted.first, clean.labels, corrupted.labels)]
    pairs += [
        (name, clean.given[name], corrupted.given[name], *((clean.source_labels, corrupted.source_labels)
                                                            if name == "source" else ((), ())))
        for name in clean.given.keys() & corrupted.given.keys()
    ]  # fmt: skip
    for name, x, y, first, second in pairs:
        if x.shape != y.shape:
            both = f"clean has {describe_tokens(x, first)} and corrupted {describe_tokens(y, second)}"
            raise DataError(f"{name}: {both}; patching goes position by position, so both need the same number")
    if alone := clean.given.keys() ^ corrupted.given.keys():
        raise DataError(f"{', '.join(sorted(alone))}: one of clean and corrupted has it; give it to both or to neither")


def describe_tokens(x: Tensor, labels: tuple[str, ...]) -> str:
    if x.is_floating_point() or x.dim() > 2:
        return f"a tensor of shape {tuple(x.shape)}"
    count = f"{x.shape[1]} tokens" if x.dim() == 2 else f"shape {tuple(x.shape)}"
    rows = f" in {len(x)} rows" if len(x) != 1 else ""
    shown = " ".join(labels[:24]) + (" …" if len(labels) > 24 else "")
    return f"{count}{rows} ({shown})" if shown else f"{count}{rows}"
