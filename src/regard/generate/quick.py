"""Quick: a model's weights laid out for the CPU that asks it.

    quicken(model)          fp32   the same answers to rounding, the same memory
    quicken(model, "bf16")  half the memory, half the time of a token
    quicken(model, "int8")  a quarter; each row of a weight has a scale of its own

Who writes token by token multiplies a few rows by all the weights, and waits for memory; who reads a prompt or searches
with many beams waits for the adder. Both are done in C (`regard.native`), by weights that lie in panels.
"""

from typing import Any

import torch
from torch import nn

from regard import config
from regard.native.held import KINDS, Held, hold

LARGE = 8_000_000  # weights
HALVES = (torch.bfloat16, torch.float16)  # types that are converted to be packed, a tensor at a time


def quicken(model: nn.Module, weights: str = "fp32") -> None:
    """Hold the weights of every map so, in place; a model is asked then, and neither trained nor saved."""
    if weights not in KINDS:
        raise config.ConfigError(f"weights: no {weights!r}; there are {', '.join(KINDS)}")
    check(model)
    parts = [part for part in model.modules() if isinstance(part, nn.Linear | nn.Embedding)]
    model.__dict__["layout"] = None  # a packed copy beside them has nothing to be a copy of
    asked, done = {id(part.weight) for part in parts if isinstance(part, nn.Linear)}, dict[int, nn.Parameter]()
    for part in parts:
        if (name := id(part.weight)) not in done:  # tied weights stay tied
            plain = part.weight.detach().float()
            done[name] = nn.Parameter(hold(plain, weights, paneled=name in asked), requires_grad=False)
        part.weight = done[name]
    for each in (*model.parameters(), *model.buffers()):  # what lies between packed weights is fp32
        if each.dtype in HALVES:
            each.data = each.data.float()


def worth(model: nn.Module) -> bool:
    """Whether laying out pays: fp32 on the CPU, and more weights than its caches hold."""
    every = list(model.parameters())
    plain = all(each.device.type == "cpu" and each.dtype == torch.float32 for each in every)
    return plain and is_large(model)


def is_large(model: nn.Module) -> bool:
    return sum(each.numel() for each in model.parameters()) >= LARGE


def check(model: nn.Module) -> None:
    kinds = {(each.device.type, torch.float32 if each.dtype in HALVES else each.dtype) for each in model.parameters()}
    if any(isinstance(each, Held) for each in model.parameters()):
        raise config.ConfigError("weights: they are held already; load the model again to hold them otherwise")
    if kinds != {("cpu", torch.float32)}:
        said = ", ".join(sorted(f"{str(kind).removeprefix('torch.')} on {device}" for device, kind in kinds))
        raise config.ConfigError(f"weights: only fp32, bf16 and fp16 on the CPU can be packed, and these are {said}; "
                                 "load the model with device='cpu', dtype='fp32'")  # fmt: skip


def refuse_held(model: nn.Module, verb: str) -> None:
    if (kind := held(model)) is not None:
        raise config.ConfigError(f"weights: they are held as {kind} to be asked, and cannot be {verb} so; load the "
                                 "model again without weights")  # fmt: skip


def held(model: nn.Module) -> str | None:
    """How the weights are held that were laid out, if any were."""
    found: Any = next((each for each in model.parameters() if isinstance(each, Held)), None)
    if found is None:
        return None
    return {torch.bfloat16: "bf16", torch.int8: "int8"}.get(found.kept.dtype, "fp32")

