"""Integrated gradients (Sundararajan et al. 2017): gradients along a straight path from a baseline to the input.

    attribution of input i  =  (x_i - b_i) · ∫ ∂F/∂x_i (b + a(x - b)) da       their sum is F(x) - F(b)

The path is cut into pieces, each integrated by seven points (Gauss-Kronrod). Two things are known of a piece: what its
parts must sum to, the difference of F between its ends, and what three of its points alone would have said. Pieces that
miss either by most are halved until all of them together are within the tolerance. The sum alone does not tell: it can
be right to 0.3 % where single attributions are wrong by 20 %.

Every ReLU is a kink, and a baseline of zeros is a cliff where norms stand first: each multiplies a vanishing vector by
1 / sqrt(eps), so that after a few layers the score changes within a millionth of the way. Such a path may not settle.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.lens.attribution.explained_score import ExplainedScore

# Kronrod's seven points on [-1, 1], with the three of Gauss among them: exact for polynomials of degree ten and five
NODES = (-0.9604912687080203, -0.7745966692414834, -0.4342437493468026, 0.0,
         0.4342437493468026, 0.7745966692414834, 0.9604912687080203)  # fmt: skip
WEIGHTS = (0.1046562260264673, 0.2684880898683334, 0.4013974147759622, 0.4509165386584741,
           0.4013974147759622, 0.2684880898683334, 0.1046562260264673)  # fmt: skip
FEWER = (0.0, 5 / 9, 0.0, 8 / 9, 0.0, 5 / 9, 0.0)
FIRST_PIECES = 4
NOISE = 16  # roundings of the score: errors below are no errors of the integral


@dataclass(frozen=True, eq=False)
class PathPiece:
    """A piece of the path: what it adds to each input; by how much these miss the difference of the score, and by how
    much the worst of them would be another with fewer points."""

    start: float
    stop: float
    parts: Tensor  # (inputs,)
    miss: float
    doubt: float


@dataclass(frozen=True, eq=False)
class PathIntegral:
    """Attributions of all inputs, those of the prompt before those of the source; `steps` is how many gradients.

    `settled` is False where the cap came before the tolerance.
    """

    parts: Tensor  # (inputs,)
    baseline_score: float
    difference: float
    steps: int
    settled: bool

    @property
    def error(self) -> float:
        """Completeness: how far the sum is from the difference of the scores, as a share of that difference."""
        missed = abs(float(self.parts.sum()) - self.difference)
        return missed / abs(self.difference) if self.difference else missed


def integrate_gradients(
    explained: ExplainedScore, bases: Sequence[Tensor], *, tolerance: float = 0.01, max_steps: int = 2048
) -> PathIntegral:
    """Halve the worst pieces until sum and parts are within the tolerance, or up to a cap."""
    ends = [place / FIRST_PIECES for place in range(FIRST_PIECES + 1)]
    scores = dict(zip(ends, path_scores(explained, bases, ends), strict=True))
    pieces = integrate_pieces(explained, bases, list(zip(ends, ends[1:], strict=False)), scores)
    start, stop = scores[0.0], scores[1.0]
    rounding = NOISE * torch.finfo(explained.inputs[0].x.dtype).eps * max(abs(start), abs(stop), 1e-30)
    steps = len(pieces) * len(NODES)
    while True:
        # errors are shares: of the difference, and of the largest attribution
        sizes = (abs(stop - start), float(total(pieces).abs().max()))
        difference, largest = (max(size, rounding / tolerance) for size in sizes)
        found = worst_pieces(pieces, difference, largest, tolerance)
        worst = found[: max(0, max_steps - steps) // (2 * len(NODES))]
        if not worst:
            return PathIntegral(total(pieces), start, stop - start, steps, settled=not found)
        halves = [half for piece in worst for half in halve(piece)]
        pieces = [piece for piece in pieces if piece not in worst] + integrate_pieces(explained, bases, halves, scores)
        steps += len(halves) * len(NODES)


def total(pieces: Sequence[PathPiece]) -> Tensor:
    return torch.stack([piece.parts for piece in sorted(pieces, key=lambda piece: piece.start)]).sum(0)


def worst_pieces(pieces: Sequence[PathPiece], difference: float, largest: float, tolerance: float) -> list[PathPiece]:
    """None if all together are within the tolerance; else the fewest without which the rest is within half of it."""

    def error(pieces: Sequence[PathPiece]) -> float:
        misses = [piece.miss / difference for piece in pieces]  # those of opposite sign may hide each other: hypot
        return max(abs(sum(misses)), 2 * math.hypot(*misses), math.hypot(*(piece.doubt / largest for piece in pieces)))

    if error(pieces) <= tolerance:
        return []
    ordered = sorted(pieces, key=lambda piece: -error([piece]))
    count = next(count for count in range(len(ordered) + 1) if error(ordered[count:]) <= tolerance / 2)
    return ordered[: max(count, 1)]


def halve(piece: PathPiece) -> list[tuple[float, float]]:
    middle = (piece.start + piece.stop) / 2
    return [(piece.start, middle), (middle, piece.stop)]


def integrate_pieces(
    explained: ExplainedScore, bases: Sequence[Tensor], spans: Sequence[tuple[float, float]], scores: dict[float, float]
) -> list[PathPiece]:
    """Each piece by its points; and the score at its ends, for what the sum should have been: new ones are added."""
    points = [(start + stop) / 2 + (stop - start) / 2 * node for start, stop in spans for node in NODES]
    slopes = path_slopes(explained, bases, points).unflatten(0, (len(spans), len(NODES)))  # (pieces, nodes, inputs)
    widths = torch.tensor([(stop - start) / 2 for start, stop in spans], dtype=slopes.dtype, device=slopes.device)
    rules = widths.new_tensor([WEIGHTS, FEWER]) * widths[:, None, None]  # (pieces, 2, nodes)
    parts, fewer = (rules @ slopes).unbind(1)  # (pieces, inputs)
    doubts = (parts - fewer).abs().amax(1).tolist()
    ends = sorted({end for span in spans for end in span} - scores.keys())
    if ends:
        scores |= zip(ends, path_scores(explained, bases, ends), strict=True)
    found = zip(spans, parts, doubts, strict=True)
    return [PathPiece(start, stop, part, float(part.sum()) - scores[stop] + scores[start], doubt)
            for (start, stop), part, doubt in found]  # fmt: skip


def path_slopes(explained: ExplainedScore, bases: Sequence[Tensor], points: Sequence[float]) -> Tensor:
    """(points, inputs): the gradient there times the way from baseline to input, summed over each input."""
    found = []
    for start in range(0, len(points), explained.batch_size):
        rows = path_rows(explained, bases, points[start : start + explained.batch_size])
        steep = explained.gradients(rows)
        each = zip(explained.inputs, steep, bases, strict=True)
        found.append(torch.cat([side.sum_inputs(slope * (side.x - base)) for side, slope, base in each], 1))
    return torch.cat(found)


def path_scores(explained: ExplainedScore, bases: Sequence[Tensor], points: Sequence[float]) -> list[float]:
    return [float(score) for score in explained.score_batches(path_rows(explained, bases, points))]


def path_rows(explained: ExplainedScore, bases: Sequence[Tensor], points: Sequence[float]) -> list[Tensor]:
    """Rows of each input, so far on the way from its baseline."""
    way = torch.tensor(points, dtype=explained.inputs[0].x.dtype, device=explained.inputs[0].x.device)
    sides = zip(explained.inputs, bases, strict=True)
    return [torch.lerp(base, side.x, way.view(-1, *[1] * (side.x.dim() - 1))) for side, base in sides]
