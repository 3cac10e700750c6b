"""The most memory that a call holds: every tensor that an operation makes is counted until nobody holds it."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def most(call: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """Bytes of tensors that a call holds at most beyond those before it.

    On a GPU its allocator knows. On a CPU each operation's tensors are followed, in backward too; what a kernel takes
    for itself while it runs is not seen.
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with Holding() as holding:
        call()
    return int(holding.most)


class Holding(TorchDispatchMode):
    """Follows the storage of every tensor that is made; `now` bytes are held, and `most` were."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self.known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(each.untyped_storage()) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        made = func(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if isinstance(each, Tensor) and id(each.untyped_storage()) not in given:  # a view holds nothing new
                self.hold(each.untyped_storage())
        return made

    def hold(self, storage: torch.UntypedStorage) -> None:
        if storage in self.known:
            return
        self.known.add(storage)
        size = storage.nbytes()
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self.let_go, size)

    def let_go(self, size: int) -> None:
        self.now -= size
