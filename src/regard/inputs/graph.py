"""Graph embedding and GraphProcessor: nodes are tokens, in any order, and `edges` holds the adjacency.

features (B, N, F) ─ linear ─┐                             mask "edges"        attention to neighbours only
or tags (B, N) ── embedding ─┼─ + ─►  Tokens x, edges ──►  position "graph_distance"  distances as a bias on the scores
encodings ─────── linear ────┤                             mixer "graph_conv"       a mean over neighbours (GCN)
degrees ───────── embedding ─┘                             none of them        nodes are a set
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError, DataError
from regard.core.model import FRONT_ENDS
from regard.core.tokens import Tokens
from regard.data.readers.graphs import Graph as Given
from regard.data.readers.graphs import adjacency_matrix, graph_of_record
from regard.data.records import Record
from regard.data.tensor_store import hash_row
from regard.inputs import graph_encodings
from regard.inputs.cost import FrontEndCost, TrunkCost, linear_flops
from regard.inputs.processors import PROCESSORS, TensorExample

ENCODINGS = ("laplacian_pe", "random_walk_pe")


class GraphEmbedding(nn.Module):
    """Graph front end: nodes (B, N, F) or (B, N) to Tokens without coordinates, which sequence positions refuse."""

    def __init__(self, c: config.GraphEmbedding, width: int) -> None:
        super().__init__()
        if not c.features and not c.num_tags:
            raise ConfigError("embed: set features, the numbers of a node, or num_tags, the count of tags")
        self.c = c
        self.nodes = nn.Embedding(c.num_tags, width) if c.num_tags else nn.Linear(c.features, width, bias=False)
        self.places = nn.Linear(c.laplacian_pe + c.random_walk_pe, width) if c.laplacian_pe + c.random_walk_pe else None
        self.degrees = nn.Embedding(c.max_degree + 1, width) if c.max_degree else None

    def forward(
        self, nodes: Tensor, *, edges: Tensor | None = None, real: Tensor | None = None,
        laplacian_pe: Tensor | None = None, random_walk_pe: Tensor | None = None,
    ) -> Tokens:  # fmt: skip
        """Nodes to Tokens. edges (B, N, N): True where nodes are joined; real (B, N); `encodings` (B, N, k) by name."""
        x = self.embed_features(nodes)
        if self.c.node_dropout and self.training:
            x = x * F.dropout(x.new_ones(*x.shape[:2], 1), self.c.node_dropout)
        if self.c.hops:
            x = graph_encodings.propagate_features(x, require_edges(edges, "hops"), self.c.hops)
        said = self.select_encodings(laplacian_pe=laplacian_pe, random_walk_pe=random_walk_pe)
        if self.places is not None:
            x = x + self.places(torch.cat(said, -1).to(x.dtype))
        if self.degrees is not None:
            x = x + self.degrees(require_edges(edges, "max_degree").sum(-1).clamp(max=self.c.max_degree))
        order = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
        nowhere = order.new_empty(*order.shape, 0)
        return Tokens(x=x, order=order, coords=nowhere, is_real=real, edges=edges, is_plain=real is None)

    def embed_features(self, nodes: Tensor) -> Tensor:  # (B, N, D)
        """Features or tags as vectors."""
        c, shape = self.c, tuple(nodes.shape)
        if isinstance(self.nodes, nn.Embedding):
            if nodes.dim() != 2:
                raise ConfigError(f"nodes must be (batch, nodes) tags by embed.num_tags, got a tensor of shape {shape}")
            return self.nodes(nodes)  # type: ignore[no-any-return]
        if nodes.dim() != 3 or shape[-1] != c.features:
            wanted = f"(batch, nodes, {c.features}) by embed.features"
            raise ConfigError(f"nodes must be {wanted}, got a tensor of shape {shape}")
        features = nodes.to(self.nodes.weight.dtype)
        if c.normalize:
            total = features.sum(-1, keepdim=True)
            features = features / total.where(total != 0, 1.0)
        return self.nodes(F.dropout(features, c.dropout, self.training))  # type: ignore[no-any-return]

    def select_encodings(self, **given: Tensor | None) -> list[Tensor]:
        """The encodings of the config, all of them and no others."""
        for name, table in given.items():
            asked, got = getattr(self.c, name), 0 if table is None else table.shape[-1]
            if asked != got:
                raise ConfigError(f"embed.{name} is {asked}, and {got} were given; encodings(embed, edges) makes them")
        return [table for table in given.values() if table is not None]

    def cost(self, context: int, trunk_cost: TrunkCost) -> FrontEndCost:
        """FLOPs: each hop covers all pairs of nodes."""
        nodes, width = self.c.max_nodes, self.nodes.weight.shape[0 if isinstance(self.nodes, nn.Linear) else 1]
        operations = linear_flops(self, nodes) + 2 * self.c.hops * nodes * nodes * width
        return FrontEndCost(Counter({"input": operations}), nodes)

    def describe(self) -> str:
        c, names = self.c, ("laplacian_pe", "random_walk_pe", "max_degree", "hops")
        takes = f"{c.num_tags:,} tags" if c.num_tags else f"{c.features:,} features"
        return f"nodes with {', '.join([takes, *(f'{name} {getattr(c, name)}' for name in names if getattr(c, name))])}"


def require_edges(edges: Tensor | None, name: str) -> Tensor:
    if edges is None:
        raise ConfigError(f"embed.{name} goes along edges, and none were given; give edges=")
    return edges


def compute_graph_encodings(c: config.GraphEmbedding, joined: Tensor) -> dict[str, Tensor]:
    """The positional encodings of a front end, for graphs (B, N, N) or one graph (N, N), by name."""
    if joined.dim() == 3:
        rows = [compute_graph_encodings(c, each) for each in joined]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    made = {
        "laplacian_pe": (c.laplacian_pe, graph_encodings.laplacian_eigenvectors),
        "random_walk_pe": (c.random_walk_pe, graph_encodings.random_walk_probabilities),
    }
    return {name: make(joined, count) for name, (count, make) in made.items() if count}


# ---------------------------------------------------------------- the processor


class GraphProcessor:
    """Graph processor: graphs padded to the largest of a batch; in training the signs of eigenvectors are random."""

    column = "graph"

    def __init__(self, front: config.GraphEmbedding, augment: Any = None) -> None:
        if augment is not None:
            raise ConfigError("train.augment: it changes images, and model.embed.kind is 'graph'; leave it out")
        if not front.features and not front.num_tags:
            raise ConfigError("model.embed: set how many features a node has (model.embed.features), or how many tags "
                              "there are (model.embed.num_tags)")  # fmt: skip
        self.front = front

    @property
    def about(self) -> dict[str, int]:
        """The settings that examples depend on."""
        return {name: getattr(self.front, name) for name in ("features", "num_tags", *ENCODINGS)}

    def example(self, record: Record, name: str) -> TensorExample:
        graph = graph_of_record(record, name)
        found = {"edges": graph.edges, "nodes": self.nodes(graph, record.where)}
        same = [
            hash_row({name: table}) for name, table in found.items()
        ]  # the first tensor is hashed to identify the graph
        return {"same": torch.tensor(same), **found, **compute_graph_encodings(self.front, graph.joined)}

    def nodes(self, graph: Given, where: str) -> Tensor:
        """The node features or tags, as the front end expects them."""
        c = self.front
        found, kind, other = (graph.tags, "tags", "nodes") if c.num_tags else (graph.features, "nodes", "tags")
        if found is None:
            raise DataError(f"{where}: no {kind}, which model.embed.{'num_tags' if c.num_tags else 'features'} "
                            f"needs; there are {other}, so set "
                            f"model.embed.{'features' if c.num_tags else 'num_tags'}")  # fmt: skip
        if len(found) > c.max_nodes:
            raise DataError(f"{where}: {len(found):,} nodes, and model.embed.max_nodes is {c.max_nodes:,}; set it to "
                            "the most that a graph has")  # fmt: skip
        if c.num_tags and (most := int(found.max())) >= c.num_tags:
            raise DataError(f"{where}: node {int(found.argmax())} has tag {most}, and model.embed.num_tags is "
                            f"{c.num_tags}; set it to one more than the largest tag")  # fmt: skip
        if c.features and found.shape[1] != c.features:
            raise DataError(f"{where}: {found.shape[1]} features at a node, and model.embed.features is {c.features}; "
                            "set it to that, or correct the graph")  # fmt: skip
        return found

    def blank(self, context: int) -> TensorExample:
        """An empty graph of maximum size, to count costs."""
        c = self.front
        nodes = torch.zeros(c.max_nodes, dtype=torch.long) if c.num_tags else torch.zeros(c.max_nodes, c.features)
        tables = {name: torch.zeros(c.max_nodes, getattr(c, name)) for name in ENCODINGS if getattr(c, name)}
        return {"same": torch.zeros(2, dtype=torch.long), "edges": torch.empty(0, 2).long(), "nodes": nodes, **tables}

    def length(self, example: TensorExample) -> int:
        return len(example["nodes"])

    def collate(self, examples: Sequence[TensorExample], chance: torch.Generator | None) -> dict[str, Tensor]:
        counts = torch.tensor([self.length(example) for example in examples])
        real = torch.arange(int(counts.max())) < counts[:, None]
        names = {"nodes": "ids"} | {name: name for name in ENCODINGS}
        batch = {ours: pad_nodes([example[name] for example in examples], real) for name, ours in names.items()
                 if name in examples[0]}  # fmt: skip
        batch |= {"edges": adjacency_matrix([example["edges"] for example in examples], real.shape[1]), "real": real}
        if chance is not None and "laplacian_pe" in batch:
            batch["laplacian_pe"] = batch["laplacian_pe"] * random_signs(len(examples), self.front.laplacian_pe, chance)
        return batch


def random_signs(rows: int, count: int, chance: torch.Generator) -> Tensor:  # (B, 1, count)
    return torch.randint(2, (rows, 1, count), generator=chance) * 2.0 - 1


def pad_nodes(tables: Sequence[Tensor], real: Tensor) -> Tensor:
    """(B, N, ...) tables concatenated at real nodes, zeros elsewhere."""
    made = tables[0].new_zeros(*real.shape, *tables[0].shape[1:])
    made[real] = torch.cat(list(tables))
    return made


FRONT_ENDS["graph"] = GraphEmbedding
PROCESSORS["graph"] = GraphProcessor
