"""What can be said about the slot of a block where tokens learn of each other: attention, or something older."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Attend:
    """Attention, as the trunk's `attention` describes it."""

    kind: Literal["attention"] = "attention"


Mixer = Attend
