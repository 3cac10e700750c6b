"""Batches are a pure function of seed and step, and every token is a target once an epoch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.config.errors import DataError
from regard.data.token_shards import TokenShards
from regard.data.windows import WindowBatches, sequential_windows


def line(length: int) -> TokenShards:
    """A text in which each token is its own place."""
    return TokenShards(torch.arange(length, dtype=torch.int32), "line.txt")


@st.composite
def sizes(draw):
    """How long the text is, the context, and the rows of a batch."""
    context = draw(st.integers(1, 9))
    return draw(st.integers(context + 1, 150)), context, draw(st.integers(1, 13))


@given(size=sizes(), seed=st.integers(0, 2**40), steps=st.lists(st.integers(0, 60), min_size=1, max_size=9))
def test_a_batch_depends_on_seed_and_step_alone(size, seed, steps):
    length, context, batch = size
    one, other = WindowBatches(line(length), context, batch, seed), WindowBatches(line(length), context, batch, seed)
    forwards = {step: one.batch(step) for step in sorted(steps)}

    for step in reversed(steps):
        assert torch.equal(other.batch(step), forwards[step])
        assert forwards[step].shape == (batch, context + 1) and forwards[step].dtype == torch.int64


@given(size=sizes(), seed=st.integers(0, 99), epoch=st.integers(0, 3))
def test_every_token_is_a_target_once_an_epoch_but_for_the_edges(size, seed, epoch):
    length, context, _ = size
    windows = WindowBatches(line(length), context, 1, seed)  # one row a step: an epoch is so many steps
    rows = torch.cat([windows.batch(epoch * windows.count + step) for step in range(windows.count)])
    targets = rows[:, 1:].flatten().sort().values

    assert torch.equal(rows[:, 1:], rows[:, :1] + torch.arange(1, context + 1))  # a row is a stretch of the text
    assert torch.equal(targets, targets[0] + torch.arange(windows.count * context))  # no gap, nothing twice
    assert length - 1 - len(targets) <= max(0, 2 * context - 2)  # what is left over before and after


@given(size=sizes(), seed=st.integers(0, 99))
def test_batches_of_any_size_read_the_same_rows_in_the_same_order(size, seed):
    length, context, batch = size
    single, many = WindowBatches(line(length), context, 1, seed), WindowBatches(line(length), context, batch, seed)

    for step in (0, 1, 7):
        rows = [single.batch(step * batch + row) for row in range(batch)]
        assert torch.equal(many.batch(step), torch.cat(rows))


def test_every_token_of_the_text_is_a_target_in_some_epoch():
    windows = WindowBatches(line(38), 7, 1, seed=0)
    seen = {int(token) for step in range(60 * windows.count) for token in windows.batch(step)[0, 1:]}

    assert seen == set(range(1, 38))


def test_epochs_and_seeds_differ_and_rows_of_an_epoch_do_too():
    def epoch(seed, number):
        windows = WindowBatches(line(1009), 10, 1, seed)
        return torch.cat([windows.batch(number * windows.count + step) for step in range(windows.count)])[:, 0]

    orders = [epoch(seed, number) for seed in range(5) for number in range(5)]

    assert len({tuple(order.tolist()) for order in orders}) == 25
    assert len({int(order.min()) for order in orders}) > 5  # they begin at different offsets
    assert all(len(order.unique()) == len(order) for order in orders)


def test_windows_are_shuffled_evenly():
    """Chi-square by hand: over many epochs, the first window of the text comes at each place about equally often."""
    windows, epochs = WindowBatches(line(81), 10, 1, seed=3), 1400
    places = torch.tensor([int(windows.epoch(number).argmin()) for number in range(epochs)])
    expected = epochs / windows.count
    found = torch.bincount(places, minlength=windows.count)

    assert windows.count == 7
    assert ((found - expected) ** 2 / expected).sum() < 22.46  # 6 degrees of freedom: one chance in a thousand


def test_windows_say_how_often_the_text_was_read():
    windows = WindowBatches(line(101), 10, 3, seed=0)

    assert windows.count == 9
    assert windows.epochs(6) == 2.0


def test_a_text_shorter_than_the_context_says_how_long_it_is_and_what_to_set():
    with pytest.raises(DataError, match="line.txt: 12 tokens are too few for a context of 12; set train.context=11"):
        WindowBatches(line(12), 12, 3, seed=0)

    assert WindowBatches(line(13), 12, 3, seed=0).batch(5).tolist() == [list(range(13))] * 3


@given(length=st.integers(2, 200), size=sizes(), tokens=st.none() | st.integers(1, 250))
def test_blocks_predict_every_token_exactly_once_and_in_order(length, size, tokens):
    _, context, batch = size
    found = list(sequential_windows(line(length), context, batch, tokens))
    targets = torch.cat([block[:, 1:].flatten() for block in found])

    assert torch.equal(targets, torch.arange(1, min(length - 1, tokens or length) + 1))
    assert all(torch.equal(block[:, 1:], block[:, :-1] + 1) for block in found)
    assert all(len(block) <= batch and block.shape[1] <= context + 1 for block in found)


def test_a_single_token_cannot_be_evaluated():
    with pytest.raises(DataError, match="line.txt: 1 tokens are too few"):
        next(sequential_windows(line(1), 4, 2))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int32])
def test_ids_of_every_width_are_batched(dtype):
    shards = TokenShards(torch.arange(200).to(dtype))

    assert WindowBatches(shards, 9, 4, 0).batch(2).dtype == torch.int64
    assert torch.cat([block[:, 1:].flatten() for block in sequential_windows(shards, 9, 4)]).tolist() == list(
        range(1, 200)
    )
