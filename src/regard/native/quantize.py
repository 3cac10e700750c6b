"""Packed and quantized weights for CPU inference, fp32, bf16 or int8, and packing of a whole model.

    pack_model(model)          fp32   the same outputs to rounding, the same memory
    pack_model(model, "bf16")  half the memory, half the time of a token
    pack_model(model, "int8")  a quarter; each row of a weight has its own scale

    F.linear(x, packed)        by panels, in C; without a compiler in torch
    F.embedding(ids, packed)   the selected rows, in fp32
    any other operation        on the unpacked fp32 tensor

A decode step multiplies a few rows by all weights and is limited by memory bandwidth; prefill and wide beams are
limited by arithmetic. Both run in C (`regard.native.library`). Tied weights stay tied. Not for training, which needs
the original weights.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from regard import config
from regard.native import library
from regard.native.library import load_library

WEIGHT_FORMATS = ("fp32", "bf16", "int8")


class PackedWeight(Tensor):
    """A weight (N, K) stored as `kept`: fp32, bf16, or int8 with a `scale` for each row; packed in panels if the
    library is available."""

    kept: Tensor
    scale: Tensor | None
    rows: int  # N, without calling torch

    @staticmethod
    def __new__(cls, kept: Tensor, scale: Tensor | None = None, shape: torch.Size | None = None) -> "PackedWeight":
        place, shape = torch.device("cpu"), kept.shape if shape is None else shape
        made: PackedWeight = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32, device=place)
        made.kept, made.scale, made.rows = kept, scale, shape[0]
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"PackedWeight({tuple(self.shape)}, {str(self.kept.dtype).removeprefix('torch.')})"

    @property
    def is_paneled(self) -> bool:
        return self.kept.dim() > 2

    def to_fp32(self) -> Tensor:
        """The fp32 values."""
        N, K = self.shape
        numbers = (library.unpack_panels(self.kept, N, K) if self.is_paneled else self.kept).float()
        return numbers if self.scale is None else numbers * self.scale[:, None]

    @classmethod
    def __torch_function__(cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is F.linear and isinstance(args[1], PackedWeight) and not kwargs:
            return packed_matmul(*args)
        if function is F.embedding and isinstance(args[1], PackedWeight):
            return packed_embedding(*args[:2])
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if function in SAME or function is torch.ops.aten.to.dtype and args[1] == torch.float32:
            return args[0]
        if function is torch.ops.aten.new_empty.default:  # an empty tensor of the same kind
            return torch.empty(args[1], **{"dtype": torch.float32, "device": "cpu", **(kwargs or {})})
        args, kwargs = tree_map(
            lambda each: each.to_fp32() if isinstance(each, PackedWeight) else each, (args, kwargs or {})
        )
        return function(*args, **kwargs)


SAME = {torch.ops.aten.detach.default, torch.ops.aten.alias.default}


def linear_into(table: Tensor) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """A product written into an existing table: allocating memory page by page costs as much as a layer."""

    def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        fits = isinstance(weight, PackedWeight) and table.shape == (len(x), len(weight))
        return packed_matmul(x, weight, bias, table) if fits else F.linear(x, weight, bias)  # type: ignore[arg-type]

    return product


def packed_matmul(x: Tensor, weight: PackedWeight, bias: Tensor | None = None, into: Tensor | None = None) -> Tensor:
    """Product of x (..., K) and a packed weight (N, K), plus a bias; written `into` an existing table if possible."""
    if torch.is_grad_enabled() and (x.requires_grad or bias is not None and bias.requires_grad):
        return F.linear(x, weight.to_fp32(), bias)
    if weight.is_paneled and library.can_multiply(x):
        return library.packed_linear(x, weight.kept, weight.rows, weight.scale, bias, into)
    if weight.is_paneled or weight.kept.dtype == torch.float32:
        return F.linear(x, weight.to_fp32(), bias)
    said = F.linear(x.bfloat16(), weight.kept.bfloat16()).float()  # int8 is exact in bf16
    said = said if weight.scale is None else said.mul_(weight.scale)
    return said if bias is None else said.add_(bias)


def packed_embedding(ids: Tensor, weight: PackedWeight) -> Tensor:
    """Some rows of a table."""
    kept = weight.kept
    rows = (library.gather_rows(kept, ids, weight.shape[1]) if weight.is_paneled else F.embedding(ids, kept)).float()
    return rows if weight.scale is None else rows * F.embedding(ids, weight.scale[:, None])


# ---------------------------------------------------------------- packing


def pack_weight(weight: Tensor, kind: str, paneled: bool = True) -> PackedWeight:
    """Pack an fp32 weight in this format; an embedding that is only looked up needs no panels."""
    scale: Tensor | None = None
    if kind == "int8":
        kept, scale = quantize_int8(weight)
    else:
        kept = weight.detach().to(torch.bfloat16 if kind == "bf16" else torch.float32)
    return PackedWeight(
        library.pack_panels(kept) if paneled and load_library() is not None else kept.contiguous(), scale, weight.shape
    )


def quantize_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize to int8 with a scale for each row: its largest absolute value becomes 127."""
    weight = weight.detach().float()
    scale = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / 127
    return (weight / scale[:, None]).round_().to(torch.int8), scale


