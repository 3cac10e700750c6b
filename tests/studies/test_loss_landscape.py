"""A slice of the loss: known for a bowl, the same for networks that are the same, and nothing is moved for good."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard.studies.loss_landscape import LossSlice, random_direction, slice_loss


def bowl():
    """A map whose loss is the square of its distance from where it is."""
    map = nn.Linear(5, 3, bias=False)
    start = map.weight.detach().clone()
    return map, lambda: float((map.weight - start).square().sum())


def test_a_bowl_is_a_bowl():
    map, loss = bowl()
    found = slice_loss(map, loss, span=0.7, steps=5, seed=3)
    chance = torch.Generator().manual_seed(3)
    one, other = random_direction(map.weight, chance), random_direction(map.weight, chance)

    for a, row in zip(found.places, found.losses, strict=True):
        for b, value in zip(found.places, row, strict=True):
            assert value == pytest.approx(float((a * one + b * other).square().sum()), rel=1e-4, abs=1e-6)
    assert found.middle == 0.0 and found.bent == 0.0 and found.rise > 0
    assert found.places[0] == -0.7


def test_filters_of_a_direction_are_as_long_as_those_of_the_weight():
    for shape in ((7, 5), (3, 5, 2, 2)):
        weight = torch.randn(shape) * torch.logspace(-2, 2, shape[0]).view(-1, *[1] * (len(shape) - 1))
        made = random_direction(weight, torch.Generator())

        assert_close(made.flatten(1).norm(dim=1), weight.flatten(1).norm(dim=1))


@pytest.mark.spec("S195")
def test_a_network_scaled_up_here_and_down_there_looks_the_same():
    """Without filter norms it would look flat or steep, though it computes the same (Li et al. 2018)."""
    x, y = torch.randn(11, 5), torch.randn(11, 3)
    one = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    other = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    with torch.no_grad():
        one[0].bias.zero_()
        other.load_state_dict(one.state_dict())
        other[0].weight.mul_(40)
        other[2].weight.div_(40)
    slices = [slice_loss(net, lambda net=net: float((net(x) - y).square().mean()), steps=5) for net in (one, other)]

    assert_close(torch.tensor(slices[0].losses), torch.tensor(slices[1].losses), rtol=1e-4, atol=1e-5)
    assert slices[0].rise > 0.01


def test_the_weights_come_back_bit_for_bit_whatever_happens():
    map, _ = bowl()
    before, calls = map.weight.detach().clone(), []

    def fails():
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("no loss today")
        return 0.0

    with pytest.raises(RuntimeError, match="no loss today"):
        slice_loss(map, fails, steps=3)
    assert torch.equal(map.weight, before) and map.weight.requires_grad
    slice_loss(map, lambda: 1.0, steps=3)
    assert torch.equal(map.weight, before)


def test_a_saddle_bends_down_everywhere():
    places = (-1.0, 0.0, 1.0)
    saddle = LossSlice(places, tuple(tuple(a * a - b * b for b in places) for a in places))

    assert saddle.bent == 1.0


@pytest.mark.parametrize("steps", [1, 2, 8])
def test_a_slice_has_a_middle(steps):
    with pytest.raises(ValueError, match="an odd number from 3 on"):
        slice_loss(nn.Linear(2, 2), lambda: 0.0, steps=steps)
