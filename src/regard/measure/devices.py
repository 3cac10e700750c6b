"""What accelerators can do, as their makers say it: a table of peaks, memory and bandwidth; and `here`, as measured."""

import os
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import torch

from regard import config
from regard.config.names import did_you_mean

HERE = "here"


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device: FLOP/s of dense products in 32 and in 16 bits (`type`), bytes of memory, bytes read a second."""

    name: str
    title: str
    source: str
    half: float
    memory: float
    bandwidth: float
    fp32: float | None = None
    type: str = "bf16"
    year: int | None = None

    def peak(self, precision: str) -> float:
        """For our policies: fp32 multiplies in 32 bits, mixed and bf16 in 16."""
        if precision == "bf16" and self.type != "bf16":
            raise config.ConfigError(f"device: {self.name} multiplies {self.type} and no bf16; choose mixed")
        if precision != "fp32":
            return self.half
        if self.fp32 is None:
            raise config.ConfigError(f"device: {self.name} has no published peak in fp32; choose mixed or bf16")
        return self.fp32


@cache
def devices() -> dict[str, Device]:
    """The published ones by name, oldest first."""
    table = tomllib.loads(files(__package__).joinpath("devices.toml").read_text(encoding="utf8"))
    return {name: Device(name=name, **row) for name, row in table.items()}


def device(name: str) -> Device:
    """A device by its name."""
    known = devices()
    if name == HERE:
        return here()
    if name not in known:
        forms = [repr(each) for each in known if name and each.startswith(name.lower())]  # an h100 is one of two
        near = f"; did you mean {' or '.join(forms)}?" if forms else did_you_mean(name, known)
        raise config.ConfigError(f"device: no {name!r}{near} there are {', '.join([*known, HERE])}")
    return known[name]


def here() -> Device:
    """This machine as it was measured: the best of its products, and the pace of what does not fit its caches."""
    from regard.measure.machine import machine  # who measures counts work first, and so needs this room's others

    kind = chip()
    found = machine(kind)
    if found is None:
        raise config.ConfigError("device: 'here' has not been measured yet; run regard estimate --calibrate first")
    best = {name: max(rate for _, rate in rungs) for name, rungs in found.ladders.items()}
    return Device(
        name=HERE, title=str(found.about["processor"]), source="measured by regard estimate --calibrate",
        fp32=best["product.float32"], half=best.get("product.bfloat16", best["product.float32"]), memory=room(kind),
        bandwidth=found.ladders["plain.float32"][-1][1],
    )  # fmt: skip


def chip() -> str:
    """What `here` is: the accelerator where there is one that can be measured, else the processor."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def room(kind: str) -> float:
    if kind == "cuda":
        return float(torch.cuda.get_device_properties(0).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
