"""Batches of rows are pure functions of seed and step, hold every row once an epoch, and no more than their budget."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.config.errors import DataError
from regard.data.batching import BucketedBatches, FixedSizeBatches, ordered_batches
from regard.data.example_store import store_examples


def rows_of(lengths, folder=Path("/dev/null/nowhere")):
    """Rows in memory, each of one number again and again."""
    rows = [{"ids": [number] * length} for number, length in enumerate(lengths)]
    return store_examples(lambda tally: iter(rows), {}, folder, "rows", notice=lambda line: None)


def collate(rows, chance):
    """Padded to the longest; a row's number, its length, and something drawn."""
    ids = [row["ids"] for row in rows]
    width = max(map(len, ids))
    return {"rows": torch.tensor([row[0] for row in ids]), "lengths": torch.tensor(list(map(len, ids))),
            "ids": torch.tensor([row + [-1] * (width - len(row)) for row in ids]),
            "luck": torch.rand(3, generator=chance)}  # fmt: skip


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


lengths = st.lists(st.integers(1, 29), min_size=1, max_size=60)
KINDS = {
    "fixed": lambda rows, seed: FixedSizeBatches(rows, collate, 7, seed),
    "buckets": lambda rows, seed: BucketedBatches(rows, collate, 64, seed),
}


@pytest.mark.parametrize("kind", KINDS)
@given(lengths=lengths, seed=st.integers(0, 2**40), steps=st.lists(st.integers(0, 400), min_size=1, max_size=6))
def test_a_batch_depends_on_seed_and_step_alone(kind, lengths, seed, steps):
    rows = rows_of(lengths)
    one, other = KINDS[kind](rows, seed), KINDS[kind](rows, seed)
    forwards = {step: one.batch(step) for step in sorted(steps)}

    assert all(same(other.batch(step), forwards[step]) for step in reversed(steps))


@pytest.mark.spec("S028")
@given(lengths=lengths, budget=st.integers(32, 99), multiple=st.sampled_from([1, 3, 8]), epoch=st.integers(0, 3))
def test_buckets_hold_every_row_once_an_epoch_within_the_budget(lengths, budget, multiple, epoch):
    buckets = BucketedBatches(rows_of(lengths), collate, budget, 5, multiple)
    batches = [buckets.batch(epoch * buckets.count + step) for step in range(buckets.count)]

    assert sorted(torch.cat([batch["rows"] for batch in batches]).tolist()) == list(range(len(lengths)))
    assert all(batch["ids"].numel() <= budget for batch in batches)
    assert buckets.epochs(3 * buckets.count) == 3.0


@given(lengths=lengths, multiple=st.sampled_from([4, 8]))
def test_all_but_one_batch_of_a_width_have_the_same_number_of_rows(lengths, multiple):
    """A closed set of shapes: a compiled model meets each of them again."""
    buckets = BucketedBatches(rows_of(lengths), collate, 64, 5, multiple)
    shapes = []
    for step in range(buckets.count):
        batch = buckets.batch(step)
        width = -(-int(batch["lengths"].max()) // multiple) * multiple
        shapes.append((width, len(batch["rows"])))

    assert sum(count != 64 // width for width, count in shapes) <= 1


def test_rows_of_a_batch_are_of_about_one_length_and_meet_others_in_another_epoch():
    buckets = BucketedBatches(rows_of([1 + n % 64 for n in range(1280)]), collate, 512, 0)
    batches = [buckets.batch(step) for step in range(2 * buckets.count)]
    wasted = sum((batch["ids"] == -1).sum() for batch in batches) / sum(batch["ids"].numel() for batch in batches)
    company = [{frozenset(batch["rows"].tolist()) for batch in some}
               for some in (batches[: buckets.count], batches[buckets.count :])]  # fmt: skip

    assert wasted < 0.15 and not company[0] & company[1]
    widths = [int(batch["lengths"].max()) for batch in batches[: buckets.count]]
    assert widths != sorted(widths) and widths != sorted(widths, reverse=True)


@given(lengths=lengths, epoch=st.integers(0, 3))
def test_fixed_rows_run_on_from_epoch_to_epoch_and_each_comes_once(lengths, epoch):
    rows, count = rows_of(lengths), len(lengths)
    one = FixedSizeBatches(rows, collate, 1, 3)
    found = [int(one.batch(epoch * count + step)["rows"]) for step in range(count)]
    many = FixedSizeBatches(rows, collate, 7, 3)

    assert sorted(found) == list(range(count))
    assert many.batch(2)["rows"].tolist() == [int(one.batch(place)["rows"]) for place in range(14, 21)]


def test_what_is_random_in_a_batch_differs_between_steps_and_seeds():
    rows = rows_of([3] * 40)
    luck = {tuple(KINDS[kind](rows, seed).batch(step)["luck"].tolist())
            for kind in KINDS for seed in (0, 1) for step in range(9)}  # fmt: skip

    assert len(luck) == 18  # the two kinds draw alike


@given(lengths=lengths, budget=st.integers(32, 99))
def test_validation_reads_every_row_once_and_always_the_same_batches(lengths, budget):
    rows = rows_of(lengths)
    once, again = (list(ordered_batches(rows, collate, budget)) for _ in range(2))

    assert all(same(a, b) for a, b in zip(once, again, strict=True))
    assert sorted(torch.cat([batch["rows"] for batch in once]).tolist()) == list(range(len(lengths)))
    assert all(batch["ids"].numel() <= budget for batch in once)
    few = torch.cat([batch["rows"] for batch in ordered_batches(rows, collate, budget, limit=5)])
    assert len(few) == len(set(few.tolist())) == min(5, len(lengths))


def test_a_row_that_is_larger_than_a_batch_is_refused():
    with pytest.raises(DataError, match="a row of 72 tokens with its padding is more than a batch of 64; allow"):
        BucketedBatches(rows_of([3, 70]), collate, 64, 0)
