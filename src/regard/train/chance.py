"""Random numbers: where their generators stand, and bringing them back there."""

import torch
from torch import Tensor


def chances(device: torch.device) -> dict[str, Tensor]:
    """Where the random numbers stand, on the host and on the device."""
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def restore(states: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
