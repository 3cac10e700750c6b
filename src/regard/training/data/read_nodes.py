"""Reading one graph whose nodes are asked: every step reads all of it, and only labels differ from part to part."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from regard import config, data
from regard.config import ConfigError, DataError
from regard.data import Record, chance, store
from regard.data.graphs import Graph, graph_in
from regard.data.sources import few, heeded
from regard.inputs.graph import Graphs, signs
from regard.tasks import Batch
from regard.tasks.nodes import Nodes, discovered, labels_of, parts_of, targets
from regard.train.reading import READERS, Reading, Voice
from regard.train.sensing import without_text
from regard.zoo.recipes import UNKNOWN

USUAL = config.Train()


@dataclass(frozen=True, eq=False)
class Whole:
    """The whole graph, again and again, with the labels of one part."""

    name: str
    graph: Batch
    labels: Tensor
    seed: int | None = None  # none: nothing is drawn

    @property
    def rows(self) -> list[str]:
        return [self.name]

    def batch(self, step: int) -> Batch:
        batch = self.graph | {"labels": self.labels}
        if self.seed is not None and "waves" in batch:
            waves = batch["waves"]
            batch["waves"] = waves * signs(1, waves.shape[-1], chance(self.seed, "step", step))
        return batch

    def names(self, step: int) -> list[int]:
        return [0]

    def epochs(self, step: int) -> float:
        return float(step)

    def batches(self, tokens: int | None = None) -> Iterator[Any]:
        """Once; a part of a graph is no graph."""
        yield self.batch(0)


@dataclass(frozen=True, eq=False)
class Laid:
    """One graph as a batch, and what it says of its nodes."""

    record: Record
    batch: Batch
    labels: list[str]
    parts: list[str]

    def asking(self, c: config.Nodes, part: str, seed: int | None = None) -> Whole:
        asked = targets(self.record, c, self.labels, self.parts, part)
        return Whole(f"{self.record.where}, {part}", self.batch, asked, seed)


def read_nodes(recipe: config.Recipe, voice: Voice) -> Reading:
    """The data of a recipe that asks the nodes of one graph; another may be named to validate on."""
    without_text(recipe)
    whole_alone(recipe.train)
    record, digest = one_graph(recipe.data, recipe.data.sources)
    graph, task = graph_in(record), recipe.task
    assert isinstance(task, config.Nodes)
    recipe = fitted(replace(recipe, task=discovered(task, record, labels_of(record, graph.count))), graph)
    model, made = recipe.model, Nodes(recipe.task)  # type: ignore[arg-type]
    assert isinstance(model, config.Transformer) and isinstance(model.embed, config.Graph)
    made.check(model)
    share = recipe.data.validation if isinstance(recipe.data.validation, float) else 0.0
    train = laid(record, Graphs(model.embed), share)
    other = None if not share else train
    if recipe.data.validations:
        other = laid(one_graph(recipe.data, recipe.data.validations)[0], Graphs(model.embed), 1.0)
    validation = None if other is None else other.asking(made.c, made.c.part)
    return Reading(recipe, None, made, train.asking(made.c, "train", recipe.train.seed), validation, digest)


def laid(record: Record, sense: Graphs, share: float) -> Laid:
    batch = sense.batch([sense.example(record, "graph")], None)
    batch["tokens"] = batch.pop("real").sum(-1)  # all of them are
    labels = labels_of(record, int(batch["tokens"]))
    return Laid(record, batch, labels, parts_of(record, labels, share))


def whole_alone(c: config.Train) -> None:
    """No setting for rows is passed over in silence."""
    for name in ("batch", "tokens", "accumulate"):
        if getattr(c, name) != getattr(USUAL, name):
            raise ConfigError(f"train.{name}: task 'nodes' reads one whole graph at each step; leave it out")


def one_graph(c: config.Data, sources: Sequence[str]) -> tuple[Record, str]:
    """The only record there is, and what tells it from others."""
    found = data.tables(sources, c)
    heeded(c, found)
    tally = data.Tally(c.bad)
    records = [record for table in found for record in table.records(tally)]
    if len(records) != 1:
        raise DataError(f"{few([table.name for table in found])}: {len(records):,} graphs; task 'nodes' asks the nodes "
                        "of one, so name that alone")  # fmt: skip
    return records[0], store.key(["nodes", [table.digest for table in found]])


def fitted(recipe: config.Recipe, graph: Graph) -> config.Recipe:
    """The recipe with what the graph settles: how many features or tags, how many nodes, how many classes."""
    model, front, task = recipe.model, recipe.model.embed, recipe.task
    if not isinstance(model, config.Transformer) or not isinstance(front, config.Graph):
        raise ConfigError(f"model.embed.kind: {front.kind!r}, and task 'nodes' is asked of graphs; set it to graph")
    head = model.head
    if not front.features and not front.tags:
        front = replace(front, features=graph.features.shape[1]) if graph.features is not None else (
            replace(front, tags=int(graph.tags.max()) + 1) if graph.tags is not None else front)  # fmt: skip
    if isinstance(head, config.Each) and head.out == UNKNOWN and isinstance(task, config.Nodes):
        head = replace(head, out=len(task.classes))
    return replace(recipe, model=replace(model, embed=replace(front, nodes=graph.count), head=head))


READERS["nodes"] = read_nodes
