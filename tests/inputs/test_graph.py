"""Graphs as tokens: what structure says, who is seen, and that the order of nodes says nothing."""

import numpy as np
import pytest
import torch
from scipy.sparse import csgraph
from torch.testing import assert_close

import regard
from regard import config as C
from regard.data import Record
from regard.data.arrays import marked
from regard.inputs import structure
from regard.inputs.graph import Graphs, encodings

B, N, F, H, D = 2, 11, 5, 3, 12
HEAD = C.Pooled(place="mean", out=4)


def graphs(*shape, rate=0.25):
    """Random graphs, symmetric, without loops."""
    drawn = (torch.rand(*shape, shape[-1]) < rate).triu(1)
    return drawn | drawn.mT


def model(front, head=HEAD, **trunk):
    said = {"dim": D, "depth": 2, "attention": C.Attention(heads=H), "position": C.Nowhere(), "mask": "edges",
            "dropout": C.NO_DROPOUT, **trunk}  # fmt: skip
    made = regard.Transformer(C.Transformer(embed=front, trunk=C.Trunk(**said), head=head))
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

    waves = structure.waves(joined, 4).double().numpy()

    assert_close(theirs @ waves, waves * values[1:5], atol=1e-5, rtol=1e-5)
    assert_close(waves.T @ waves, np.eye(4), atol=1e-5, rtol=0)


def test_a_graph_with_fewer_waves_than_asked_for_has_zeros_behind_them():
    waves = structure.waves(graphs(3, rate=1.0), 7)

    assert waves.shape == (3, 7) and (waves[:, 2:] == 0).all() and (waves[:, :2] != 0).any(0).all()


def test_walks_are_the_diagonals_of_powers_of_the_transition_matrix():
    joined = graphs(N)
    joined[3], joined[:, 3] = False, False
    step = joined.double().numpy()
    step = step / np.maximum(step.sum(1, keepdims=True), 1)
    theirs = np.stack([np.diag(np.linalg.matrix_power(step, power)) for power in range(1, 6)], -1)

    assert_close(structure.walks(joined, 5).double().numpy(), theirs, atol=1e-6, rtol=0)


def test_distances_are_scipys_shortest_paths_up_to_the_radius():
    joined = graphs(B, N, rate=0.15)
    theirs = torch.tensor(np.stack([csgraph.shortest_path(each.numpy(), unweighted=True) for each in joined]))

    for radius in (1, 3, N):
        expected = torch.where(theirs > radius, radius + 1, theirs).long()
        assert torch.equal(structure.distances(joined, radius), expected)


# ---------------------------------------------------------------- who is seen


@pytest.mark.spec("S026")
@pytest.mark.parametrize("mask, loops", [("edges", True), ("edges(0)", False)])
def test_a_weight_is_zero_exactly_where_there_is_no_edge(mask, loops):
    edges, itself = graphs(B, N), torch.eye(N, dtype=torch.bool)
    allowed = edges | itself if loops else edges

    made = model(C.Graph(features=F), mask=mask)
    with regard.looking(made, "trunk.*.attn.pattern") as seen:
        made(torch.randn(B, N, F), edges=edges)

    for address in seen:
        assert (seen[address][~allowed[:, None].expand(-1, H, -1, -1)] == 0).all()
        assert (seen[address][allowed[:, None].expand(-1, H, -1, -1)] > 0).all()


STRUCTURES = {
    "edges as mask": (C.Graph(tags=7), {}),
    "walks and degrees": (C.Graph(tags=7, walks=4, degrees=3), {"mask": "everything"}),
    "distances": (C.Graph(features=F), {"mask": "everything", "position": C.Spatial(radius=3)}),
    "all of it": (C.Graph(features=F, waves=3, walks=4, degrees=3), {"position": C.Spatial(radius=3, tables="layer")}),
    "a graph convolution": (C.Graph(features=F, walks=2), {"mixer": C.Neighbours()}),
    "no structure": (C.Graph(tags=7), {"mask": "everything"}),
}


def given(front, edges):
    nodes = torch.randint(front.tags, edges.shape[:2]) if front.tags else torch.randn(*edges.shape[:2], front.features)
    return nodes, {"edges": edges, **encodings(front, edges)}


