"""Packed copies of the weights for CPU inference, beside the plain parameters, which training and editing use.

    regard.load(x)            plain parameters, as in every torch module: trained, saved, edited, cast, inspected
      .generate(...) ...      during a step, linear layers multiply by packed panels (`regard.native`)

The copy is made at the first inference, where it pays (`regard.native.quantize.is_worth_packing`) and where there is
memory for it: it takes as much again as the linear layers. A process for inference alone, such as the command line,
keeps packed weights only (`pack_in_place`). A weight that was trained, replaced or moved since is packed again; changes
through `.data`, which torch does not count, are not noticed: call `model.layout.clear()` then.
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

SPARE = 1.25  # required free memory, relative to the size of the copy

Linear = tuple[dict[str, Any], Any, tuple[int, int], torch.Tensor]  # parameter table, plain weight, its version, and
# its data: a reference, so that no other tensor can get the same address


class PackedWeights:
    """The packed copy of one model's linear layers, made when it is needed."""

    def __init__(self) -> None:
        self.found: list[Linear] = []
        self.packed: list[nn.Parameter] = []
        self.seen: object = None  # the weights of the last decision whether to pack
        self.users, self.lock = 0, threading.Lock()

    def __reduce__(self) -> tuple[type["PackedWeights"], tuple[()]]:
        return PackedWeights, ()  # a copied model packs its own

    def clear(self) -> None:
        """Free the copy; the next inference makes another."""
        with self.lock:
            if not self.users:
                self.found, self.packed, self.seen = [], [], None

    @contextmanager
    def use(self, modules: list[nn.Module]) -> Iterator[None]:
        """Use the packed copy, from the first caller that enters until the last leaves."""
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
        """Pack again if a weight has changed."""
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
            return  # it did not pay, or memory was short
        self.found, self.packed, self.seen = [], [], now
        weights = {id(part.weight): part.weight for part in linear}
        size = sum(each.nbytes for each in weights.values())
        unfit = any(part._compiled_call_impl is not None for part in modules)  # compiled graphs refer to plain weights
        unfit |= any(each.is_inference() for each in weights.values())  # torch keeps no version of inference tensors
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
    """A model with an optional packed copy of its weights, which training frees, since it invalidates the copy."""

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
    """The address of a weight's data, and its version, which counts changes in place."""
    return weight.data_ptr(), -1 if weight.is_inference() else weight._version  # inference tensors have no version


def pack_in_place(model: Any) -> Any:
    """Replace the plain weights by packed ones where it pays, for a process that only runs inference."""
    if (layout := model.layout) is not None:
        model.layout = None
        layout.clear()
        if is_worth_packing(model):
            lora.merge_adapters(model)
            pack_model(model, "fp32")
    return model
