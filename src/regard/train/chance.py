"""Random numbers: where their generators stand, and bringing them back there.

A run has its own: whatever others draw between its steps changes nothing in it, and it changes nothing for them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

Chance = dict[str, Tensor]


def chances(device: torch.device) -> Chance:
    """Where the random numbers stand, on the host and on the device."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        states["mps"] = torch.mps.get_rng_state()
    return states


def restore(states: Chance, device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
    elif device.type == "mps" and "mps" in states:
        torch.mps.set_rng_state(states["mps"])


@contextmanager
def drawing(mine: Chance, device: torch.device) -> Iterator[None]:
    """Draw from one's own numbers, which move on; afterwards everybody else's are as they were."""
    before = chances(device)
    restore(mine, device)
    try:
        yield
    finally:
        mine.update(chances(device))
        restore(before, device)
