"""The example does what it says: a translator learns to read backwards, and is seen to."""

import io
from contextlib import redirect_stdout

import pytest
import torch

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("backwards")]  # what its tests share is made once


@pytest.fixture(scope="module")
def whole(example):
    """All that the command does, once: the model it trains, and what it prints."""
    trained, train = [], example.train

    def train_and_keep(model):
        train(model)
        trained.append(model)

    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as printed:
        patch.setattr(example, "train", train_and_keep)
        example.main()
    return trained[0], printed.getvalue()


@pytest.fixture
def model(whole):
    return whole[0]


def test_the_command_prints_how_well_it_learned_and_where_it_looks(whole):
    assert "Twelve digits right in" in whole[1] and "compile to 1 graph" in whole[1] and "█" in whole[1]


def test_the_example_learns_to_reverse_rows_it_has_not_seen(model, example):
    assert example.accuracy(model) >= 0.95


def test_the_writer_of_the_example_looks_along_the_other_diagonal(model, example):
    source, target = example.batch(1, least=example.LENGTH)
    weights = example.alignment(model, source, target)
    looked = weights.argmax(-1)
    right = (looked - torch.arange(example.LENGTH).flip(0)).abs() <= 1

    assert right.float().mean() >= 0.8


def test_ten_paddings_of_the_example_are_one_graph(model, example):
    torch._dynamo.reset()

    assert example.graphs(model) == 1
