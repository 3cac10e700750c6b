"""The result of direct logit attribution: named parts with their contributions, as a table, by layer and by head."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.lens.result import LensResult, Picture, Table

SHOWN = 24  # bars that a reader can tell apart
Kind = Literal["embed", "position", "segment", "head", "mixer", "mlp", "unit", "rest", "bias", "remainder"]


@dataclass(frozen=True)
class LogitPart:
    """One part of a logit. `place` is the sublayer it belongs to: embed, 3.attn, 3.cross, 3.mlp, head."""

    name: str
    place: str
    kind: Kind
    index: int | None = None  # of a head or a unit


@dataclass(frozen=True, eq=False)
class LogitAttribution(LensResult):
    """A logit and the parts that it is the sum of, in the order of the walk; `against` where it is a difference."""

    parts: tuple[LogitPart, ...]
    values: Tensor  # (parts,) in float64
    logit: float  # as the model said it
    token: str
    against: str | None = None
    position: str = ""  # the label of the token that was asked; nothing where the head pools

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)

    @property
    def error(self) -> float:
        """The logit minus the sum of its parts: rounding, which is small in fp32 and larger in bf16."""
        return self.logit - float(self.values.sum())

    def __getitem__(self, name: str) -> float:
        """The contribution of the part of this name."""
        if name not in self.labels:
            raise KeyError(f"{name!r} is no part of this logit; its parts are {', '.join(self.labels)}")
        return float(self.values[self.labels.index(name)])

    def by_place(self) -> dict[str, float]:
        """The sum over each sublayer: embed, 0.attn, 0.mlp, …, and head for the final norm and what follows."""
        sums: dict[str, float] = {}
        for part, value in zip(self.parts, self.values.tolist(), strict=True):
            sums[part.place] = sums.get(part.place, 0.0) + value
        return sums

    def by_layer(self) -> dict[str, float]:
        """The sum over each block: embed, 0, 1, …, head."""
        sums: dict[str, float] = {}
        for place, value in self.by_place().items():
            layer = place.split(".")[0]
            sums[layer] = sums.get(layer, 0.0) + value
        return sums

    def heads(self, part: Literal["attn", "cross"] = "attn") -> Tensor:  # (layers, heads)
        """The contributions of the heads as a grid, where every layer has as many."""
        rows: dict[str, list[Tensor]] = {}
        for each, value in zip(self.parts, self.values, strict=True):
            if each.kind == "head" and each.place.endswith(f".{part}"):
                rows.setdefault(each.place, []).append(value)
        if not rows or len({len(row) for row in rows.values()}) > 1:
            counts = ", ".join(f"{place} has {len(row)}" for place, row in rows.items()) or f"no {part} has any"
            raise ConfigError(f"heads: a grid needs as many in every layer ({counts}); read them from parts and values")
        return torch.stack([torch.stack(row) for row in rows.values()])

    def order(self, by: Literal["magnitude", "walk"]) -> list[int]:
        places = range(len(self.parts))
        return list(places) if by == "walk" else sorted(places, key=lambda i: -abs(float(self.values[i])))

    @property
    def question(self) -> str:
        what = repr(self.token) if self.against is None else f"{self.token!r} against {self.against!r}"
        return f"Which parts make the logit of {what}{f' after {self.position!r}' if self.position else ''}?"

    def table(self, by: Literal["magnitude", "walk"] = "magnitude") -> Table:
        rows = tuple((self.parts[i].name, float(self.values[i])) for i in self.order(by))
        note = (f"They sum to {float(self.values.sum()):.4f}; the model says {self.logit:.4f}. Norms and attention "
                "weights are frozen: what a part does through later parts is counted there.")  # fmt: skip
        return Table(self.question, ("part", "contribution"), rows, note)

    def picture(self) -> Picture:
        shown = self.order("magnitude")[:SHOWN]
        names = [self.parts[i].name for i in shown]
        return Picture("bars", self.question, self.values[shown][None], [self.token], names, "logit", center=0.0)
