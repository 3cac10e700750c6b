"""Config of graphs: node embedding with Laplacian and random-walk encodings, the distance bias, graph convolution."""

from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import NonTextEmbedding, check_minimum, config_class


@config_class
class GraphEmbedding(NonTextEmbedding):
    """The nodes of a graph in any order, a token each: `features` numbers at a node, or one of so many `num_tags`.

    The edges are for the trunk's mask ("edges", or "edges(0)" without each node itself) and for spatial positions. What
    a node is told of its place beside that, none by default: the first `laplacian_pe` eigenvectors of the Laplacian,
    whose signs mean nothing and are drawn anew in training (Dwivedi and Bresson 2021); how likely a random walk is back
    after 1, 2, ... `random_walk_pe` steps (Dwivedi et al. 2022); and a trained vector for each number of neighbours up
    to `max_degree` (Ying et al. 2021). With `hops` a node is also told what others carry: its vector is the mean of
    those that 0, 1, ... so many steps of D^-1/2 (A + I) D^-1/2 bring there (Feng et al. 2020).

    With `normalize` the features of a node are divided by their sum; `dropout` is that of the features themselves, and
    `node_dropout` is the part of nodes that carry nothing in a step of training, so that others must speak for them.
    A graph has at most so many `max_nodes`: each may look at each, so their square counts.
    """

    kind: Literal["graph"] = "graph"
    features: int = 0
    num_tags: int = 0
    laplacian_pe: int = 0
    random_walk_pe: int = 0
    max_degree: int = 0
    hops: int = 0
    max_nodes: int = 512
    normalize: bool = False
    dropout: float = 0.0
    node_dropout: float = 0.0

    def __post_init__(self) -> None:
        check_minimum(
            0,
            features=self.features,
            num_tags=self.num_tags,
            laplacian_pe=self.laplacian_pe,
            random_walk_pe=self.random_walk_pe,
            max_degree=self.max_degree,
        )
        check_minimum(0, hops=self.hops)
        check_minimum(1, max_nodes=self.max_nodes)
        if self.features and self.num_tags:
            raise ConfigError(f"num_tags: {self.num_tags}, and features {self.features}; a node carries one of the two")
        for name in ("dropout", "node_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)} is not a rate between 0 and 1")
        if self.num_tags and (self.normalize or self.dropout):
            raise ConfigError(f"{'normalize' if self.normalize else 'dropout'}: it is for features, and nodes carry "
                              "tags; leave it out")  # fmt: skip

    @property
    def count(self) -> int:
        """The tokens that a graph becomes at most."""
        return self.max_nodes


@config_class
class GraphDistanceBias:
    """A trained number for each head and length of the shortest path between two nodes (Graphormer: Ying et al. 2021).

    Lengths up to `max_distance` have one each; all that lies further, or cannot be reached, shares one.
    """

    kind: Literal["graph_distance"] = "graph_distance"
    max_distance: int = 8
    tables: Literal["shared", "layer"] = "shared"

    def __post_init__(self) -> None:
        check_minimum(1, max_distance=self.max_distance)


@config_class
class GraphConv:
    """In place of attention, a mean over those that a node may see: D^-1/2 A D^-1/2 x W (Kipf and Welling 2017).

    A is the trunk's mask: "edges" for a graph convolution with each node among its neighbours, A + I. With `sums` all
    of them count whole, A x W, so that a node can tell how many there are (GIN: Xu et al. 2019).
    """

    kind: Literal["graph_conv"] = "graph_conv"
    bias: bool = True
    sums: bool = False
