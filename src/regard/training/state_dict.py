"""Strict loading of named tensors: every name must match on both sides, or nothing is loaded."""

import torch
from torch import Tensor

from regard import config
from regard.hub.name_table import current_name


@torch.no_grad()
def load_state_tensors(slots: dict[str, Tensor], held: dict[str, Tensor], what: str) -> None:
    """Copy each held tensor into the slot of its name, in place."""
    held = {current_name(name): tensor for name, tensor in held.items()}
    if strange := sorted(slots.keys() ^ held.keys()):
        side = "missing" if strange[0] in slots else "unknown"
        raise config.DataError(f"{what}: {strange[0]} is {side}; it was saved with other settings, or for another "
                               "model")  # fmt: skip
    for name, slot in slots.items():
        kept = held[name]
        if (kept.shape, kept.dtype) != (slot.shape, slot.dtype):
            raise config.DataError(f"{what}: {name} is {describe_tensor(kept)}, and {describe_tensor(slot)} is needed; "
                                   "it was saved for "
                                   "another model")  # fmt: skip
    for name, slot in slots.items():
        slot.copy_(held[name])


def describe_tensor(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
