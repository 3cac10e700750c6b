"""Tokens that are alike: planted tables whose answers are known."""

import pytest
import torch
import torch.nn.functional as F
from core.builders import model

from regard import lens


def test_neighbours_are_the_nearest_by_cosine():
    table = torch.randn(31, 7)
    centred = table - table.mean(0)
    ids = torch.tensor([3, 17])
    near, cosines = lens.nearest_tokens(table, ids, 4)

    for row, i in enumerate(ids.tolist()):
        alike = {j: F.cosine_similarity(centred[i], centred[j], dim=0).item() for j in range(31) if j != i}
        order = sorted(alike, key=alike.get, reverse=True)[:4]
        assert near[row].tolist() == order
        assert cosines[row].tolist() == pytest.approx([alike[j] for j in order], abs=1e-5)


def test_nobody_is_their_own_neighbour_even_among_twins():
    table = torch.randn(5, 7)
    table[3] = table[1]
    near, _ = lens.nearest_tokens(table, torch.tensor([1]), 9)

    assert near[0, 0] == 3 and near.shape == (1, 4) and 1 not in near


def test_the_closest_pair_is_the_one_that_was_planted():
    table = torch.randn(13, 7)
    table[11] = 2 * table[4] - table.mean(0)
    table[4] = table[11]
    pairs = lens.closest_pairs(table, 5)

    assert pairs[0][:2] == (4, 11) and pairs[0][2] == pytest.approx(1, abs=1e-5)
    assert len(pairs) == 5 and all(i < j for i, j, _ in pairs)
    assert [cosine for *_, cosine in pairs] == sorted((cosine for *_, cosine in pairs), reverse=True)


@pytest.mark.spec("S076")
def test_an_analogy_finds_the_planted_fourth():
    torch.manual_seed(1)
    table = torch.randn(29, 11)
    female, kin = torch.randn(11), torch.randn(11)
    man, woman, uncle, aunt = 2, 7, 13, 19
    table[woman], table[uncle], table[aunt] = table[man] + female, table[man] + kin, table[man] + female + kin

    assert lens.solve_analogy(table, man, woman, uncle)[0] == aunt  # aunt - uncle = woman - man
    assert not {man, woman, uncle} & set(lens.solve_analogy(table, man, woman, uncle, count=26))


def test_the_plane_keeps_the_distances_of_vectors_that_lie_in_one():
    flat = torch.randn(17, 2) @ torch.linalg.qr(torch.randn(9, 2))[0].mT + torch.randn(9)
    at, shown = lens.project_pca(flat)

    assert shown == pytest.approx(1, abs=1e-5)
    assert torch.allclose(torch.cdist(at, at), torch.cdist(flat, flat), atol=1e-4)


def test_vectors_are_the_models_own():
    made = model()

    assert torch.equal(lens.token_vectors(made), made.embed.tokens.weight)
    assert not lens.token_vectors(made).requires_grad
