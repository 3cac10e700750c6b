"""QK and OV circuits of attention heads, and how heads compose (Elhage et al. 2021, "A Mathematical Framework").

    score(i, j) = x_i' · W_QK · x_j        what a head attends to       W_QK = scale · W_Q' W_K
    out = W_OV · x_j                       what it moves when it does   W_OV = W_O W_V

Both are of the weights alone. The gains and the centring of the norms between the residual stream and the head are
multiplied in; their scales, which are of a run, and all biases are left out, and so is what positions add to scores.
With rotary positions W_QK is that of a token at distance zero.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from regard.config.errors import ConfigError, did_you_mean
from regard.core.layers import Attention, Norm
from regard.core.model import Trunk
from regard.lens.attention_maps import find_attentions, find_trunks, unwrap_model
from regard.lens.circuits.factored_matrix import CircuitMatrix
from regard.lens.frozen_norm import apply_gain, fold_norm, linear_matrix, widen
from regard.lens.result import LensResult, Picture, Table
from regard.models.reversible import sublayer_names

FROZEN = "The gains of norms are in; their scales and all biases are left out."


@dataclass(frozen=True, eq=False)
class HeadPlace:
    """An attention by its address: the trunk that it stands in, its block, and its place in the walk."""

    model: Any
    where: str  # trunk.3.attn

    @property
    def trunk_name(self) -> str:
        return self.where.rsplit(".", 2)[0]

    @property
    def trunk(self) -> Trunk:
        return find_trunks(self.model)[self.trunk_name]

    @property
    def layer(self) -> int:
        return int(self.where.rsplit(".", 2)[1])

    @property
    def side(self) -> str:
        return self.where.rsplit(".", 1)[1]

    @property
    def block(self) -> Any:
        return self.trunk.blocks[self.layer % len(self.trunk.blocks)]

    @property
    def attention(self) -> Attention:
        found: Attention = getattr(self.block, self.side)
        return found

    def identity(self, width: int) -> Tensor:
        """What stands for a projection that the attention does without."""
        return widen(torch.eye(width, device=next(self.model.parameters()).device))

    def read_norm(self, name: str) -> Norm | None:
        """The norm between the stream and q, k or v; none in post-norm models, nor before what an encoder made."""
        if self.trunk.c.norm_placement == "post" or self.side == "cross" and name != "q":
            return None
        norm: Norm = getattr(self.block, f"{self.side}_norm")
        return norm

    def reader(self, name: str, head: int) -> Tensor:  # (d, D)
        """The rows that make a head's q, k or v from the stream, with that norm in."""
        attention, width = self.attention, self.trunk.c.dim
        count = attention.heads if name == "q" else attention.kv_heads
        layers: tuple[Any, ...] = (attention.q, attention.kv) if self.side == "cross" else (attention.qkv,)
        maps = self.identity(width)
        for layer in layers:
            if layer is not None and name in layer.sizes:
                parts = linear_matrix(layer, width).split(list(layer.sizes.values()), 1)
                maps = dict(zip(layer.sizes, parts, strict=True))[name]
        rows = widen(maps.unflatten(1, (count, -1))[:, head * count // attention.heads].mT)
        if (norm := {"q": attention.q_norm, "k": attention.k_norm}.get(name)) is not None:
            rows = apply_gain(norm, rows)
        return rows if (norm := self.read_norm(name)) is None else fold_norm(norm, rows)


def find_attention_head(model: Any, where: str, head: int = 0) -> HeadPlace:
    """The attention of an address; or a sentence."""
    model = unwrap_model(model)
    known = find_attentions(model)
    if where not in known:
        raise ConfigError(f"no attention {where!r}{did_you_mean(where, list(known))} this model has "
                          f"{', '.join(known) or 'none'}")  # fmt: skip
    if not isinstance(known[where], Attention):
        raise ConfigError(f"{where}: this is no attention with projections, so it has no QK and OV circuits")
    if not 0 <= head < known[where].heads:
        raise ConfigError(f"head: {where} has {known[where].heads} heads, and {head} was asked for")
    place = HeadPlace(model, where)
    if not place.trunk.c.residual:
        raise ConfigError(f"{place.trunk_name}.residual is false, so there is no residual stream that heads share")
    return place


def ov_matrix(model: Any, where: str, head: int) -> CircuitMatrix:
    """The OV circuit of a head, W_O W_V: what it writes into the stream for a vector that it attends to."""
    place = find_attention_head(model, where, head)
    attention = place.attention
    inner = attention.heads * attention.value_head_dim
    left = linear_matrix(attention.out, inner).unflatten(0, (attention.heads, -1))[head].mT.to(place.identity(1))
    return CircuitMatrix(left, place.reader("v", head), f"OV of {where} head {head}", FROZEN)


def qk_matrix(model: Any, where: str, head: int) -> CircuitMatrix:
    """The QK circuit of a head, scale · W_Q' W_K: its attention score is x_i' M x_j, before what positions add."""
    place = find_attention_head(model, where, head)
    attention = place.attention
    notes, position = [FROZEN], place.trunk.c.position
    if place.side == "attn" and position.kind != "none" and getattr(position, "mode", "qk") == "qk":
        zero = ", as of a token at distance zero" if position.kind == "rotary" else ""
        notes.append(f"Positions ({position.kind}) are left out{zero}.")
    if attention.cosine or attention.q_norm is not None:
        notes.append("q and k are normed, and the scale of that is left out too.")
    left, right = place.reader("q", head).mT * attention.scale, place.reader("k", head)
    return CircuitMatrix(left, right, f"QK of {where} head {head}", " ".join(notes))


def stream_norms(trunk: Trunk, start: str, stop: str = "") -> list[Norm]:
    """The norms on the residual stream itself from the sum after `start` on: those of a post-norm model; and the final
    norm where no `stop` is named."""
    names = ["embed"]
    for layer in range(trunk.c.depth):
        names += [f"{layer}.{part}" for part in sublayer_names(trunk.blocks[layer % len(trunk.blocks)])]
    passed = names[names.index(start) : names.index(stop) if stop else None]
    norms: list[Norm] = []
    if trunk.c.norm_placement == "post":
        steps = (name.split(".") for name in passed if name != "embed")
        norms = [getattr(trunk.blocks[int(layer) % len(trunk.blocks)], f"{part}_norm") for layer, part in steps]
    return norms if stop or trunk.final_norm is None else [*norms, trunk.final_norm]


def memory_norms(place: HeadPlace, start: str) -> list[Norm]:
    """The norms of the encoder from the sum after `start` to what a cross-attention reads of it."""
    encoder = find_trunks(place.model)[place.trunk_name.removesuffix("trunk") + "encoder"]
    layer = place.layer + 1 if place.trunk.c.cross == "layerwise" else encoder.c.depth
    stop = f"{layer}.attn" if layer < encoder.c.depth else ""
    norms = stream_norms(encoder, start, stop)
    return [*norms, encoder.final_norm] if stop and encoder.final_norm is not None else norms


# ---------------------------------------------------------------- composition


@dataclass(frozen=True, eq=False)
class CompositionScores(LensResult):
    """How much of what earlier heads write is read by later ones; `expected` is that of matrices turned at random."""

    scores: Tensor  # (heads of earlier, heads of later), between 0 and 1
    earlier: str
    later: str
    kind: str
    expected: float

    def table(self) -> Table:
        rows = tuple((f"{self.earlier} head {i}", f"{self.later} head {j}", float(value), float(value) / self.expected)
                     for i, row in enumerate(self.scores) for j, value in enumerate(row))  # fmt: skip
        note = (f"Matrices turned at random have {self.expected:.4g} as a root mean square. A score is of the weights "
                "alone: it does not say that the heads are ever used together.")  # fmt: skip
        columns = ("earlier", "later", "score", "times random")
        return Table(f"Which heads compose ({self.kind})?", columns, rows, note)

    def picture(self) -> Picture:
        rows = [f"{self.earlier} head {i}" for i in range(self.scores.shape[0])]
        columns = [f"{self.later} head {i}" for i in range(self.scores.shape[1])]
        return Picture("grid", f"Which heads compose ({self.kind})?", self.scores, rows, columns, "composition score")


def composition_scores(model: Any, earlier: str, later: str, kind: Literal["Q", "K", "V"] = "K") -> CompositionScores:
    """Composition scores of all heads of two attentions: |A B| / (|A| |B|) in Frobenius norms, B the OV circuit of the
    earlier head, and A what the later one reads with: W_QK' for its queries, W_QK for keys, W_OV for values.

    Of B turned at random against A the mean square is 1 / D exactly, which is the expected value beside the scores.
    """
    first, second = find_attention_head(model, earlier), find_attention_head(model, later)
    if kind not in ("Q", "K", "V"):
        raise ConfigError(f"kind: {kind!r} is none of Q, K, V, by what the later head does with what it reads")
    norms, counts = path_norms(first, second, kind), (first.attention.heads, second.attention.heads)
    written, reads = [], []
    for head in range(counts[0]):
        circuit = ov_matrix(model, earlier, head)
        for norm in norms:
            circuit = replace(circuit, left=apply_gain(norm, circuit.left))
        written.append(circuit)
    for head in range(counts[1]):
        circuit = (ov_matrix if kind == "V" else qk_matrix)(model, later, head)
        reads.append(circuit.T if kind == "Q" else circuit)
    scores = torch.tensor([[composition_score(a, b) for a in reads] for b in written], dtype=torch.float64)
    return CompositionScores(scores, earlier, later, kind, first.trunk.c.dim**-0.5)


def composition_score(later: CircuitMatrix, earlier: CircuitMatrix) -> float:
    """|A B| / (|A| |B|), from their factors."""
    product = later.triangles[0] @ (later.right @ earlier.left) @ earlier.triangles[1].mT
    return float(torch.linalg.matrix_norm(product)) / max(later.norm() * earlier.norm(), 1e-300)


def path_norms(first: HeadPlace, second: HeadPlace, kind: str) -> list[Norm]:
    """The norms between two attentions, of which the second reads what the first has written; or why it does not."""
    if first.trunk.c.kind == "reversible":
        raise ConfigError("trunk.kind 'reversible' has two streams, and an attention writes to the one that the next "
                          "does not read; composition is of a single stream")  # fmt: skip
    across = second.side == "cross" and kind != "Q"  # keys and values of what the encoder has made
    own = "encoder" if across else second.trunk_name
    if first.trunk_name != own:
        raise ConfigError(f"{second.where} reads its {kind} from {own}, and {first.where} does not write there")
    layerwise = across and second.trunk.c.cross == "layerwise"
    if layerwise and first.layer > second.layer or not across and order_of(first) >= order_of(second):
        raise ConfigError(f"earlier: {first.where} writes after {second.where} has read; name them in their order")
    if across:
        return memory_norms(second, f"{first.layer}.attn")
    return stream_norms(first.trunk, f"{first.layer}.{first.side}", f"{second.layer}.{second.side}")


def order_of(place: HeadPlace) -> tuple[int, bool]:
    return place.layer, place.side == "cross"
