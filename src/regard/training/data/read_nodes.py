"""One graph of a recipe as batches, for node classification: every step reads all of it, and only the labels differ."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from regard import config, data
from regard.config.errors import ConfigError, DataError
from regard.data.batching import seeded_generator
from regard.data.readers.graphs import Graph, graph_of_record
from regard.data.records import Record
from regard.data.sources import check_settings_used, name_sources
from regard.files import content_cache
from regard.inputs.graph import GraphProcessor, random_signs
from regard.tasks.collate import TaskBatch
from regard.tasks.node_classification import (
    NodeClassification,
    fill_node_classes,
    node_labels,
    node_splits,
    node_targets,
)
from regard.training.data.read import INPUT_READERS, Reporter, RunData
from regard.training.data.read_inputs import check_no_text_settings
from regard.zoo.recipe import UNKNOWN_VOCAB

USUAL = config.Train()


@dataclass(frozen=True, eq=False)
class WholeGraphBatches:
    """The whole graph in every batch, with the labels of one part."""

    name: str
    graph: TaskBatch
    labels: Tensor
    seed: int | None = None  # nothing is random

    @property
    def rows(self) -> list[str]:
        return [self.name]

    def batch(self, step: int) -> TaskBatch:
        batch = self.graph | {"labels": self.labels}
        if self.seed is not None and "laplacian_pe" in batch:
            vectors, chance = batch["laplacian_pe"], seeded_generator(self.seed, "step", step)
            batch["laplacian_pe"] = vectors * random_signs(1, vectors.shape[-1], chance)
        return batch

    def names(self, step: int) -> list[int]:
        return [0]

    def epochs(self, step: int) -> float:
        return float(step)

    def batches(self, tokens: int | None = None) -> Iterator[Any]:
        """One batch: part of a graph would be another graph."""
        yield self.batch(0)


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """A graph as one batch, with its node labels."""

    record: Record
    batch: TaskBatch
    labels: list[str]
    parts: list[str]

    def asking(self, c: config.NodeClassification, part: str, seed: int | None = None) -> WholeGraphBatches:
        asked = node_targets(self.record, c, self.labels, self.parts, part)
        return WholeGraphBatches(f"{self.record.where}, {part}", self.batch, asked, seed)


def read_nodes(recipe: config.Recipe, voice: Reporter) -> RunData:
    """Read the graph of a node-classification recipe; another graph may be the validation data."""
    check_no_text_settings(recipe)
    check_no_row_settings(recipe.train)
    record, digest = open_graph(recipe.data, recipe.data.sources)
    graph, task = graph_of_record(record), recipe.task
    assert isinstance(task, config.NodeClassification)
    recipe = resolve_graph_sizes(
        replace(recipe, task=fill_node_classes(task, record, node_labels(record, graph.count))), graph
    )
    model, made = recipe.model, NodeClassification(recipe.task)  # type: ignore[arg-type]
    assert isinstance(model, config.Transformer) and isinstance(model.embed, config.GraphEmbedding)
    made.check(model)
    share = recipe.data.validation if isinstance(recipe.data.validation, float) else 0.0
    train = lay_out_graph(record, GraphProcessor(model.embed), share)
    other = None if not share else train
    if recipe.data.validations:
        other = lay_out_graph(open_graph(recipe.data, recipe.data.validations)[0], GraphProcessor(model.embed), 1.0)
    validation = None if other is None else other.asking(made.c, made.c.eval_split)
    return RunData(recipe, None, made, train.asking(made.c, "train", recipe.train.seed), validation, digest)


def lay_out_graph(record: Record, sense: GraphProcessor, share: float) -> GraphBatch:
    batch = sense.collate([sense.example(record, "graph")], None)
    batch["tokens"] = batch.pop("real").sum(-1)  # the labels of all nodes count
    labels = node_labels(record, int(batch["tokens"]))
    return GraphBatch(record, batch, labels, node_splits(record, labels, share))


def check_no_row_settings(c: config.Train) -> None:
    """Refuse settings for rows, which a single graph would ignore."""
    for name in ("batch_size", "batch_tokens", "gradient_accumulation"):
        if getattr(c, name) != getattr(USUAL, name):
            raise ConfigError(
                f"train.{name}: task 'node_classification' reads one whole graph at each step; leave it out"
            )


def open_graph(c: config.Data, sources: Sequence[str]) -> tuple[Record, str]:
    """The only record of the data, and its digest."""
    found = data.find_records(sources, c)
    check_settings_used(c, found)
    tally = data.BadRecordPolicy(c.on_bad_record)
    records = [record for table in found for record in table.records(tally)]
    if len(records) != 1:
        raise DataError(f"{name_sources([table.name for table in found])}: {len(records):,} graphs; task "
                        "'node_classification' classifies the nodes of one, so name that alone")  # fmt: skip
    return records[0], content_cache.content_key(["nodes", [table.digest for table in found]])


def resolve_graph_sizes(recipe: config.Recipe, graph: Graph) -> config.Recipe:
    """The recipe with sizes from the graph: features or tags, nodes, classes."""
    model, front, task = recipe.model, recipe.model.embed, recipe.task
    if not isinstance(model, config.Transformer) or not isinstance(front, config.GraphEmbedding):
        raise ConfigError(
            f"model.embed.kind: {front.kind!r}, and task 'node_classification' needs graphs; set it to graph"
        )
    head = model.head
    if not front.features and not front.num_tags:
        front = replace(front, features=graph.features.shape[1]) if graph.features is not None else (
            replace(front, num_tags=int(graph.tags.max()) + 1) if graph.tags is not None else front)  # fmt: skip
    if isinstance(head, config.TokenHead) and head.out == UNKNOWN_VOCAB and isinstance(task, config.NodeClassification):
        head = replace(head, out=len(task.classes))
    return replace(recipe, model=replace(model, embed=replace(front, max_nodes=graph.count), head=head))


INPUT_READERS["node_classification"] = read_nodes
