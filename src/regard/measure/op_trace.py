"""Op trace: every operation of a step, recorded as a charge.

A charge names a ladder of the machine (how fast it is at something, by size) and the size of one piece of work:
operations for products and attention, bytes for the rest, and calls for the overhead of each call.

A compiled step is charged less. What stands between two products becomes one kernel, which reads and writes only what
crosses its border:

    eager       mm ─► gelu ─► mul ─► mm      each arrow is written and read
    compiled    mm ─► (gelu, mul) ─► mm      each arrow is
"""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

OpCharge = tuple[str, int]
LARGE_BLOCK = (
    2**25
)  # bytes from which a block of memory is the system's own and new each time: glibc's largest threshold
FEW = ("embedding", "index", "gather", "index_select", "nll_loss_forward")  # read as much as they write
SLOW_OPS = (  # worth a ladder of their own; all else moves as fast as it adds
    "gelu", "gelu_backward", "gelu_tanh", "gelu_backward_tanh", "silu", "silu_backward", "_softmax",
    "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data", "native_layer_norm",
    "native_layer_norm_backward", "masked_fill", "clone", "bernoulli",
)  # fmt: skip
SHORT = 128  # numbers in a row, for a processor
CURVED = ("gelu", "silu", "softmax", "layer_norm")  # arithmetic that stays when its reading and writing go
BLOCK = {"cpu": 512, "cuda": 128}  # keys that attention kernels take at once


