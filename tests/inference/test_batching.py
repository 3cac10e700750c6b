"""The driver of batched inference: every input once, in its order, in batches within the budget, without dropout."""

import pytest
import torch
from torch import nn

from regard.inference.batching import count_inputs, in_chunks, length_batches, run_batched

LENGTHS = [5, 1, 9, 9, 2, 7, 30, 1]


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("budget", [0, 10, 18, 64])
def test_every_item_is_in_one_batch_and_none_is_over_the_budget_but_alone(budget, copies):
    batches = list(length_batches(LENGTHS, budget, copies))

    assert sorted(place for batch in batches for place in batch) == list(range(len(LENGTHS)))
    assert [LENGTHS[place] for batch in batches for place in batch] == sorted(LENGTHS)
    assert all(len(batch) == 1 or len(batch) * copies * max(LENGTHS[place] for place in batch) <= budget
               for batch in batches)  # fmt: skip


def test_a_budget_of_nothing_runs_one_at_a_time():
    assert [len(batch) for batch in length_batches(LENGTHS, 0)] == [1] * len(LENGTHS)


def test_an_item_without_a_length_is_in_no_batch_and_has_no_result():
    batches = list(length_batches([3, None, 2]))

    assert batches == [[2, 0]]
    assert run_batched(nn.Linear(1, 1), ["a", None, "b"], batches, lambda some: [each * 2 for each in some]) == [
        "aa", None, "bb"]  # fmt: skip


def test_chunks_keep_the_order_and_read_no_farther_than_they_are_asked():
    left = iter(range(7))

    assert next(in_chunks(left, 3)) == [0, 1, 2] and next(left) == 3
    assert list(in_chunks("abcde", 2)) == [["a", "b"], ["c", "d"], ["e"]]


def test_no_dropout_acts_and_the_mode_is_as_it_was():
    model = nn.Sequential(nn.Dropout(0.5), nn.Identity()).train()
    model[1].eval()
    seen = []

    def run(some):
        seen.append((model.training, torch.is_grad_enabled()))
        return model(torch.ones(len(some), 64)).sum(-1).tolist()

    assert run_batched(model, range(5), length_batches([4] * 5, 8), run) == [64.0] * 5
    assert seen == [(False, False)] * 3
    assert [part.training for part in model.modules()] == [True, True, False]


def test_a_batch_that_raises_leaves_the_mode_as_it_was():
    model = nn.Dropout(0.5).train()

    with pytest.raises(ZeroDivisionError):
        run_batched(model, [1, 0], [[0], [1]], lambda some: [1 / some[0]])
    assert model.training


def test_progress_counts_inputs_and_not_their_parts():
    parts, whole = list[int](), list[int]()
    batches = [[0, 2], [1], [3]]
    run_batched(nn.Identity(), "abcd", batches, list, count_inputs(parts.append, [0, 0, 1, 2]))
    run_batched(nn.Identity(), "abcd", batches, list, count_inputs(whole.append))

    assert parts == [2, 2, 3] and whole == [2, 3, 4]
    assert count_inputs(None) is None
