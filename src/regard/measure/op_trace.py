"""Op trace: records every operation of a training step as a charge.

A charge names a ladder of the machine (the speed of one kind of work, by size) and a size: FLOPs for products and
attention, bytes for the rest, and calls for the overhead of each call.

A compiled step is charged less. All operations between two products are fused into one kernel, which reads and writes
only its inputs and outputs:

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
LARGE_BLOCK = 2**25  # bytes from which glibc maps a block anew each time: its largest mmap threshold
FEW = ("embedding", "index", "gather", "index_select", "nll_loss_forward")  # ops that read as much as they write
SLOW_OPS = (  # ops with a ladder of their own; all others run at the speed of an addition
    "gelu", "gelu_backward", "gelu_tanh", "gelu_backward_tanh", "silu", "silu_backward", "_softmax",
    "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data", "native_layer_norm",
    "native_layer_norm_backward", "masked_fill", "clone", "bernoulli",
)  # fmt: skip
SHORT = 128  # rows below this length are short for a CPU
CURVED = ("gelu", "silu", "softmax", "layer_norm")  # ops whose arithmetic still costs time after fusion
BLOCK = {"cpu": 512, "cuda": 128}  # block size of keys in attention kernels


class OpTrace(TorchDispatchMode):
    """Dispatch mode that charges every operation below autograd, and tracks the memory that it allocates until it is
    freed."""

    def __init__(self, compiled: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.charges: Counter[OpCharge] = Counter()
        self.fusion = FusedOps() if compiled else None
        self.sizes: dict[int, int] = {}  # by storage, of live memory
        self.held, self.curve = 0, [0]  # bytes alive, after each operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace == "aten":  # other namespaces only query tensors
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
        """Charge for the last fused kernel."""
        if self.fusion is not None:
            self.charges.update(self.fusion.rest())


class TracedOp:
    """One operation below autograd: its name, what it reads, writes and allocates, and its FLOPs if it is a product."""

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
        if said.get("approximate") == "tanh":  # tanh GELU has its own speed
            self.name += "_tanh"

    @property
    def bytes(self) -> int:
        return sum(self.reads.values()) + sum(self.writes.values())

    @property
    def numbers(self) -> int:
        return sum(x.numel() for x in (*self.inputs, *self.outputs))

    @property
    def ladder(self) -> str:
        """The ladder that this operation is charged to."""
        kinds = [x.dtype for x in self.outputs if x.dtype.is_floating_point]
        kind = str(kinds[0] if kinds else torch.float32).removeprefix("torch.")
        if "attention" in self.name:
            return f"look{'_back' if self.name.endswith('backward') else ''}.{kind}"
        if self.flops:
            return f"{'batch' if 'bmm' in self.name else 'product'}.{kind}"
        moves = self.name == "clone" and self.inputs[0].is_contiguous()  # a contiguous copy
        if self.name in SLOW_OPS and not moves:
            return f"{self.name}.{kind}"
        return f"{'uneven' if self.is_uneven else 'plain'}.{kind}"

    @property
    def is_uneven(self) -> bool:
        """Whether it reads short rows from scattered addresses, as rotary positions do: slower than long rows."""
        out, largest = self.outputs[0], max((x.numel() for x in self.inputs), default=0)
        if not 1 < out.shape[-1:].numel() < SHORT or out.numel() < largest:
            return False
        return any(x.numel() > 1 and x.stride() != out.stride() for x in self.inputs)

    def charges(self) -> Iterator[OpCharge]:
        """The charges without fusion."""
        yield "call", 1
        if not self.view:
            yield self.ladder, self.flops or self.bytes
            yield from allocation_charges(made.nbytes() for made in self.made.values())


class FusedOps:
    """Fusion of all operations between two products into one kernel, which reads each input once and writes its
    outputs."""

    def __init__(self) -> None:
        self.bytes = 0  # moved by the current kernel
        self.inner: dict[int, int] = {}  # intermediate results without another reader so far: they need no memory
        self.seen: set[int] = set()  # what the current kernel has made or read

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
        if did.outputs[0].device.type != "cpu":  # an accelerator hides arithmetic behind memory traffic
            pass
        elif any(word in did.name for word in CURVED):
            yield did.ladder, did.bytes
        else:
            yield "touch", did.numbers  # a CPU pays for every element of every operation
        yield from self.write({each: 0 for each in did.reads if each not in self.seen})
        self.bytes += sum(size for each, size in did.reads.items() if each not in self.seen)
        self.inner |= {each: made.nbytes() for each, made in did.made.items()}
        self.seen |= did.reads.keys() | did.writes.keys()

    def write(self, places: dict[int, int]) -> Iterator[OpCharge]:
        """Charge for intermediates that another kernel reads, so that they must be written to memory."""
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
        """Charge for what is left at the end: results, which are the gradients of weights."""
        yield from self.close()
        yield from (("plain.float32", size) for size in self.inner.values())


def op_flops(func: Any, args: Any, kwargs: Any, out: Any, keywords: dict[str, Any]) -> int:
    """The FLOPs of a product or of attention, as torch counts them; 0 for all else."""
    if func._overloadpacket in flop_registry:
        return int(flop_registry[func._overloadpacket](*args, **kwargs, out_val=out))
    if not func._schema.name.startswith("aten::_scaled_dot_product_flash_attention_for_cpu"):
        return 0
    q, k, v = (keywords[name].shape for name in ("query", "key", "value"))
    if "grad_out" in keywords:
        return int(sdpa_backward_flop_count(keywords["grad_out"].shape, q, k, v))
    return int(sdpa_flop_count(q, k, v))


def causal_share(keywords: dict[str, Any]) -> float:
    """The share that a causal kernel computes: it skips whole blocks of keys."""
    if not keywords.get("is_causal"):
        return 1.0
    keys: Tensor = keywords["key"]
    return (1 + min(1.0, BLOCK.get(keys.device.type, 128) / keys.shape[-2])) / 2


def allocation_charges(sizes: Iterable[int]) -> Iterator[OpCharge]:
    """Charges for large allocations, which the system maps page by page."""
    yield from (("fresh", size) for size in sizes if size >= LARGE_BLOCK)


def storage_key(x: Tensor) -> int:
    return int(x.untyped_storage()._cdata)


def bytes_by_storage(tensors: list[Tensor]) -> dict[int, int]:
    """Bytes read by storage, at most its size: repeated reads of expanded tensors come from the cache."""
    found: dict[int, int] = {}
    for x in tensors:
        asked = found.get(storage_key(x), 0) + x.numel() * x.element_size()
        found[storage_key(x)] = min(asked, x.untyped_storage().nbytes())
    return found
