"""Packed copies of the weights, beside the plain ones, for CPU inference: used by the verbs and by nothing else.

    regard.load(x)            plain parameters, as in every torch module: trained, saved, edited, cast, looked into
      .generate(...) ...      for as long as a step lasts, linear layers multiply by panels (`regard.native`)

The copy is made when a model is first asked, where it pays (`regard.native.quantize.is_worth_packing`) and where there
is memory for it: it takes as much again as the linear layers. A process that only answers, such as the command line,
holds the weights packed and nothing else (`pack`). A weight that was trained, replaced or moved since is packed again;
numbers that were changed through `.data`, behind torch's back, are not noticed: call `model.layout.clear()` then.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import nn

from regard.models import lora
from regard.native.free_memory import free_memory_bytes
from regard.native.library import load_library
from regard.native.quantize import is_worth_packing, pack_model, pack_weight

SPARE = 1.25  # times the copy's size that must be free

Linear = tuple[dict[str, Any], Any, tuple[int, int], torch.Tensor]  # where it stands, the plain weight, its state, and
# its numbers: memory that is not given back cannot be taken for others by its address


class PackedWeights:
    """The packed copy of one model's linear layers, or none yet."""

    def __init__(self) -> None:
        self.found: list[Linear] = []
        self.packed: list[nn.Parameter] = []
        self.seen: object = None  # the weights that it was last decided for
        self.users, self.lock = 0, threading.Lock()

    def __reduce__(self) -> tuple[type["PackedWeights"], tuple[()]]:
        return PackedWeights, ()  # a copied model makes its own

    def clear(self) -> None:
        """Free the copy; the next verb makes another."""
        with self.lock:
            if not self.users:
                self.found, self.packed, self.seen = [], [], None

    @contextmanager
    def use(self, modules: list[nn.Module]) -> Iterator[None]:
        """Multiply by the packed copy, from the first caller that enters until the last leaves."""
        with self.lock:
            if not self.users:
                self.renew(modules)
                for (place, *_), packed in zip(self.found, self.packed, strict=True):
                    place["weight"] = packed
            self.users += 1
        try:
            yield
        finally:
            with self.lock:
                self.users -= 1
                if not self.users:
                    for place, plain, *_ in self.found:
                        place["weight"] = plain

    def renew(self, modules: list[nn.Module]) -> None:
        """Pack again what is not as it was packed."""
        first = next(modules[0].parameters(), None)
        if first is None or first.device.type != "cpu" or modules[0]._compiled_call_impl is not None:
            self.found, self.packed, self.seen = [], [], None
            return
        if self.packed and all(
            each[0]["weight"] is each[1] and weight_version(each[1]) == each[2] for each in self.found
        ):
            return
        linear = [part for part in modules if isinstance(part, nn.Linear) and "weight" in part._parameters]
        now = [(id(part.weight), *weight_version(part.weight)) for part in linear]
        if now == self.seen and not self.packed:
            return  # it did not pay, or there was no room
        self.found, self.packed, self.seen = [], [], now
        weights = {id(part.weight): part.weight for part in linear}
        size = sum(each.nbytes for each in weights.values())
        unfit = any(part._compiled_call_impl is not None for part in modules)  # graphs are made for plain weights
        unfit |= any(each.is_inference() for each in weights.values())  # torch does not count how often they change
        if unfit or not is_worth_packing(modules[0]) or load_library() is None or free_memory_bytes() < SPARE * size:
            return
        with torch.inference_mode(False), torch.no_grad():
            made = {
                name: nn.Parameter(pack_weight(each, "fp32"), requires_grad=False) for name, each in weights.items()
            }
        self.found = [
            (part._parameters, part.weight, weight_version(part.weight), part.weight.detach()) for part in linear
        ]
        self.packed = [made[id(part.weight)] for part in linear]


class PackableModel(nn.Module):
    """A model whose verbs may use a packed copy; training needs its memory, and makes it worthless."""

    layout: PackedWeights | None = None

    def train(self, mode: bool = True) -> Self:
        if mode and self.layout is not None:
            self.layout.clear()
        return super().train(mode)

    def _apply(self, *given: Any, **named: Any) -> Self:  # .to, .double, .cuda, ...
        if self.layout is not None:
            self.layout.clear()
        return super()._apply(*given, **named)  # type: ignore[no-any-return, no-untyped-call]


def weight_version(weight: torch.Tensor) -> tuple[int, int]:
    """Where a weight's numbers are, and how often they were changed in place."""
    return weight.data_ptr(), -1 if weight.is_inference() else weight._version  # which inference tensors have not


def pack_in_place(model: Any) -> Any:
    """Hold the weights packed where it pays, and the plain ones no more: for a process that only answers."""
    if (layout := model.layout) is not None:
        model.layout = None
        layout.clear()
        if is_worth_packing(model):
            lora.merge_adapters(model)
            pack_model(model, "fp32")
    return model
