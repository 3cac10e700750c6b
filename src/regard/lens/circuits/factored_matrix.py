"""Factored matrices: what a head does to the residual stream is D x D of rank d, kept as (D, d) times (d, D).

Norm, singular values and eigenvalues come from d x d matrices; `dense()` makes the large one where it is asked for.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from regard.lens.result import LensResult, Picture, Table


@dataclass(frozen=True, eq=False)
class CircuitMatrix(LensResult):
    """A matrix left @ right of low rank, in float64; `name` is the circuit it stands for, `note` what it leaves out."""

    left: Tensor  # (D, d)
    right: Tensor  # (d, D)
    name: str = ""
    note: str = ""

    def dense(self) -> Tensor:  # (D, D)
        return self.left @ self.right

    @property
    def T(self) -> "CircuitMatrix":
        return replace(self, left=self.right.mT, right=self.left.mT)

    @cached_property
    def triangles(self) -> tuple[Tensor, Tensor]:  # (d, d) each
        """R of the QR decompositions of `left` and of `right` transposed: all that a norm needs to know of them."""
        left, right = (torch.linalg.qr(factor, mode="r").R for factor in (self.left, self.right.mT))
        return left, right

    def singular_values(self) -> Tensor:  # (d,)
        """Those that need not be zero, the largest first."""
        values: Tensor = torch.linalg.svdvals(self.triangles[0] @ self.triangles[1].mT)
        return values

    def singular_vectors(self) -> tuple[Tensor, Tensor, Tensor]:
        """(D, d), (d,), (d, D): directions that are written, how strongly, and the directions that are read for it."""
        (left, a), (right, b) = torch.linalg.qr(self.left), torch.linalg.qr(self.right.mT)
        u, s, v = torch.linalg.svd(a @ b.mT, full_matrices=False)
        return left @ u, s, v @ right.mT

    def eigenvalues(self) -> Tensor:  # (d,) complex
        """Those that need not be zero: of left @ right as of right @ left."""
        values: Tensor = torch.linalg.eigvals(self.right @ self.left)
        return values

    def norm(self) -> float:
        """The Frobenius norm."""
        return float(torch.linalg.matrix_norm(self.triangles[0] @ self.triangles[1].mT))

    def table(self) -> Table:
        values = self.singular_values()
        share = values.square() / values.square().sum().clamp(min=1e-300)
        rows = tuple((i, float(value), float(part)) for i, (value, part) in enumerate(zip(values, share, strict=True)))
        return Table(f"How strong are the directions of {self.name}?", ("number", "singular value", "share"), rows,
                     self.note)  # fmt: skip

    def picture(self) -> Picture:
        values = self.singular_values()
        return Picture("bars", f"How strong are the directions of {self.name}?", values[None].cpu(), [self.name],
                       list(map(str, range(len(values)))), "singular value")  # fmt: skip
