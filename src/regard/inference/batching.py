"""Batched inference: which inputs run together, and their results in the order of the inputs.

    lengths  3 9 4 8  ── length_batches ──►  [0, 2] [3, 1]  ── run_batched ──►  results 0 1 2 3

Everything that is predicted for many inputs goes through `run_batched`: without dropout and without gradients, a batch
at a time. Inputs of like length go together, since the shorter ones of a batch are padded to its longest.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from regard.generation.session import inference_mode

BATCH_TOKENS = 4096  # of a batch, padding included, unless a caller has less memory or more
T = TypeVar("T")
OnBatch = Callable[[list[int]], object]  # is called after each batch with the indices of its items
Progress = Callable[[int], object]  # is called with how many inputs are done


def length_batches(
    lengths: Sequence[int | None], budget: int = BATCH_TOKENS, copies: int = 1
) -> Iterator[list[int]]:  # fmt: skip
    """Indices of items of like length, the shortest first: as many as fit into `budget` tokens, or one that is longer.

    Each item is run in so many `copies`, as the beams of a search are. An item without a length is in no batch.
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
    """So many items at a time, in their order: `itertools.batched` of Python 3.12, in lists."""
    left = iter(items)
    while some := list(islice(left, size)):
        yield some


def run_batched(
    model: Any, items: Sequence[Any], batches: Iterable[list[int]], run: Callable[[list[Any]], Iterable[Any]],
    on_batch: OnBatch | None = None,
) -> list[Any]:  # fmt: skip
    """The result of each item, in order: `run` takes the items of one batch. None for an item that is in no batch."""
    found: dict[int, Any] = {}
    for places in batches:
        with inference_mode(list(model.modules())):
            found |= zip(places, run([items[place] for place in places]), strict=True)
        if on_batch is not None:
            on_batch(places)
    return [found.get(place) for place in range(len(items))]


def count_inputs(progress: Progress | None, owners: Sequence[int] | None = None) -> OnBatch | None:
    """Tells `progress` how many inputs are done. Where items are parts of inputs, as the windows of a long text,
    `owners` has the input of each; one counts from its first part on."""
    done: set[int] = set()

    def on_batch(places: list[int]) -> None:
        done.update(places if owners is None else (owners[place] for place in places))
        assert progress is not None
        progress(len(done))

    return None if progress is None else on_batch
