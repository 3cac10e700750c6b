"""Graphs as tokens: what structure says, who is seen, and that the order of nodes says nothing."""

import numpy as np
import pytest
import torch
from scipy.sparse import csgraph
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

import regard
from regard import config as C
from regard.core.model import FRONT_ENDS
from regard.data.records import Record
from regard.data.tensor_store import hash_row
from regard.inputs import graph_encodings
from regard.inputs.graph import GraphProcessor, compute_graph_encodings

B, N, F, H, D = 2, 11, 5, 3, 12
HEAD = C.PoolingHead(pooling="mean", out=4)


def graphs(*shape, rate=0.25):
    """Random graphs, symmetric, without loops."""
    drawn = (torch.rand(*shape, shape[-1]) < rate).triu(1)
    return drawn | drawn.mT


def model(front, head=HEAD, **trunk):
    said = {"dim": D, "depth": 2, "attention": C.Attention(heads=H), "position": C.NoPosition(), "mask": "edges",
            "dropout": C.NO_DROPOUT, **trunk}  # fmt: skip
    made = regard.Model(C.Transformer(embed=front, trunk=C.Trunk(**said), head=head))
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return made


# ---------------------------------------------------------------- what an adjacency says


def test_waves_are_eigenvectors_of_scipys_laplacian_in_its_order():
    joined = graphs(N)
    joined[3], joined[:, 3] = False, False  # a node without neighbours
    theirs = csgraph.laplacian(joined.double().numpy(), normed=True)
    values = np.linalg.eigvalsh(theirs)

    waves = graph_encodings.laplacian_eigenvectors(joined, 4).double().numpy()

    assert_close(theirs @ waves, waves * values[1:5], atol=1e-5, rtol=1e-5)
    assert_close(waves.T @ waves, np.eye(4), atol=1e-5, rtol=0)


def test_a_graph_with_fewer_waves_than_asked_for_has_zeros_behind_them():
    waves = graph_encodings.laplacian_eigenvectors(graphs(3, rate=1.0), 7)

    assert waves.shape == (3, 7) and (waves[:, 2:] == 0).all() and (waves[:, :2] != 0).any(0).all()


def test_walks_are_the_diagonals_of_powers_of_the_transition_matrix():
    joined = graphs(N)
    joined[3], joined[:, 3] = False, False
    step = joined.double().numpy()
    step = step / np.maximum(step.sum(1, keepdims=True), 1)
    theirs = np.stack([np.diag(np.linalg.matrix_power(step, power)) for power in range(1, 6)], -1)

    assert_close(graph_encodings.random_walk_probabilities(joined, 5).double().numpy(), theirs, atol=1e-6, rtol=0)


def test_distances_are_scipys_shortest_paths_up_to_the_radius():
    joined = graphs(B, N, rate=0.15)
    theirs = torch.tensor(np.stack([csgraph.shortest_path(each.numpy(), unweighted=True) for each in joined]))

    for radius in (1, 3, N):
        expected = torch.where(theirs > radius, radius + 1, theirs).long()
        assert torch.equal(graph_encodings.shortest_paths(joined, radius), expected)


def kipf(joined):
    """D^-1/2 (A + I) D^-1/2 by numpy, in float64."""
    a = joined.double().numpy() + np.eye(joined.shape[-1])
    root = np.diag(a.sum(1) ** -0.5)
    return root @ a @ root


def few(count):
    """A graph large enough, and with few enough edges, to be gone along one by one; its last node is joined to none."""
    joined = graphs(1, count, rate=4 / count)
    joined[:, -1], joined[..., -1] = False, False
    return joined


