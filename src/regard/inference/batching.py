"""Batched inference: which inputs run together, and their results in the order of the inputs.

    lengths  3 9 4 8  ── length_batches ──►  [0, 2] [3, 1]  ── run_batched ──►  results 0 1 2 3

All predictions for many inputs go through `run_batched`: without dropout and without gradients, a batch at a time.
Inputs of similar length share a batch, since the shorter ones are padded to the longest.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from regard.generation.session import inference_mode

BATCH_TOKENS = 4096  # tokens of a batch, padding included, by default
T = TypeVar("T")
OnBatch = Callable[[list[int]], object]  # called after each batch with the indices of its items
Progress = Callable[[int], object]  # called with the number of inputs done


def length_batches(
    lengths: Sequence[int | None], budget: int = BATCH_TOKENS, copies: int = 1
) -> Iterator[list[int]]:  # fmt: skip
    """Batches of item indices by length, the shortest first: as many as fit into `budget` tokens, or a single longer
    one.

    Each item counts `copies` times, as for beams. An item without a length is in no batch.
    """
    group: list[int] = []
    known = [(length, place) for place, length in enumerate(lengths) if length is not None]
    for length, place in sorted(known):
        if group and (len(group) + 1) * copies * length > budget:
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def in_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items, in order, like `itertools.batched` of Python 3.12."""
    left = iter(items)
    while some := list(islice(left, size)):
        yield some


def run_batched(
    model: Any, items: Sequence[Any], batches: Iterable[list[int]], run: Callable[[list[Any]], Iterable[Any]],
    on_batch: OnBatch | None = None,
) -> list[Any]:  # fmt: skip
    """The result of each item, in order; `run` takes the items of one batch. None for an item in no batch."""
    found: dict[int, Any] = {}
    for places in batches:
        with inference_mode(list(model.modules())):
            found |= zip(places, run([items[place] for place in places]), strict=True)
        if on_batch is not None:
            on_batch(places)
    return [found.get(place) for place in range(len(items))]


def count_inputs(progress: Progress | None, owners: Sequence[int] | None = None) -> OnBatch | None:
    """An `on_batch` that reports the number of inputs done to `progress`. Where items are parts of inputs, such as
    windows of a long text, `owners` maps items to inputs; an input counts from its first part on."""
    done: set[int] = set()

    def on_batch(places: list[int]) -> None:
        done.update(places if owners is None else (owners[place] for place in places))
        assert progress is not None
        progress(len(done))

    return None if progress is None else on_batch
