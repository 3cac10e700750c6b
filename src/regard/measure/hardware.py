"""Time and money: a training run on named devices at a price, with every assumption said."""

from dataclasses import dataclass

from regard import config
from regard.config.checks import TERMS, within
from regard.measure.devices import Device
from regard.measure.flops import rule

HOUR = 3600.0
EXA = 1e18


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a training run is planned with: tokens to read, devices, the share of their peak that is reached
    (`utilisation`), the price of a device for an hour, and the tokens wanted for each parameter (`ratio`).

    Twenty tokens a parameter is where Hoffmann et al. (2022) find a fixed budget best spent.
    """

    tokens: float | None = None
    device: str | None = None
    utilisation: float = 0.4
    price: float | None = None
    ratio: float = 20.0

    def __post_init__(self) -> None:
        within(TERMS, self)
        if self.price is not None and self.device is None:
            raise config.ConfigError("price: an hour of which device? name it as well")


@dataclass(frozen=True)
class Pace:
    """How fast devices work together: FLOP/s that all ranks reach, and money for 1e18 FLOP if there is a price."""

    device: Device
    precision: str
    ranks: int
    utilisation: float
    price: float | None = None

    @property
    def peak(self) -> float:
        return self.device.peak(self.precision)

    @property
    def rate(self) -> float:
        return self.ranks * self.peak * self.utilisation

    @property
    def exaflop_cost(self) -> float | None:
        """Money for 1e18 FLOP: the number of ranks does not matter."""
        return None if self.price is None else EXA / (self.peak * self.utilisation) / HOUR * self.price

    def decoding(self, read: int, batch: int) -> float:
        """Tokens a second at most: each step reads all weights and what is remembered, and writes `batch` tokens."""
        return batch * self.ranks * self.device.bandwidth / read


@dataclass(frozen=True)
class Training:
    """A whole run: its arithmetic as counted and by the rule of thumb, its length in time, its price."""

    tokens: float
    parameters: int
    flops: float | None
    wanted: float
    pace: Pace | None = None

    @property
    def rule(self) -> float:
        return rule(self.parameters, self.tokens)

    @property
    def rounded_rule(self) -> float:
        """The rule with the count as it is spoken of, in three figures: 175e9 for 174,604,259,328."""
        return rule(rounded(self.parameters), self.tokens)

    @property
    def ratio(self) -> float:
        return self.tokens / self.parameters

    @property
    def enough(self) -> bool:
        return self.ratio >= self.wanted

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


def rounded(count: float) -> float:
    """Three figures."""
    return float(f"{count:.2e}")