class OpTrace(TorchDispatchMode):
    """Sees every operation below autograd, charges for it, and follows the memory it makes until that is freed."""

    def __init__(self, compiled: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.charges: Counter[OpCharge] = Counter()
        self.fusion = FusedOps() if compiled else None
        self.sizes: dict[int, int] = {}  # of what is alive
        self.held, self.curve = 0, [0]  # bytes alive, after each operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace == "aten":  # others ask where a tensor is
            self.note(TracedOp(func, args, kwargs or {}, out))
        return out

    def note(self, did: "TracedOp") -> None:
        for place, made in did.made.items():
            self.sizes[place] = made.nbytes()
            self.held += made.nbytes()
            weakref.finalize(made, self.free, place)
        self.curve.append(self.held)
        self.charges.update(did.charges() if self.fusion is None else self.fusion.charges(did))

    def free(self, place: int) -> None:
        self.held -= self.sizes.pop(place)
        if self.fusion is not None:
            self.fusion.forget(place)

    def close(self) -> None:
        """Charge for what is left when all is done."""
        if self.fusion is not None:
            self.charges.update(self.fusion.rest())


class TracedOp:
    """One call below autograd: its name, what it reads, writes and makes, and its arithmetic if it multiplies."""

    def __init__(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        said = {each.name: value for each, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        self.name = func._schema.name.removeprefix("aten::").rstrip("_")
        self.inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        self.outputs = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        self.reads, self.writes = bytes_by_storage(self.inputs), bytes_by_storage(self.outputs)
        self.made = {storage_key(x): x.untyped_storage() for x in self.outputs if storage_key(x) not in self.reads}
        self.view = not self.made and not func._schema.is_mutable
        self.flops = int(op_flops(func, args, kwargs, out, said) * causal_share(said))
        if self.name in FEW:
            self.reads = self.writes
        if said.get("approximate") == "tanh":  # GELU's, which is another function to a machine
            self.name += "_tanh"

    @property
    def bytes(self) -> int:
        return sum(self.reads.values()) + sum(self.writes.values())

    @property
    def numbers(self) -> int:
        return sum(x.numel() for x in (*self.inputs, *self.outputs))

    @property
    def ladder(self) -> str:
        """What of the machine this needs."""
        kinds = [x.dtype for x in self.outputs if x.dtype.is_floating_point]
        kind = str(kinds[0] if kinds else torch.float32).removeprefix("torch.")
        if "attention" in self.name:
            return f"look{'_back' if self.name.endswith('backward') else ''}.{kind}"
        if self.flops:
            return f"{'batch' if 'bmm' in self.name else 'product'}.{kind}"
        moves = self.name == "clone" and self.inputs[0].is_contiguous()  # from one place to another, in order
        if self.name in SLOW_OPS and not moves:
            return f"{self.name}.{kind}"
        return f"{'uneven' if self.is_uneven else 'plain'}.{kind}"

    @property
    def is_uneven(self) -> bool:
        """Whether it takes short rows from here and there, as rotary positions do: a machine likes long ones."""
        out, largest = self.outputs[0], max((x.numel() for x in self.inputs), default=0)
        if not 1 < out.shape[-1:].numel() < SHORT or out.numel() < largest:
            return False
        return any(x.numel() > 1 and x.stride() != out.stride() for x in self.inputs)

    def charges(self) -> Iterator[OpCharge]:
        """What it costs when nothing is fused."""
        yield "call", 1
        if not self.view:
            yield self.ladder, self.flops or self.bytes
            yield from allocation_charges(made.nbytes() for made in self.made.values())


class FusedOps:
    """All between two products is one kernel: it reads what others made, once, and writes what others will read."""

    def __init__(self) -> None:
        self.bytes = 0  # moved by the kernel that is being put together
        self.inner: dict[int, int] = {}  # what kernels made and no other has read so far: it need not exist
        self.seen: set[int] = set()  # what this kernel made or has read

    def charges(self, did: TracedOp) -> Iterator[OpCharge]:
        if did.view:
            return
        if did.flops:
            yield from self.write(did.reads)
            yield from self.close()
            yield "kernel", 1
            yield did.ladder, did.flops
            yield from allocation_charges(made.nbytes() for made in did.made.values())
            return
        if did.outputs[0].device.type != "cpu":  # an accelerator computes while it waits for memory
            pass
        elif any(word in did.name for word in CURVED):
            yield did.ladder, did.bytes
        else:
            yield "touch", did.numbers  # every number for every operation
        yield from self.write({each: 0 for each in did.reads if each not in self.seen})
        self.bytes += sum(size for each, size in did.reads.items() if each not in self.seen)
        self.inner |= {each: made.nbytes() for each, made in did.made.items()}
        self.seen |= did.reads.keys() | did.writes.keys()

    def write(self, places: dict[int, int]) -> Iterator[OpCharge]:
        """These are read by others than their makers, so they must be written after all."""
        sizes = [self.inner.pop(each) for each in places if each in self.inner]
        self.bytes += sum(sizes)
        yield from allocation_charges(sizes)

    def close(self) -> Iterator[OpCharge]:
        if self.bytes:
            yield "kernel", 1
            yield "plain.float32", self.bytes
        self.bytes = 0
        self.seen.clear()

    def forget(self, place: int) -> None:
        self.inner.pop(place, None)
        self.seen.discard(place)

    def rest(self) -> Iterator[OpCharge]:
        """What is left when all is done are results: the gradients of weights."""
        yield from self.close()
        yield from (("plain.float32", size) for size in self.inner.values())


def op_flops(func: Any, args: Any, kwargs: Any, out: Any, keywords: dict[str, Any]) -> int:
    """The arithmetic of a product or of attention, as torch counts it; nothing for all else."""
    if func._overloadpacket in flop_registry:
        return int(flop_registry[func._overloadpacket](*args, **kwargs, out_val=out))
    if not func._schema.name.startswith("aten::_scaled_dot_product_flash_attention_for_cpu"):
        return 0
    q, k, v = (keywords[name].shape for name in ("query", "key", "value"))
    if "grad_out" in keywords:
        return int(sdpa_backward_flop_count(keywords["grad_out"].shape, q, k, v))
    return int(sdpa_flop_count(q, k, v))


def causal_share(keywords: dict[str, Any]) -> float:
    """The part of it that a causal kernel computes: whole blocks of keys are skipped."""
    if not keywords.get("is_causal"):
        return 1.0
    keys: Tensor = keywords["key"]
    return (1 + min(1.0, BLOCK.get(keys.device.type, 128) / keys.shape[-2])) / 2


def allocation_charges(sizes: Iterable[int]) -> Iterator[OpCharge]:
    """Large blocks of memory, which the system hands out page by page."""
    yield from (("fresh", size) for size in sizes if size >= LARGE_BLOCK)


def storage_key(x: Tensor) -> int:
    return int(x.untyped_storage()._cdata)


def bytes_by_storage(tensors: list[Tensor]) -> dict[int, int]:
    """Bytes by storage, as many as are really there: what is expanded is read again and again, from the cache."""
    found: dict[int, int] = {}
    for x in tensors:
        asked = found.get(storage_key(x), 0) + x.numel() * x.element_size()
        found[storage_key(x)] = min(asked, x.untyped_storage().nbytes())
    return found
