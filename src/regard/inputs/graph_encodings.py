"""Graph encodings: Laplacian, random-walk and distance encodings of nodes, the distance bias, graph convolution.

laplacian    eigenvectors of I - D^-1/2 A D^-1/2: smooth over the graph, as sines are over a line
random walk  diag(A D^-1), diag((A D^-1)^2), ...: the probability of return after 1, 2, ... steps
distances    edges on the shortest path between two nodes
convolution  D^-1/2 A D^-1/2: a weighted mean over neighbours
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError
from regard.core.kernels import AttentionSpec, mask_table
from regard.core.layers import MIXERS, FusedLinear, Scope
from regard.core.positions import POSITIONS, BiasTable, LearnedBias, PreparedPosition
from regard.core.tokens import TokenLayout
from regard.inputs.cost import MIXER_GROWTH

SPARSE_NODES, SPARSE_SHARE = (
    256,
    0.05,
)  # nodes from which, and density below which, a sparse product is used

# ---------------------------------------------------------------- encodings and products of an adjacency


def laplacian_eigenvectors(joined: Tensor, count: int) -> Tensor:
    """(N, count) eigenvectors of the normalised Laplacian with the smallest eigenvalues, without the first.

    Signs are arbitrary, as is the basis for equal eigenvalues. Zeros where a graph has fewer.
    """
    a = joined.double()
    root = a.sum(-1).clamp(min=1).rsqrt()
    # isolated nodes have a zero diagonal
    laplacian = torch.diag((a.sum(-1) > 0).double()) - root[:, None] * a * root
    found = torch.linalg.eigh(laplacian).eigenvectors[:, 1 : count + 1]
    return F.pad(found, (0, count - found.shape[1])).float()


def random_walk_probabilities(joined: Tensor, steps: int) -> Tensor:
    """(N, steps) return probability of a random walk from each node after 1, 2, ... steps."""
    a = joined.double()
    step = a / a.sum(-1, keepdim=True).clamp(min=1)
    found, back = step, []
    for _ in range(steps):
        back.append(found.diagonal())
        found = found @ step
    return torch.stack(back, -1).float()


def propagate_features(x: Tensor, joined: Tensor, hops: int) -> Tensor:
    """(B, N, D) the mean of features propagated over 0, 1, ... `hops` steps, each node being its own neighbour."""
    itself = torch.eye(joined.shape[-1], dtype=torch.bool, device=joined.device)
    step, total = normalized_adjacency(joined | itself, x.dtype), x
    for _ in range(hops):
        x = step(x)
        total = total + x
    return total / (hops + 1)


def normalized_adjacency(seen: Tensor, dtype: torch.dtype, dropout: float = 0.0) -> Callable[[Tensor], Tensor]:
    """Normalised adjacency, x -> D^-1/2 A D^-1/2 x: each edge is divided by the root of both degrees."""
    a, step = seen.float(), adjacency_product(seen, dtype, dropout)
    gets, gives = (a.sum(axis).clamp(min=1).rsqrt().to(dtype)[..., None] for axis in (-1, -2))
    return lambda x: gets * step(gives * x)


def adjacency_product(seen: Tensor, dtype: torch.dtype, dropout: float = 0.0) -> Callable[[Tensor], Tensor]:
    """Adjacency product x -> A x with dropout on A; on a CPU a sparse product for large graphs, many times faster."""
    there = type(seen) is Tensor and not torch.compiler.is_compiling()  # cost estimates have shapes only
    large = there and seen.device.type == "cpu" and seen.shape[-1] >= SPARSE_NODES
    if not large or float(seen.count_nonzero()) > SPARSE_SHARE * seen.numel():
        a = F.dropout(seen.to(dtype), dropout)
        return lambda x: a @ x
    b, i, j = seen.nonzero(as_tuple=True)
    row, column = (b * seen.shape[-1] + place for place in (i, j))  # block-diagonal matrix of all graphs
    ones = F.dropout(torch.ones(len(row), 1, dtype=dtype), dropout)

    def step(x: Tensor) -> Tensor:
        flat = x.reshape(-1, seen.shape[0] * seen.shape[-1], x.shape[-1])
        return torch.zeros_like(flat).index_add(1, row, ones * flat.index_select(1, column)).view(x.shape)

    return step


def shortest_paths(joined: Tensor, radius: int) -> Tensor:
    """(B, N, N) shortest-path lengths, and radius + 1 for all longer ones."""
    count = joined.shape[-1]
    near = torch.eye(count, dtype=torch.bool, device=joined.device).expand(joined.shape)
    found, step = near.logical_not().long() * (radius + 1), joined.float()
    for length in range(1, radius + 1):
        near = near | (near.float() @ step > 0)
        found = torch.where(near & (found > length), length, found)
    return found


# ---------------------------------------------------------------- on the scores


class GraphDistanceBias(LearnedBias):
    """Graph distance bias: a trained number for each head and distance, added to the scores."""

    def __init__(self, c: config.GraphDistanceBias, heads: int) -> None:
        super().__init__(c.max_distance + 2, heads)
        self.radius = c.max_distance

    def prepare(self, q: TokenLayout, k: TokenLayout) -> PreparedPosition:
        if q.edges is None:
            raise ConfigError("trunk.position 'graph_distance' reads edges, and these tokens carry none; give edges= "
                              "to the front end")  # fmt: skip
        apart = shortest_paths(q.edges, self.radius)  # (B, N, N)
        return PreparedPosition(bias=BiasTable(self.bias, lambda q, k: apart[q.b, q.i, k.i]))

    def prepared_flops(self, queries: int) -> int:
        """FLOPs of the distances, computed by products once per forward pass."""
        return 2 * self.radius * queries**3


# ---------------------------------------------------------------- instead of attention


class GraphConv(nn.Module):
    """Graph convolution (GCN) over the neighbours that the mask allows: D^-1/2 A D^-1/2 x W + b, or their sum,
    A x W + b."""

    sees = ("out",)

    def __init__(self, trunk: config.Trunk) -> None:
        super().__init__()
        assert isinstance(trunk.mixer, config.GraphConv)
        if trunk.position.kind == "graph_distance":
            raise ConfigError("trunk.position: 'graph_distance' is added to scores, and the mixer 'graph_conv' has "
                              "none; set it to none")  # fmt: skip
        self.dropout, self.sums = trunk.dropout.attention, trunk.mixer.sums
        self.map: FusedLinear = FusedLinear(trunk.dim, {"v": trunk.dim}, ("v",) if trunk.mixer.bias else ())

    def forward(self, x: Tensor, scope: Scope, past: object = None) -> Tensor:
        dropout, make = self.dropout if self.training else 0.0, adjacency_product if self.sums else normalized_adjacency
        step = make(visible_pairs(scope.plan.spec), x.dtype, dropout)
        return scope.tap("attn.out", step(self.map(x)))

    def entry(self, batch: int, capacity: int, like: Tensor) -> object:
        raise ConfigError("trunk.mixer 'graph_conv': the nodes of a graph are computed all at once; there is no cache")


def visible_pairs(spec: AttentionSpec) -> Tensor:
    """(B, N, N) True where the mask allows attention."""
    rows = torch.arange(spec.q.count, device=spec.q.order.device)
    table = mask_table(spec, rows[:1], rows, None, torch.float32)
    full = rows.new_ones(1, spec.q.count, spec.k.count, dtype=torch.bool)
    return full if table is None else table[:, 0]


POSITIONS[config.GraphDistanceBias] = lambda c, dim, heads, width: GraphDistanceBias(c, heads)
MIXER_GROWTH["graph_conv"] = ("e·d", 2.0)
MIXERS["graph_conv"] = lambda trunk, layer: GraphConv(trunk)