@pytest.mark.parametrize("hops", [1, 2, 7])
def test_hops_are_the_mean_of_a_power_series(hops):
    joined, x = graphs(B, N), torch.randn(B, N, D)
    powers = [np.mean([np.linalg.matrix_power(kipf(each), power) for power in range(hops + 1)], 0) for each in joined]

    expected = torch.tensor(np.stack(powers)) @ x.double()

    assert_close(graph_encodings.propagate_features(x, joined, hops), expected.float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows, tables", [(1, 1), (3, 3), (3, 1)])
def test_along_the_few_edges_of_large_graphs_comes_what_the_whole_table_gives(rows, tables, monkeypatch):
    count = graph_encodings.SPARSE_NODES + 1
    joined = torch.cat([few(count) for _ in range(tables)])
    x, other = torch.randn(rows, count, 3), torch.randn(rows, count, 3)
    answers = []
    for worth in (graph_encodings.SPARSE_NODES, count + 1):  # along edges, and by the table
        monkeypatch.setattr(graph_encodings, "SPARSE_NODES", worth)
        leaf = x.clone().requires_grad_()
        for step in (
            graph_encodings.normalized_adjacency(joined, x.dtype),
            graph_encodings.adjacency_product(joined, x.dtype),
        ):
            (step(step(leaf)) * other).sum().backward()
            answers += [step(leaf).detach(), leaf.grad.clone()]

    for along, dense in zip(answers[:4], answers[4:], strict=True):
        assert_close(along, dense, atol=1e-5, rtol=1e-5)


def test_only_a_large_graph_with_few_edges_is_gone_along_one_by_one():
    kinds = [
        graph_encodings.adjacency_product(joined, torch.float32).__name__
        for joined in (
            graphs(1, N),
            graphs(1, graph_encodings.SPARSE_NODES + 1, rate=0.5),
            few(graph_encodings.SPARSE_NODES + 1),
        )
    ]

    assert kinds == ["<lambda>", "<lambda>", "step"]


@pytest.mark.parametrize(
    "joined", [graphs(1, N, rate=0.5), few(graph_encodings.SPARSE_NODES + 44)], ids=["table", "along edges"]
)
def test_what_passes_is_dropped_at_its_rate_and_keeps_its_mean(joined):
    rate, x = 0.4, torch.eye(joined.shape[-1])[None]

    drawn = torch.stack([graph_encodings.adjacency_product(joined, x.dtype, rate)(x) for _ in range(50)])

    kept = drawn[:, joined]  # what came along each edge
    assert set(kept.unique().tolist()) == {0.0, float(torch.tensor(1 / (1 - rate)))}
    assert (drawn[:, ~joined] == 0).all() and abs(float((kept > 0).float().mean()) - (1 - rate)) < 0.03


# ---------------------------------------------------------------- who is seen


@pytest.mark.spec("S026")
@pytest.mark.parametrize("mask, loops", [("edges", True), ("edges(0)", False)])
def test_a_weight_is_zero_exactly_where_there_is_no_edge(mask, loops):
    edges, itself = graphs(B, N), torch.eye(N, dtype=torch.bool)
    allowed = edges | itself if loops else edges

    made = model(C.GraphEmbedding(features=F), mask=mask)
    with regard.looking(made, "trunk.*.attn.pattern") as seen:
        made(torch.randn(B, N, F), edges=edges)

    for address in seen:
        assert (seen[address][~allowed[:, None].expand(-1, H, -1, -1)] == 0).all()
        assert (seen[address][allowed[:, None].expand(-1, H, -1, -1)] > 0).all()


STRUCTURES = {
    "edges as mask": (C.GraphEmbedding(num_tags=7), {}),
    "walks and degrees": (C.GraphEmbedding(num_tags=7, random_walk_pe=4, max_degree=3), {"mask": "full"}),
    "distances": (C.GraphEmbedding(features=F), {"mask": "full", "position": C.GraphDistanceBias(max_distance=3)}),
    "all of it": (
        C.GraphEmbedding(features=F, laplacian_pe=3, random_walk_pe=4, max_degree=3),
        {"position": C.GraphDistanceBias(max_distance=3, tables="layer")},
    ),
    "a graph convolution": (C.GraphEmbedding(features=F, random_walk_pe=2), {"mixer": C.GraphConv()}),
    "sums": (C.GraphEmbedding(num_tags=7), {"mixer": C.GraphConv(sums=True)}),
    "hops": (C.GraphEmbedding(features=F, hops=3), {"mask": "full"}),
    "no structure": (C.GraphEmbedding(num_tags=7), {"mask": "full"}),
}


def given(front, edges):
    nodes = (
        torch.randint(front.num_tags, edges.shape[:2])
        if front.num_tags
        else torch.randn(*edges.shape[:2], front.features)
    )
    return nodes, {"edges": edges, **compute_graph_encodings(front, edges)}


def shuffled(nodes, given, order):
    """The same graphs with their nodes in another order."""
    rest = {name: table[:, order] for name, table in given.items()}
    return nodes[:, order], rest | {"edges": rest["edges"][:, :, order]}


@pytest.mark.spec("S068", "S134")
@pytest.mark.parametrize("name", STRUCTURES)
def test_the_order_of_nodes_changes_no_answer_about_the_graph(name):
    front, trunk = STRUCTURES[name]
    nodes, rest = given(front, graphs(B, N))
    made, order = model(front, **trunk), torch.randperm(N)
    other, others = shuffled(nodes, rest, order)

    assert_close(made(other, **others), made(nodes, **rest), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", STRUCTURES)
def test_nodes_in_another_order_get_their_answers_in_that_order(name):
    front, trunk = STRUCTURES[name]
    nodes, rest = given(front, graphs(B, N))
    made, order = model(front, head=C.TokenHead(out=4), **trunk), torch.randperm(N)
    other, others = shuffled(nodes, rest, order)

    assert_close(made(other, **others), made(nodes, **rest)[:, order], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", [name for name in STRUCTURES if name != "no structure"])
def test_edges_change_the_answer(name):
    front, trunk = STRUCTURES[name]
    nodes, rest = given(front, graphs(B, N))
    made = model(front, **trunk)
    others = {"edges": graphs(B, N), **compute_graph_encodings(front, graphs(B, N))}

    assert not torch.allclose(made(nodes, **rest), made(nodes, **others), atol=1e-3)


def test_without_structure_a_graph_is_a_set_of_nodes():
    front, trunk = STRUCTURES["no structure"]
    nodes, rest = given(front, graphs(B, N))
    made = model(front, **trunk)

    assert torch.equal(made(nodes, **rest), made(nodes, edges=graphs(B, N)))


@pytest.mark.parametrize("name", STRUCTURES)
def test_padding_beside_a_graph_changes_nothing(name):
    front, trunk = STRUCTURES[name]
    sense, made = GraphProcessor(front), model(front, **trunk)
    small, large = (example(sense, count) for count in (5, N))

    alone, together = sense.collate([small], None), sense.collate([small, large], None)

    assert_close(said(made, together)[:1], said(made, alone), atol=1e-5, rtol=0)


def example(sense, count):
    front = sense.front
    nodes = {"tags": torch.randint(front.num_tags, (count,)).tolist()} if front.num_tags else {
        "nodes": torch.randn(count, front.features).tolist()}  # fmt: skip
    edges = graphs(count).triu().nonzero().tolist()
    return sense.example(Record({"edges": edges, **nodes}, "here:1"), "graph")


def said(made, batch):
    return made(batch["ids"], **{name: table for name, table in batch.items() if name != "ids"})


def test_graphs_that_differ_in_edges_or_in_nodes_have_marks_of_their_own():
    sense = GraphProcessor(C.GraphEmbedding(num_tags=7))
    said = [([0, 1, 2], [[0, 1]]), ([0, 1, 2], [[0, 2]]), ([0, 1, 3], [[0, 1]]), ([0, 1, 2], [[1, 0]])]

    marks = [hash_row(sense.example(Record({"tags": tags, "edges": edges}, "here:1"), "graph")) for tags, edges in said]

    assert len(set(marks[:3])) == 3 and marks[3] == marks[0]


# ---------------------------------------------------------------- a graph convolution


@pytest.mark.parametrize("mask, loops", [("edges", 1), ("edges(0)", 0)])
def test_the_mixer_is_the_formula_of_kipf_and_welling(mask, loops):
    made = model(C.GraphEmbedding(features=F), head=C.NoHead(), depth=1, mask=mask, mixer=C.GraphConv())
    edges, mixer = graphs(1, N), made.trunk.blocks[0].attn
    a = edges[0].double().numpy() + loops * np.eye(N)
    root = np.diag(np.maximum(a.sum(1), 1) ** -0.5)

    with regard.looking(made, "trunk.embed", "trunk.0.attn.out") as seen:
        made(torch.randn(1, N, F), edges=edges)

    x = made.trunk.blocks[0].attn_norm(seen["trunk.embed"])[0]
    weight, bias = mixer.map.weight.double(), mixer.map.bias.double()
    expected = torch.tensor(root @ a @ root) @ (x.double() @ weight.mT + bias)
    assert_close(seen["trunk.0.attn.out"][0], expected.float(), atol=1e-5, rtol=1e-5)


def test_a_mean_over_neighbours_has_a_quarter_of_attentions_weights():
    sizes = [
        sum(
            weight.numel()
            for weight in model(C.GraphEmbedding(num_tags=7), mixer=mixer).trunk.blocks[0].attn.parameters()
        )
        for mixer in (C.GraphConv(), C.AttentionMixer())
    ]

    assert sizes == [D * D + D, 4 * (D * D + D)]


def test_with_sums_a_node_can_count_its_neighbours():
    star = torch.zeros(2, 7, 7, dtype=torch.bool)
    star[0, 0, 1:4] = star[0, 1:4, 0] = True  # three around the first
    star[1, 0, 1:7] = star[1, 1:7, 0] = True  # six
    mean, sums = (model(C.GraphEmbedding(num_tags=1), head=C.TokenHead(out=3), depth=1, mixer=mixer, mask="edges(0)")
                  for mixer in (C.AttentionMixer(), C.GraphConv(sums=True)))  # fmt: skip
    nodes = torch.zeros(2, 7, dtype=torch.long)

    assert_close(mean(nodes, edges=star)[0, 0], mean(nodes, edges=star)[1, 0], atol=1e-5, rtol=0)
    assert not torch.allclose(sums(nodes, edges=star)[0, 0], sums(nodes, edges=star)[1, 0], atol=1e-2)


def test_sums_are_the_adjacency_times_what_each_gives():
    made = model(C.GraphEmbedding(features=F), head=C.NoHead(), depth=1, mixer=C.GraphConv(sums=True))
    edges, mixer = graphs(1, N), made.trunk.blocks[0].attn

    with regard.looking(made, "trunk.embed", "trunk.0.attn.out") as seen:
        made(torch.randn(1, N, F), edges=edges)

    given = mixer.map(made.trunk.blocks[0].attn_norm(seen["trunk.embed"])[0]).double()
    expected = (edges[0].double() + torch.eye(N).double()) @ given
    assert_close(seen["trunk.0.attn.out"][0], expected.float(), atol=1e-5, rtol=1e-5)


# ---------------------------------------------------------------- in training


def test_hidden_nodes_carry_nothing_and_the_others_as_much_more():
    front = FRONT_ENDS["graph"](C.GraphEmbedding(features=F, node_dropout=0.4), D)
    nodes = torch.randn(B, 400, F)
    plain = front.eval()(nodes).x

    drawn = front.train()(nodes).x

    hidden = (drawn == 0).all(-1)
    assert 0.33 < float(hidden.float().mean()) < 0.47
    assert_close(drawn[~hidden], plain[~hidden] / 0.6)


def test_a_hidden_node_is_told_of_by_its_neighbours():
    front = FRONT_ENDS["graph"](C.GraphEmbedding(features=F, hops=1, node_dropout=0.5), D)
    pair = torch.tensor([[[False, True], [True, False]]])  # each is half of what both get

    drawn = [front.train()(torch.ones(1, 2, F), edges=pair).x[0] for _ in range(40)]
    plain = front.eval()(torch.ones(1, 2, F), edges=pair).x[0, 0]

    shares = {round((each[0] / plain).mean().item(), 4) for each in drawn}
    assert shares == {0.0, 0.5, 1.5, 2.0}  # nobody, the other (a quarter of it times two), itself alone, both


def test_hops_in_training_draw_by_torchs_seed():
    made = model(C.GraphEmbedding(features=F, hops=2, node_dropout=0.5)).train()
    nodes, edges = torch.randn(B, N, F), graphs(B, N)
    answers = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        answers.append(made(nodes, edges=edges))

    assert torch.equal(answers[0], answers[1]) and not torch.equal(answers[0], answers[2])


def test_signs_of_waves_are_drawn_in_training_alone_and_by_the_given_chance():
    sense = GraphProcessor(C.GraphEmbedding(num_tags=7, laplacian_pe=3))
    rows = [example(sense, 5), example(sense, N)]

    plain = sense.collate(rows, None)["laplacian_pe"]
    drawn = [sense.collate(rows, torch.Generator().manual_seed(seed))["laplacian_pe"] for seed in (0, 0, 1, 2, 3)]

    assert torch.equal(plain, sense.collate(rows, None)["laplacian_pe"])
    assert torch.equal(drawn[0], drawn[1]) and not all(torch.equal(drawn[0], other) for other in drawn[2:])
    for each in drawn:
        signs = (each * plain).sum(1)  # of unit vectors
        assert_close(each, plain * signs[:, None], atol=1e-5, rtol=0)
        assert_close(signs.abs(), torch.ones(2, 3))


@pytest.mark.parametrize("name", ["all of it", "hops", "sums", "a graph convolution"])
def test_a_compiled_graph_transformer_says_the_same(name):
    front, trunk = STRUCTURES[name]
    nodes, rest = given(front, graphs(B, N))
    made = model(front, **trunk)

    assert_close(torch.compile(made, fullgraph=True, backend="aot_eager")(nodes, **rest), made(nodes, **rest))


@pytest.mark.parametrize("mixer", [C.GraphConv(), C.GraphConv(sums=True), C.AttentionMixer()])
def test_an_estimate_of_a_large_graph_needs_shapes_alone(mixer):
    made = model(C.GraphEmbedding(features=F, hops=2, max_nodes=graph_encodings.SPARSE_NODES + 1), mixer=mixer)

    with FakeTensorMode(allow_non_fake_inputs=True):
        said = made(torch.randn(1, graph_encodings.SPARSE_NODES + 1, F), edges=few(graph_encodings.SPARSE_NODES + 1))

    assert said.shape == (1, 4)


TWO = [[0, 1], [1, 2], [0, 2], [3, 4], [4, 5], [3, 5]]  # two triangles
RING = [[0, 3], [3, 1], [1, 4], [4, 2], [2, 5], [5, 0]]  # six in a ring; every node has two neighbours in both
ALIKE, OTHERS = [0] * 6, [0, 0, 0, 1, 1, 1]  # in a triangle neighbours have one's own tag, in the ring the other


def pair(tags, front):
    """Both graphs as one batch."""
    sense = GraphProcessor(front)
    records = [Record({"tags": tags, "edges": edges}, "here:1") for edges in (TWO, RING)]
    return sense.collate([sense.example(record, "graph") for record in records], None)


@pytest.mark.slow
@pytest.mark.spec("S068", "S134")
@pytest.mark.parametrize("tags, front, trunk", [
    # a walk is back after three steps, or is not
    (ALIKE, C.GraphEmbedding(num_tags=1, random_walk_pe=4), {"mask": "full"}),
    (OTHERS, C.GraphEmbedding(num_tags=2), {"mask": "edges"}),
    (OTHERS, C.GraphEmbedding(num_tags=2), {"mask": "edges", "mixer": C.GraphConv()}),
    (OTHERS, C.GraphEmbedding(num_tags=2), {"mask": "full", "position": C.GraphDistanceBias(max_distance=3)}),
])  # fmt: skip
def test_structure_teaches_to_tell_two_triangles_from_a_ring(tags, front, trunk):
    made, batch = model(front, head=C.PoolingHead(pooling="mean", out=2), **trunk), pair(tags, front)
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.02)

    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(said(made, batch), torch.tensor([0, 1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    assert float(loss.detach()) < 0.3  # that of a coin is 0.69


@pytest.mark.parametrize("tags, front, trunk", [
    (OTHERS, C.GraphEmbedding(num_tags=2), {"mask": "full"}),  # a bag of nodes
    # to every node two neighbours, all of them alike
    (ALIKE, C.GraphEmbedding(num_tags=1, max_degree=4), {"mask": "edges"}),
])  # fmt: skip
def test_without_structure_two_triangles_and_a_ring_are_the_same(tags, front, trunk):
    two, ring = said(model(front, **trunk), pair(tags, front))

    assert_close(two, ring, atol=1e-5, rtol=0)


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize("front, nodes, rest, message", [
    (C.GraphEmbedding(features=F), (B, N), {}, "nodes must be .batch, nodes, 5. by embed.features"),
    (C.GraphEmbedding(features=F), (B, N, F), {}, "the mask reads 'edges'"),
    (C.GraphEmbedding(features=F, random_walk_pe=3), (B, N, F), {"edges": (B, N, N)},
     "embed.random_walk_pe is 3, and 0 were given"),
    (C.GraphEmbedding(features=F), (B, N, F), {"edges": (B, N, N), "laplacian_pe": (B, N, 2)},
     "embed.laplacian_pe is 0, and 2 were given"),
    (C.GraphEmbedding(features=F, hops=2), (B, N, F), {},
     "embed.hops goes along edges, and none were given; give edges="),
    (C.GraphEmbedding(features=F, max_degree=2), (B, N, F), {},
     "embed.max_degree goes along edges, and none were given"),
])  # fmt: skip
def test_a_front_end_that_is_given_the_wrong_thing_says_what_it_takes(front, nodes, rest, message):
    tables = {name: torch.zeros(shape, dtype=torch.bool) for name, shape in rest.items()}

    with pytest.raises(ValueError, match=message):
        model(front)(torch.randn(nodes), **tables)


@pytest.mark.parametrize(
    "position", [C.SinusoidalPosition(), C.LearnedPosition(length=N), C.RotaryPosition(), C.AlibiPosition(), C.T5Bias()]
)
def test_positions_that_count_places_are_refused(position):
    with pytest.raises(ValueError, match="trunk.position.kind: .* the nodes of a graph have no order"):
        model(C.GraphEmbedding(num_tags=7), position=position)


def test_the_mixer_refuses_positions_on_scores_that_it_does_not_have():
    with pytest.raises(ValueError, match="trunk.position: 'graph_distance' is added to scores"):
        model(C.GraphEmbedding(num_tags=7), position=C.GraphDistanceBias(), mixer=C.GraphConv())


@pytest.mark.parametrize("settings, message", [
    ({"hops": -1}, "hops"),
    ({"node_dropout": 1.0}, "node_dropout: 1.0 is not a rate between 0 and 1"),
    ({"node_dropout": -0.1}, "node_dropout: -0.1 is not a rate"),
    ({"num_tags": 3, "dropout": 0.1}, "dropout: it is for features, and nodes carry tags"),
])  # fmt: skip
def test_a_setting_that_means_nothing_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        C.GraphEmbedding(**settings)
