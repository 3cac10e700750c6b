"""How a kernel's time and memory grow with the length: measured between two lengths, beside what formulas promise."""

import math
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regard.core.kernels import Ask
from regard.core.masks import mask
from regard.core.tokens import line
from regard.efficient.subject import HEADS, Subject

MASKS = ("causal", "everything", "causal & window(64)", "window(64) | landmarks(4)")
WIDTH, SHORTEST, TURNS = 16, 256, 2
ENOUGH = 0.3  # seconds: after a call that takes longer no longer ones are tried


@dataclass(frozen=True)
class Growth:
    """log2 of what twice the tokens cost, over the last doubling that was measured."""

    mask: str
    counts: tuple[int, int]
    time: float
    memory: float
    trained: bool


def growth(subject: Subject, longest: int) -> Growth | str:
    """The exponents under the first mask that it takes, or why it takes none."""
    refusals = {text: subject.refuses(asking(text, SHORTEST, False)) for text in MASKS}
    text = next((text for text, refused in refusals.items() if not refused), None)
    if text is None:
        return refusals["causal"]
    trained = not subject.refuses(asking(text, SHORTEST, True))
    counts, costs, refused = [SHORTEST], [cost(subject, text, SHORTEST, trained)], ""
    while len(costs) < 2 or (counts[-1] * 2 <= longest and costs[-1][0] < ENOUGH):
        if refused := subject.refuses(asking(text, 2 * counts[-1], trained)):
            break
        counts.append(2 * counts[-1])
        costs.append(cost(subject, text, counts[-1], trained))
    if len(costs) < 2:
        return refused
    seconds, held = (math.log2(max(after, 1e-9) / max(before, 1e-9)) for before, after in zip(*costs[-2:], strict=True))
    return Growth(text, (counts[-2], counts[-1]), seconds, held, trained)


def asking(text: str, count: int, grad: bool) -> Ask:
    places = line(torch.empty(1, count, 0))
    return Ask(mask=mask(text), q=places, k=places, grad=grad)


def cost(subject: Subject, text: str, count: int, trained: bool) -> tuple[float, float]:
    """Seconds of a call, the best of some, and the bytes it holds at its peak besides what it was given."""
    chance = torch.Generator().manual_seed(0)
    given = [torch.randn(1, HEADS, count, WIDTH, generator=chance).requires_grad_(trained) for _ in range(3)]
    own, ask = subject.own(count, WIDTH), asking(text, count, trained)

    def call() -> None:
        out = subject(given, ask, own)
        if trained:
            torch.autograd.grad(out.sum(), given, allow_unused=True)

    with torch.set_grad_enabled(trained):
        with Peak() as held:
            call()
        return min(timed(call) for _ in range(TURNS)), float(held.most)


def timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Peak(TorchDispatchMode):
    """Counts the bytes of all tensors that were made since and are still there, and their most."""

    supports_higher_order_operators = True  # FlexAttention is one

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, Tensor):
                self.count(x.untyped_storage())
        return out

    def count(self, storage: torch.UntypedStorage) -> None:
        place, size = storage.data_ptr(), storage.nbytes()
        if place and place not in self.known:
            self.known.add(place)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self.free, place, size)

    def free(self, place: int, size: int) -> None:
        self.known.discard(place)
        self.now -= size
