"""Hardware: accelerators by their data sheets (peak FLOP/s, memory, bandwidth), and the time and price of training
runs.

The device `here` is this machine as measured. Every estimate lists its assumptions.
"""

import os
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import torch

from regard import config
from regard.config.errors import did_you_mean
from regard.config.fields import COST_LIMITS, check_ranges
from regard.measure.flops import rule_of_thumb

HERE = "here"


@dataclass(frozen=True, kw_only=True)
class HardwareDevice:
    """A device by its data sheet: dense FLOP/s in 32 and in 16 bits (of `type`), memory in bytes, bandwidth in bytes a
    second."""

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
        """The peak FLOP/s of a precision policy: fp32 multiplies in 32 bits, mixed and bf16 in 16."""
        if precision == "bf16" and self.type != "bf16":
            raise config.ConfigError(f"device: {self.name} multiplies {self.type} and no bf16; choose mixed")
        if precision != "fp32":
            return self.half
        if self.fp32 is None:
            raise config.ConfigError(f"device: {self.name} has no published peak in fp32; choose mixed or bf16")
        return self.fp32


@cache
def known_devices() -> dict[str, HardwareDevice]:
    """The devices with published data, oldest first."""
    table = tomllib.loads(files(__package__).joinpath("devices.toml").read_text(encoding="utf8"))
    return {name: HardwareDevice(name=name, **row) for name, row in table.items()}


def find_device(name: str) -> HardwareDevice:
    """A device by name; `here` is this machine."""
    known = known_devices()
    if name == HERE:
        return measured_device()
    if name not in known:
        forms = [repr(each) for each in known if name and each.startswith(name.lower())]  # "h100" is one of two
        near = f"; did you mean {' or '.join(forms)}?" if forms else did_you_mean(name, known)
        raise config.ConfigError(f"device: no {name!r}{near} there are {', '.join([*known, HERE])}")
    return known[name]


def measured_device() -> HardwareDevice:
    """This machine by its calibration: its fastest products, and its bandwidth beyond the caches."""
    from regard.measure.calibration import (
        load_calibration,  # calibration imports other modules of this package
    )

    kind = local_chip()
    found = load_calibration(kind)
    if found is None:
        raise config.ConfigError("device: 'here' has not been measured yet; run regard estimate --calibrate first")
    best = {name: max(rate for _, rate in rungs) for name, rungs in found.ladders.items()}
    return HardwareDevice(
        name=HERE,
        title=str(found.about["processor"]),
        source="measured by regard estimate --calibrate",
        fp32=best["product.float32"],
        half=best.get("product.bfloat16", best["product.float32"]),
        memory=device_memory(kind),
        bandwidth=found.ladders["plain.float32"][-1][1],
    )


def local_chip() -> str:
    """The kind of `here`: a CUDA GPU if there is one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_memory(kind: str) -> float:
    if kind == "cuda":
        return float(torch.cuda.get_device_properties(0).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


HOUR = 3600.0
EXA = 1e18


@dataclass(frozen=True, kw_only=True)
class CostTerms:
    """Assumptions for the cost of a training run: its tokens, the device, the reached share of its peak
    (`utilization`), the price of a device for an hour, and the recommended tokens for each parameter
    (`tokens_per_parameter`).

    Twenty tokens a parameter is compute-optimal by Hoffmann et al. (2022).
    """

    tokens: float | None = None
    device: str | None = None
    utilization: float = 0.4
    price: float | None = None
    tokens_per_parameter: float = 20.0

    def __post_init__(self) -> None:
        check_ranges(COST_LIMITS, self)
        if self.price is not None and self.device is None:
            raise config.ConfigError("price: an hour of which device? name it as well")


@dataclass(frozen=True)
class TrainingSpeed:
    """The speed of all ranks together: FLOP/s reached, and money for 1e18 FLOP if there is a price."""

    device: HardwareDevice
    precision: str
    ranks: int
    utilization: float
    price: float | None = None

    @property
    def peak(self) -> float:
        return self.device.peak(self.precision)

    @property
    def rate(self) -> float:
        return self.ranks * self.peak * self.utilization

    @property
    def exaflop_cost(self) -> float | None:
        """Money for 1e18 FLOP: the number of ranks does not matter."""
        return None if self.price is None else EXA / (self.peak * self.utilization) / HOUR * self.price

    def decoding(self, read: int, batch: int) -> float:
        """An upper bound of tokens a second: each step reads `read` bytes, all weights and the cache, and generates
        `batch` tokens."""
        return batch * self.ranks * self.device.bandwidth / read


@dataclass(frozen=True)
class TrainingCost:
    """The cost of a whole run: FLOPs as counted and by the rule of thumb, duration, price."""

    tokens: float
    parameters: int
    flops: float | None
    wanted: float
    pace: TrainingSpeed | None = None

    @property
    def rule(self) -> float:
        return rule_of_thumb(self.parameters, self.tokens)

    @property
    def rounded_rule(self) -> float:
        """The rule of thumb with the rounded parameter count: 175e9 for 174,604,259,328."""
        return rule_of_thumb(round_figures(self.parameters), self.tokens)

    @property
    def tokens_per_parameter(self) -> float:
        return self.tokens / self.parameters

    @property
    def enough(self) -> bool:
        return self.tokens_per_parameter >= self.wanted

    @property
    def seconds(self) -> float | None:
        return None if self.pace is None else (self.flops or self.rule) / self.pace.rate

    @property
    def device_hours(self) -> float | None:
        return None if self.pace is None or self.seconds is None else self.seconds * self.pace.ranks / HOUR

    @property
    def cost(self) -> float | None:
        if self.pace is None or self.pace.price is None or self.device_hours is None:
            return None
        return self.device_hours * self.pace.price


def round_figures(count: float) -> float:
    """Round to three significant figures."""
    return float(f"{count:.2e}")
