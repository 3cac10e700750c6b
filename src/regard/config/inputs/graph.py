"""Config of graphs: node embedding with Laplacian and random-walk encodings, the distance bias, graph convolution."""

from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import NonTextEmbedding, check_minimum, config_class


@config_class
class GraphEmbedding(NonTextEmbedding):
    """Graph embedding: each node is a token, in any order, with `features` numbers or one of `num_tags` tags.

    The edges are for the trunk's mask ("edges", or "edges(0)" without self-loops) and for distance biases. Optional
    node encodings, none by default: the first `laplacian_pe` eigenvectors of the Laplacian, whose signs are arbitrary
    and random in training (Dwivedi and Bresson 2021); the return probability of a random walk after 1, 2, ...
    `random_walk_pe` steps (Dwivedi et al. 2022); and a trained vector for each degree up to `max_degree` (Ying et al.
    2021). With `hops` features are propagated: a node's vector is the mean over 0, 1, ... so many steps of
    D^-1/2 (A + I) D^-1/2 (Feng et al. 2020).

    With `normalize` the features of a node are divided by their sum; `dropout` applies to features, and `node_dropout`
    is the fraction of nodes whose features are dropped in a training step, so that the model must use neighbours. A
    graph has at most `max_nodes` nodes: full attention costs their square.
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
            raise ConfigError(f"num_tags: {self.num_tags}, and features {self.features}; set only one of the two")
        for name in ("dropout", "node_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)} is not a rate between 0 and 1")
        if self.num_tags and (self.normalize or self.dropout):
            raise ConfigError(f"{'normalize' if self.normalize else 'dropout'}: it is for features, and nodes carry "
                              "tags; leave it out")  # fmt: skip

    @property
    def count(self) -> int:
        """The maximum number of tokens of a graph."""
        return self.max_nodes


@config_class
class GraphDistanceBias:
    """Graph distance bias: a trained number for each head and shortest-path length (Graphormer: Ying et al. 2021).

    Lengths up to `max_distance` have one each; longer and infinite ones share one.
    """

    kind: Literal["graph_distance"] = "graph_distance"
    max_distance: int = 8
    tables: Literal["shared", "layer"] = "shared"

    def __post_init__(self) -> None:
        check_minimum(1, max_distance=self.max_distance)


@config_class
class GraphConv:
    """Graph convolution instead of attention, a mean over allowed nodes: D^-1/2 A D^-1/2 x W (Kipf and Welling 2017).

    A is the trunk's mask: "edges" for a graph convolution with self-loops, A + I. With `sums` neighbours are summed, A
    x W, so that a node can count them (GIN: Xu et al. 2019).
    """

    kind: Literal["graph_conv"] = "graph_conv"
    bias: bool = True
    sums: bool = False