LARGE = 8_000_000  # weights
HALVES = (torch.bfloat16, torch.float16)  # dtypes that are converted before packing, one tensor at a time


def pack_model(model: nn.Module, weights: str = "fp32") -> None:
    """Pack the weights of every linear layer in place; the model is then for inference, not for training or saving."""
    if weights not in WEIGHT_FORMATS:
        raise config.ConfigError(f"weights: no {weights!r}; there are {', '.join(WEIGHT_FORMATS)}")
    check_packable(model)
    parts = [part for part in model.modules() if isinstance(part, nn.Linear | nn.Embedding)]
    model.__dict__["layout"] = None  # disable a packed copy of the original weights
    asked, done = {id(part.weight) for part in parts if isinstance(part, nn.Linear)}, dict[int, nn.Parameter]()
    for part in parts:
        if (name := id(part.weight)) not in done:  # tied weights stay tied
            plain = part.weight.detach().float()
            done[name] = nn.Parameter(pack_weight(plain, weights, paneled=name in asked), requires_grad=False)
        part.weight = done[name]
    for each in (*model.parameters(), *model.buffers()):  # all other tensors are fp32
        if each.dtype in HALVES:
            each.data = each.data.float()


def is_worth_packing(model: nn.Module) -> bool:
    """Whether packing pays: fp32 on the CPU, and more weights than its caches hold."""
    every = list(model.parameters())
    plain = all(each.device.type == "cpu" and each.dtype == torch.float32 for each in every)
    return plain and is_large_model(model)


def is_large_model(model: nn.Module) -> bool:
    return sum(each.numel() for each in model.parameters()) >= LARGE


def check_packable(model: nn.Module) -> None:
    kinds = {(each.device.type, torch.float32 if each.dtype in HALVES else each.dtype) for each in model.parameters()}
    if any(isinstance(each, PackedWeight) for each in model.parameters()):
        raise config.ConfigError("weights: they are packed already; load the model again to pack them otherwise")
    if kinds != {("cpu", torch.float32)}:
        said = ", ".join(sorted(f"{str(kind).removeprefix('torch.')} on {device}" for device, kind in kinds))
        raise config.ConfigError(f"weights: only fp32, bf16 and fp16 on the CPU can be packed, and these are {said}; "
                                 "load the model with device='cpu', dtype='fp32'")  # fmt: skip


def refuse_packed(model: nn.Module, verb: str) -> None:
    if (kind := packed_format(model)) is not None:
        raise config.ConfigError(f"weights: they are packed as {kind} for inference and cannot be {verb}; load the "
                                 "model again without weights")  # fmt: skip


def packed_format(model: nn.Module) -> str | None:
    """The format of packed weights, if there are any."""
    found: Any = next((each for each in model.parameters() if isinstance(each, PackedWeight)), None)
    if found is None:
        return None
    return {torch.bfloat16: "bf16", torch.int8: "int8"}.get(found.kept.dtype, "fp32")
