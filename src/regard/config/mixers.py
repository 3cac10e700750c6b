"""What can be said about the slot of a block where tokens learn of each other: attention, or something older.

    attention   every token looks at every token it may see             4·D² weights, whatever the length
    fc          a map of its own for every pair of places               N²·D²
    conv        one map for each of `size` neighbours                   size·D²
    rnn         a state that goes on from token to token                2·D² (rnn), 6·D² (gru), 8·D² (lstm)
    ssm         the same, linear, for each channel by itself            D² and a few for each channel
    graph       a mean over those that a node may see                   D²
    none        tokens never meet                                       none
"""

from typing import Literal

from regard.config.checks import at_least
from regard.config.graphs import Neighbours
from regard.config.setting import setting


@setting
class Attend:
    """Attention, as the trunk's `attention` describes it."""

    kind: Literal["attention"] = "attention"


@setting
class Connect:
    """Every place fully connected to every place, for texts of at most `length` tokens."""

    kind: Literal["fc"] = "fc"
    length: int

    def __post_init__(self) -> None:
        at_least(1, length=self.length)


@setting
class Convolve:
    """A window of `size` places, `dilation` apart: the last ones under a causal mask, else those around. 1 sees
    itself alone."""

    kind: Literal["conv"] = "conv"
    size: int = 3
    dilation: int = 1

    def __post_init__(self) -> None:
        at_least(1, size=self.size, dilation=self.dilation)


@setting
class Recur:
    """A recurrent layer; without a causal mask one of half the width each way."""

    kind: Literal["rnn"] = "rnn"
    cell: Literal["rnn", "gru", "lstm"] = "gru"


@setting
class Space:
    """A diagonal linear state space with `states` numbers for each channel (S4D: Gu et al. 2022)."""

    kind: Literal["ssm"] = "ssm"
    states: int = 16

    def __post_init__(self) -> None:
        at_least(2, states=self.states)
        if self.states % 2:
            raise ValueError(f"states: {self.states} is odd, and they come in pairs")


@setting
class Nothing:
    """Nothing: each token thinks alone."""

    kind: Literal["none"] = "none"


Mixer = Attend | Connect | Convolve | Recur | Space | Nothing | Neighbours
OLDER = (Connect, Convolve, Recur, Space, Nothing)
PLACED = ("none", "sinusoidal", "learned", "onehot")  # positions on the token vectors themselves


def check_mixer(mixer: Mixer, masks: tuple[str, ...], position: object, dim: int, residual: bool) -> None:
    """What stands in attention's place honours the mask and the positions, or is refused."""
    if not isinstance(mixer, OLDER):
        return
    for text in masks:
        if text not in ("causal", "everything"):
            raise ValueError(f"mask: {text!r} is for attention; with mixer {mixer.kind!r} write causal or everything")
    kind, mode = getattr(position, "kind", "none"), getattr(position, "mode", "")
    if kind not in PLACED or mode == "qk":
        raise ValueError(f"position: {kind!r} acts inside of attention, and mixer.kind is {mixer.kind!r}; choose "
                         f"{', '.join(PLACED)}")  # fmt: skip
    both = "everything" in masks
    if both and isinstance(mixer, Recur) and dim % 2:
        raise ValueError(f"dim: {dim} cannot be halved, and each way of reading of mixer 'rnn' has half of it")
    if both and isinstance(mixer, Convolve) and mixer.size % 2 == 0:
        raise ValueError(f"mixer.size: {mixer.size} has no middle; a window that looks both ways has an odd size")
    if isinstance(mixer, Nothing) and not residual:
        raise ValueError("residual: with mixer 'none' and nothing carried past it, nothing comes through; set it to "
                         "true")  # fmt: skip