def shuffled(nodes, given, order):
    """The same graphs with their nodes in another order."""
    rest = {name: table[:, order] for name, table in given.items()}
    return nodes[:, order], rest | {"edges": rest["edges"][:, :, order]}


@pytest.mark.spec("S134")
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
    made, order = model(front, head=C.Each(out=4), **trunk), torch.randperm(N)
    other, others = shuffled(nodes, rest, order)

    assert_close(made(other, **others), made(nodes, **rest)[:, order], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", [name for name in STRUCTURES if name != "no structure"])
def test_edges_change_the_answer(name):
    front, trunk = STRUCTURES[name]
    nodes, rest = given(front, graphs(B, N))
    made = model(front, **trunk)
    others = {"edges": graphs(B, N), **encodings(front, graphs(B, N))}

    assert not torch.allclose(made(nodes, **rest), made(nodes, **others), atol=1e-3)


def test_without_structure_a_graph_is_a_set_of_nodes():
    front, trunk = STRUCTURES["no structure"]
    nodes, rest = given(front, graphs(B, N))
    made = model(front, **trunk)

    assert torch.equal(made(nodes, **rest), made(nodes, edges=graphs(B, N)))


@pytest.mark.parametrize("name", STRUCTURES)
def test_padding_beside_a_graph_changes_nothing(name):
    front, trunk = STRUCTURES[name]
    sense, made = Graphs(front), model(front, **trunk)
    small, large = (example(sense, count) for count in (5, N))

    alone, together = sense.batch([small], None), sense.batch([small, large], None)

    assert_close(said(made, together)[:1], said(made, alone), atol=1e-5, rtol=0)


def example(sense, count):
    front = sense.front
    nodes = {"tags": torch.randint(front.tags, (count,)).tolist()} if front.tags else {
        "nodes": torch.randn(count, front.features).tolist()}  # fmt: skip
    edges = graphs(count).triu().nonzero().tolist()
    return sense.example(Record({"edges": edges, **nodes}, "here:1"), "graph")


def said(made, batch):
    return made(batch["ids"], **{name: table for name, table in batch.items() if name != "ids"})


def test_graphs_that_differ_in_edges_or_in_nodes_have_marks_of_their_own():
    sense = Graphs(C.Graph(tags=7))
    said = [([0, 1, 2], [[0, 1]]), ([0, 1, 2], [[0, 2]]), ([0, 1, 3], [[0, 1]]), ([0, 1, 2], [[1, 0]])]

    marks = [marked(sense.example(Record({"tags": tags, "edges": edges}, "here:1"), "graph")) for tags, edges in said]

    assert len(set(marks[:3])) == 3 and marks[3] == marks[0]


# ---------------------------------------------------------------- a graph convolution


@pytest.mark.parametrize("mask, loops", [("edges", 1), ("edges(0)", 0)])
def test_the_mixer_is_the_formula_of_kipf_and_welling(mask, loops):
    made = model(C.Graph(features=F), head=C.Bare(), depth=1, mask=mask, mixer=C.Neighbours())
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
    sizes = [sum(weight.numel() for weight in model(C.Graph(tags=7), mixer=mixer).trunk.blocks[0].attn.parameters())
             for mixer in (C.Neighbours(), C.Attend())]  # fmt: skip

    assert sizes == [D * D + D, 4 * (D * D + D)]


# ---------------------------------------------------------------- in training


def test_signs_of_waves_are_drawn_in_training_alone_and_by_the_given_chance():
    sense = Graphs(C.Graph(tags=7, waves=3))
    rows = [example(sense, 5), example(sense, N)]

    plain = sense.batch(rows, None)["waves"]
    drawn = [sense.batch(rows, torch.Generator().manual_seed(seed))["waves"] for seed in (0, 0, 1, 2, 3)]

    assert torch.equal(plain, sense.batch(rows, None)["waves"])
    assert torch.equal(drawn[0], drawn[1]) and not all(torch.equal(drawn[0], other) for other in drawn[2:])
    for each in drawn:
        signs = (each * plain).sum(1)  # of unit vectors
        assert_close(each, plain * signs[:, None], atol=1e-5, rtol=0)
        assert_close(signs.abs(), torch.ones(2, 3))


def test_a_compiled_graph_transformer_says_the_same():
    front, trunk = STRUCTURES["all of it"]
    nodes, rest = given(front, graphs(B, N))
    made = model(front, **trunk)

    assert_close(torch.compile(made, fullgraph=True, backend="aot_eager")(nodes, **rest), made(nodes, **rest))


TWO = [[0, 1], [1, 2], [0, 2], [3, 4], [4, 5], [3, 5]]  # two triangles
RING = [[0, 3], [3, 1], [1, 4], [4, 2], [2, 5], [5, 0]]  # six in a ring; every node has two neighbours in both
ALIKE, OTHERS = [0] * 6, [0, 0, 0, 1, 1, 1]  # in a triangle neighbours have one's own tag, in the ring the other


def pair(tags, front):
    """Both graphs as one batch."""
    sense = Graphs(front)
    records = [Record({"tags": tags, "edges": edges}, "here:1") for edges in (TWO, RING)]
    return sense.batch([sense.example(record, "graph") for record in records], None)


@pytest.mark.slow
@pytest.mark.spec("S134")
@pytest.mark.parametrize("tags, front, trunk", [
    (ALIKE, C.Graph(tags=1, walks=4), {"mask": "everything"}),  # a walk is back after three steps, or is not
    (OTHERS, C.Graph(tags=2), {"mask": "edges"}),
    (OTHERS, C.Graph(tags=2), {"mask": "edges", "mixer": C.Neighbours()}),
    (OTHERS, C.Graph(tags=2), {"mask": "everything", "position": C.Spatial(radius=3)}),
])  # fmt: skip
def test_structure_teaches_to_tell_two_triangles_from_a_ring(tags, front, trunk):
    made, batch = model(front, head=C.Pooled(place="mean", out=2), **trunk), pair(tags, front)
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.02)

    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(said(made, batch), torch.tensor([0, 1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    assert float(loss.detach()) < 0.3  # that of a coin is 0.69


@pytest.mark.parametrize("tags, front, trunk", [
    (OTHERS, C.Graph(tags=2), {"mask": "everything"}),  # a bag of nodes
    (ALIKE, C.Graph(tags=1, degrees=4), {"mask": "edges"}),  # to every node two neighbours, all of them alike
])  # fmt: skip
def test_without_structure_two_triangles_and_a_ring_are_the_same(tags, front, trunk):
    two, ring = said(model(front, **trunk), pair(tags, front))

    assert_close(two, ring, atol=1e-5, rtol=0)


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize("front, nodes, rest, message", [
    (C.Graph(features=F), (B, N), {}, "nodes must be .batch, nodes, 5. by embed.features"),
    (C.Graph(features=F), (B, N, F), {}, "the mask reads 'edges'"),
    (C.Graph(features=F, walks=3), (B, N, F), {"edges": (B, N, N)}, "embed.walks is 3, and 0 were given"),
    (C.Graph(features=F), (B, N, F), {"edges": (B, N, N), "waves": (B, N, 2)}, "embed.waves is 0, and 2 were given"),
])  # fmt: skip
def test_a_front_end_that_is_given_the_wrong_thing_says_what_it_takes(front, nodes, rest, message):
    tables = {name: torch.zeros(shape, dtype=torch.bool) for name, shape in rest.items()}

    with pytest.raises(ValueError, match=message):
        model(front)(torch.randn(nodes), **tables)


@pytest.mark.parametrize("position", [C.Sinusoidal(), C.Learned(length=N), C.Rotary(), C.Alibi(), C.Buckets()])
def test_positions_that_count_places_are_refused(position):
    with pytest.raises(ValueError, match="trunk.position.kind: .* the nodes of a graph stand in no order"):
        model(C.Graph(tags=7), position=position)


def test_the_mixer_refuses_positions_on_scores_that_it_does_not_have():
    with pytest.raises(ValueError, match="trunk.position: 'spatial' is added to scores"):
        model(C.Graph(tags=7), position=C.Spatial(), mixer=C.Neighbours())
