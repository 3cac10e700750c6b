"""Each reader is its formula, written down once more step by step; and torch's own layers by another road."""

import math

import pytest
import torch
from models.recurrent_models import B, D, N
from torch.testing import assert_close

from regard.models.mixers import DenseMixer
from regard.models.rnn import CausalConv, RNNLayer
from regard.models.state_space import StateSpaceMixer

WIDE = 5  # of what a cell is given


def gates(cell, x, h):
    """W x + b and U h + c, each cut into as many as the cell has."""
    parts = {"rnn": 1, "gru": 3, "lstm": 4}[cell.kind]
    one = x @ cell.rnn.weight_ih_l0.T + cell.rnn.bias_ih_l0
    other = h @ cell.rnn.weight_hh_l0.T + cell.rnn.bias_hh_l0
    return one.chunk(parts, -1), other.chunk(parts, -1)


def step(cell, x, state):
    """One token: Elman 1990, Cho et al. 2014, Hochreiter and Schmidhuber 1997 with Gers's forget gate."""
    given, kept = gates(cell, x, state[0])
    if cell.kind == "rnn":
        return [torch.tanh(given[0] + kept[0])]
    if cell.kind == "gru":
        reset, update = torch.sigmoid(given[0] + kept[0]), torch.sigmoid(given[1] + kept[1])
        new = torch.tanh(given[2] + reset * kept[2])
        return [(1 - update) * new + update * state[0]]
    enter, forget, content, out = (a + b for a, b in zip(given, kept, strict=True))
    memory = torch.sigmoid(forget) * state[1] + torch.sigmoid(enter) * torch.tanh(content)
    return [torch.sigmoid(out) * torch.tanh(memory), memory]


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_a_cell_is_its_formula(kind):
    cell, x = RNNLayer(kind, WIDE, D), torch.randn(B, N, WIDE)
    state, states = [torch.randn(B, D) for _ in cell.fresh(B, x)], []
    begun = list(state)

    for t in range(N):
        state = step(cell, x[:, t], state)
        states.append(state[0])
    out, last = cell(x, None, begun)

    assert_close(out, torch.stack(states, 1))
    assert_close(last, state)


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_both_ways_is_a_cell_from_each_end(kind):
    cell, x = RNNLayer(kind, WIDE, D, both=True), torch.randn(B, N, WIDE)
    ways = [RNNLayer(kind, WIDE, D // 2), RNNLayer(kind, WIDE, D // 2)]
    for way, mark in zip(ways, ("", "_reverse"), strict=True):
        way.rnn.load_state_dict({name: getattr(cell.rnn, name + mark) for name in way.rnn.state_dict()})

    forward, back = ways[0](x)[0], ways[1](x.flip(1))[0].flip(1)

    assert_close(cell(x)[0], torch.cat([forward, back], -1))


def test_an_lstm_begins_by_forgetting_little():
    bias = RNNLayer("lstm", WIDE, D).rnn
    enter, forget, content, out = (bias.bias_ih_l0 + bias.bias_hh_l0).chunk(4)

    assert (forget == 1).all()
    assert not any(each.any() for each in (enter, content, out))


@pytest.mark.parametrize("size, dilation", [(1, 1), (3, 1), (2, 4), (4, 2)])
def test_a_window_is_a_sum_over_the_last_places(size, dilation):
    window, x = CausalConv(D, WIDE, size, dilation), torch.randn(B, N, D)
    torch.nn.init.normal_(window.conv.bias)

    y = window.conv.bias.expand(B, N, WIDE).clone()
    for t in range(N):
        for i in range(size):
            back = t - i * dilation
            if back >= 0:
                y[:, t] += x[:, back] @ window.conv.weight[:, :, size - 1 - i].T

    assert_close(window(x)[0], y)


def test_a_window_of_one_place_is_a_linear_map():
    window, x = CausalConv(D, WIDE, 1, 1), torch.randn(B, N, D)

    assert_close(window(x)[0], x @ window.conv.weight[:, :, 0].T + window.conv.bias)


def test_a_window_that_looks_both_ways_has_its_token_in_the_middle():
    window, x = CausalConv(D, WIDE, 3, 2, both=True), torch.randn(B, N, D)
    left, middle, right = window.conv.weight.unbind(-1)

    assert_close(window(x)[0][:, 5], x[:, 3] @ left.T + x[:, 5] @ middle.T + x[:, 7] @ right.T)


@pytest.mark.parametrize("both", [False, True])
def test_fully_connected_has_a_map_for_every_pair_of_places(both):
    made, x = DenseMixer(D, N + 2, both), torch.randn(B, N, D)

    y = torch.zeros(B, N, D)
    for t in range(N):
        for s in range(N if both else t + 1):
            y[:, t] += x[:, s] @ made.weight[t, s].T

    assert_close(made(x)[0], y)


@pytest.mark.spec("S130")
def test_a_state_space_learns_as_a_convolution_and_writes_as_a_recurrence():
    space, u = StateSpaceMixer(D, 6), torch.randn(B, N, D)
    line = space.ways[0]
    for weight in (space.skip, space.out.weight):
        torch.nn.init.normal_(weight)
    log, b, c = line.numbers()
    a, state, said = log.exp(), torch.zeros(B, D, 3, dtype=torch.complex64), []

    for t in range(N):
        state = a * state + b * u[:, t, :, None]
        said.append(2 * (c * state).sum(-1).real + space.skip * u[:, t])
    recurrent = space.out(torch.nn.functional.gelu(torch.stack(said, 1)))

    at_once, after = space(u, None, space.fresh(B, u))
    assert_close(at_once, recurrent, atol=2e-5, rtol=1e-4)  # sums by Fourier
    assert_close(torch.view_as_complex(after[0]), state, atol=2e-5, rtol=1e-4)


def test_channels_of_a_state_space_forget_at_different_paces():
    space = StateSpaceMixer(999, 4)
    log, _, _ = space.ways[0].numbers()
    life = 1 / -log.real.detach()  # tokens until a state has lost all but 1/e

    assert (log.real < 0).all()  # it never grows
    assert life.min() < 30 and life.max() > 1000
    assert_close(log.imag[:, 1] / -log.real[:, 1], torch.full((999,), 2 * math.pi))
