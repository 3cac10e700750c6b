"""The example does what it says: a translator learns to read backwards, and is seen to."""

import pytest
import torch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(example):
    torch.manual_seed(0)
    one = example.build()
    example.train(one)
    return one.eval()


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
