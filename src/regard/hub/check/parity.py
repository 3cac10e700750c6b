"""Parity: outputs of two models compared in one dtype, and tensors of a folder round-tripped byte for byte.

Rounding is tolerated. Outputs may differ by ALLOWED_ROUNDINGS units in the last place of the largest output: every
operation rounds, and two implementations sum in different orders. In fp32 a difference of 1e-4 is always allowed; in
fp64 the unit is that of fp32, in which `transformers` computes some norms and angles whatever the dtype. Half precision
is coarse (in bf16 the tolerance is a quarter of the largest output): it shows that a dtype works, fp32 that the model
is the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import DataError
from regard.hub import name_table
from regard.hub.check.layers import LayerDifference, compare_layers, first_difference
from regard.hub.check.reference import ProbeInput, reference_outputs
from regard.hub.families.registry import FAMILIES
from regard.hub.weights import folder_tensors, match_stored_names


@dataclass(frozen=True)
class RoundTrip:
    """Result of a round trip: `same` tensors are written as they were read; `unwritten` ones are tied, old or unused;
    the other lists must be empty."""

    same: int
    unwritten: tuple[str, ...]
    changed: tuple[str, ...]
    lacking: tuple[str, ...]  # in the file, and missing in what is written
    added: tuple[str, ...]  # written, and not in the file

    @property
    def is_lossless(self) -> bool:
        return not (self.changed or self.lacking or self.added)


def check_round_trip(model: Any) -> RoundTrip:
    """Compare what saving an unchanged model would write with its files.

    Weights in memory in another dtype are compared in the dtype of the files.
    """
    origin = model.source_folder
    if origin is None:
        raise DataError("this model was not read from a folder; there is nothing to compare it with")
    files = folder_tensors(origin.path)
    family = None if origin.family is None else FAMILIES[origin.family]
    rows = None if family is None else family.rows(origin.architecture, origin.config)
    if family is not None and rows is not None:
        files, aside = match_stored_names(files, rows, family)
    else:
        aside = []
    written = name_table.export_tensors(model, rows)
    only = [name for name in files if name not in written]
    passed = [
        name
        for name in only
        if (row := name_table.find_row(rows, name)) is not None and row[0].transform in name_table.READ_ONLY_KINDS
    ]
    changed = [name for name, x in files.items() if name in written and not same_bytes(written[name], x)]
    return RoundTrip(
        same=len(written) - len(changed) - len(added := [name for name in written if name not in files]),
        unwritten=tuple(sorted([*passed, *aside])),
        changed=tuple(sorted(changed)),
        lacking=tuple(sorted(set(only) - set(passed))),
        added=tuple(sorted(added)),
    )


def same_bytes(ours: Tensor, reference: Tensor) -> bool:
    """Equal to the byte: zeros of different sign differ."""
    mine, other = (x.to("cpu", reference.dtype).flatten().contiguous().view(torch.uint8) for x in (ours, reference))
    return ours.shape == reference.shape and torch.equal(mine, other)


DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
ALLOWED_ROUNDINGS = 32  # the worst of 100 small and deep models had 8 in its outputs and 24 in a layer
EPS = {name: torch.finfo(kind).eps for name, kind in (DTYPES | {"fp64": torch.float32}).items()}


@dataclass(frozen=True)
class OutputParity:
    """Parity of outputs: `distance` is the largest difference, `largest` the largest output of the reference.

    `first` is the address of the first difference: None if there is none, "head" if all layers agree.
    """

    dtype: str
    distance: float
    largest: float
    tolerance: float
    argmax: float  # fraction of rows with the same argmax
    first: str | None
    steps: tuple[LayerDifference, ...]

    @property
    def same(self) -> bool:
        return math.isfinite(self.distance) and self.distance <= self.tolerance


@torch.no_grad()
def compare_outputs(ours: Any, reference: Any, probe: ProbeInput, dtype: str = "fp32") -> OutputParity:
    """Compare the outputs of both models, which are in this dtype and in eval mode."""
    told = probe.asked_of(ours)
    told = told if isinstance(told, tuple) else (told,)
    said = pair_outputs(told, reference_outputs(reference, probe))
    mine, other = ([probe.select_real(x).double() for x in each] for each in (told, said))
    distance, largest = max_difference(mine, other), max(float(y.abs().max()) for y in other)
    tolerance = allowed_difference(dtype, largest)
    steps = compare_layers(ours, reference, probe)
    agree = torch.cat([(x.argmax(-1) == y.argmax(-1)).flatten() for x, y in zip(mine, other, strict=True)])
    found = OutputParity(dtype, distance, largest, tolerance, float(agree.double().mean()), None, tuple(steps))
    if found.same:
        return found
    return replace(
        found, first=first_difference(ours, reference, probe, steps, allowed_difference(dtype, 1.0)) or "head"
    )


def pair_outputs(ours: tuple[Tensor, ...], reference: list[Tensor]) -> list[Tensor]:
    """The reference output for each of ours, by shape: the reference may have more, such as that of an untrained
    pooler."""
    left, found = list(reference), []
    for x in ours:
        near = [y for y in left if x.shape in (y.shape, (*y.shape, 1))]
        if not near:
            shapes = ", ".join(str(tuple(y.shape)) for y in reference)
            raise DataError(f"check: ours answers with {tuple(x.shape)}, theirs with {shapes}; this is another model")
        left = [y for y in left if y is not near[0]]
        found.append(near[0].reshape(x.shape))
    return found


def max_difference(ours: Sequence[Tensor], reference: Sequence[Tensor]) -> float:
    """The largest difference; infinite if a value is not finite, which `max` alone would skip."""
    gaps = [(x - y).detach().abs() for x, y in zip(ours, reference, strict=True) if x.numel()]
    return max((float(gap.nan_to_num(nan=torch.inf, posinf=torch.inf).max()) for gap in gaps), default=0.0)


def allowed_difference(dtype: str, largest: float) -> float:
    """The tolerance for outputs of this size."""
    return max(1e-4 if dtype == "fp32" else 0.0, ALLOWED_ROUNDINGS * EPS[dtype] * max(largest, 1.0))
