"""Circuits of all heads at once: copying scores, composition scores, and singular values with their directions.

The numbers are those of `copying_score`, `composition_scores` and `CircuitMatrix` for one head or pair. What is large
is made once: E'U, the product of embedding and unembedding tables, for all copying scores; and for composition the
factors of all heads of a layer side by side.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.lens.attention_maps import find_attentions, unwrap_model
from regard.lens.circuits.attention_circuits import (
    HeadPlace,
    find_attention_head,
    ov_matrix,
    path_norms,
    qk_matrix,
)
from regard.lens.circuits.factored_matrix import CircuitMatrix
from regard.lens.circuits.vocabulary_circuits import ROWS, vocabulary_circuit
from regard.lens.frozen_norm import apply_gain, widen

Kind = Literal["Q", "K", "V"]
KINDS: tuple[Kind, ...] = ("Q", "K", "V")


def circuit_heads(model: Any) -> dict[str, int]:
    """The attentions that have QK and OV circuits, with their numbers of heads, in the order of the walk."""
    found = {}
    for where in find_attentions(unwrap_model(model)):
        try:
            found[where] = find_attention_head(model, where).attention.heads
        except ConfigError:
            continue
    return found


# ---------------------------------------------------------------- copying


def copying_scores(model: Any) -> dict[str, Tensor]:
    """The copying score of every head of every attention that writes to a vocabulary which it reads: (H,) each.

    The eigenvalues of W_U W_OV W_E that need not be zero are those of the d x d matrix W_V E'U W_O.
    """
    found: dict[str, Tensor] = {}
    gram: Tensor | None = None
    for where, heads in circuit_heads(model).items():
        scores = []
        for head in range(heads):
            try:
                circuit, embed, unembed = vocabulary_circuit(model, where, head)
            except ConfigError:
                break
            gram = token_gram(embed, unembed) if gram is None else gram
            values = torch.linalg.eigvals((circuit.right @ gram @ circuit.left).cpu())
            scores.append(float(values.real.sum() / values.abs().sum().clamp(min=1e-300)))
        if scores:
            found[where] = torch.tensor(scores, dtype=torch.float64)
    return found


def token_gram(embed: Tensor, unembed: Tensor) -> Tensor:
    """E'U over the ids that are both read and written: (width of embed, width of unembed)."""
    count = min(len(embed), len(unembed))
    found = widen(embed.new_zeros(embed.shape[1], unembed.shape[1]))
    for start in range(0, count, ROWS):
        words = slice(start, min(start + ROWS, count))
        found += widen(embed[words]).mT @ widen(unembed[words])
    return found


# ---------------------------------------------------------------- composition


@dataclass(frozen=True, eq=False)
class HeadFactors:
    """One attention's circuits as what their norms need: `writes` of OV, and `reads` by kind of the later head."""

    place: HeadPlace
    writes: Tensor  # (D, H·d)
    reads: dict[Kind, Tensor]  # (H·d, D)


def composition_table(model: Any) -> dict[Kind, Tensor]:
    """Composition scores of every head with every other, (heads, heads): rows are earlier heads, columns later ones;
    nan where the later one does not read what the earlier one writes."""
    factors = [head_factors(model, where) for where in circuit_heads(model)]
    sizes = [each.place.attention.heads for each in factors]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    found: dict[Kind, Tensor] = {}
    for kind in KINDS:
        table = torch.full((sum(sizes), sum(sizes)), torch.nan, dtype=torch.float64)
        for (i, first), (j, second) in each_pair(factors):
            try:
                norms = path_norms(first.place, second.place, kind)
            except ConfigError:
                continue
            writes = first.writes
            for norm in norms:
                writes = apply_gain(norm, writes)
            scores = compose(writes.unflatten(1, (sizes[i], -1)), second.reads[kind].unflatten(0, (sizes[j], -1)))
            table[starts[i] : starts[i] + sizes[i], starts[j] : starts[j] + sizes[j]] = scores.cpu()
        found[kind] = table
    return found


def each_pair(factors: list[HeadFactors]) -> Iterator[tuple[tuple[int, HeadFactors], tuple[int, HeadFactors]]]:
    return ((one, other) for one in enumerate(factors) for other in enumerate(factors) if one[0] != other[0])


def head_factors(model: Any, where: str) -> HeadFactors:
    """A circuit is left · right; its norm in a product is that of `left` times the triangle of `right`, or the other
    way round."""
    place = find_attention_head(model, where)
    like = next(place.model.parameters()).dtype
    wide = torch.float64 if like == torch.float64 else torch.float32
    writes, reads = list[Tensor](), dict[Kind, list[Tensor]]({kind: [] for kind in KINDS})
    for head in range(place.attention.heads):
        ov, qk = ov_matrix(model, where, head), qk_matrix(model, where, head)
        writes.append(ov.left @ ov.triangles[1].mT)
        for kind, circuit in (("Q", qk.T), ("K", qk), ("V", ov)):
            reads[kind].append(circuit.triangles[0] @ circuit.right)  # type: ignore[index]
    stacked = {kind: torch.cat(rows).to(wide) for kind, rows in reads.items()}
    return HeadFactors(place, torch.cat(writes, 1).to(wide), stacked)


def compose(writes: Tensor, reads: Tensor) -> Tensor:
    """|A B| / (|A| |B|) of writes (D, H, d) and reads (H', d, D): (H, H')."""
    product = reads.flatten(0, 1) @ writes.flatten(1)  # (H'·d, H·d)
    parts = product.unflatten(0, reads.shape[:2]).unflatten(-1, writes.shape[1:])  # (H', d, H, d)
    both = torch.linalg.vector_norm(parts, dim=(1, 3)).mT.double()
    apart = [torch.linalg.vector_norm(writes, dim=(0, 2))[:, None], torch.linalg.vector_norm(reads, dim=(1, 2))]
    scores: Tensor = both / (apart[0] * apart[1]).double().clamp(min=1e-300)
    return scores


# ---------------------------------------------------------------- directions


@dataclass(frozen=True, eq=False)
class HeadDirections:
    """Singular values of the circuits of one attention's heads, and the leading directions: what is written (or asked
    with), and what is read for it."""

    values: Tensor  # (H, d)
    written: Tensor  # (H, n, D)
    read: Tensor  # (H, n, D)


def head_directions(model: Any, where: str, kind: Literal["QK", "OV"], count: int) -> HeadDirections:
    """The singular values of every head's circuit, and `count` leading pairs of directions.

    A pair has no sign of its own; it is turned so that what is written has its largest entry above zero.
    """
    make = {"QK": qk_matrix, "OV": ov_matrix}[kind]
    heads = find_attention_head(model, where).attention.heads
    values, written, read = list[Tensor](), list[Tensor](), list[Tensor]()
    for head in range(heads):
        circuit: CircuitMatrix = make(model, where, head)
        left, strengths, right = circuit.singular_vectors()
        left, right = left[:, :count].mT, right[:count]
        signs = left.gather(1, left.abs().argmax(1, keepdim=True)).sign()
        for table, rows in ((values, strengths), (written, left * signs), (read, right * signs)):
            table.append(rows)
    return HeadDirections(torch.stack(values), torch.stack(written), torch.stack(read))
