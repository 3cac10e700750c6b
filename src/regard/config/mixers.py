"""Config of mixers: the sublayer in the attention slot of a block, attention or an alternative.

attention   every token attends to every allowed token              4·D² weights, for any length
fc          a matrix for every pair of positions                    N²·D²
conv        one matrix for each of `size` neighbours                size·D²
rnn         a state carried from token to token                     2·D² (rnn), 6·D² (gru), 8·D² (lstm)
ssm         the same, linear, for each channel separately           D² and a few for each channel
graph       a mean over the neighbours of a node                    D²
none        no exchange between tokens                              none
"""

from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import check_minimum, config_class
from regard.config.inputs.graph import GraphConv


@config_class
class AttentionMixer:
    """Attention, configured by the trunk's `attention`."""

    kind: Literal["attention"] = "attention"


@config_class
class DenseMixer:
    """Fully connected layer over positions, for texts of at most `max_length` tokens."""

    kind: Literal["dense"] = "dense"
    max_length: int

    def __post_init__(self) -> None:
        check_minimum(1, max_length=self.max_length)


@config_class
class ConvMixer:
    """Convolution over `kernel_size` positions, `dilation` apart: previous ones under a causal mask, else both sides.

    With size 1 a token sees only itself.
    """

    kind: Literal["conv"] = "conv"
    kernel_size: int = 3
    dilation: int = 1

    def __post_init__(self) -> None:
        check_minimum(1, kernel_size=self.kernel_size, dilation=self.dilation)


@config_class
class RecurrentMixer:
    """A recurrent layer; without a causal mask bidirectional, each direction with half the width."""

    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["rnn", "gru", "lstm"] = "gru"


@config_class
class StateSpaceMixer:
    """Diagonal linear state space model with `state_dim` numbers for each channel (S4D: Gu et al. 2022)."""

    kind: Literal["ssm"] = "ssm"
    state_dim: int = 16

    def __post_init__(self) -> None:
        check_minimum(2, state_dim=self.state_dim)
        if self.state_dim % 2:
            raise ConfigError(f"state_dim: {self.state_dim} is odd, and they come in pairs")


@config_class
class NoMixer:
    """No mixer: tokens do not exchange information."""

    kind: Literal["none"] = "none"


Mixer = AttentionMixer | DenseMixer | ConvMixer | RecurrentMixer | StateSpaceMixer | NoMixer | GraphConv
OLDER = (DenseMixer, ConvMixer, RecurrentMixer, StateSpaceMixer, NoMixer)
PLACED = ("none", "sinusoidal", "learned", "onehot")  # positions that are added to token vectors


def check_mixer(mixer: Mixer, masks: tuple[str, ...], position: object, dim: int, residual: bool) -> None:
    """Check that the mixer can honour the masks and the positions."""
    if not isinstance(mixer, OLDER):
        return
    for text in masks:
        if text not in ("causal", "full"):
            raise ConfigError(f"mask: {text!r} is for attention; with mixer {mixer.kind!r} write causal or full")
    kind, mode = getattr(position, "kind", "none"), getattr(position, "mode", "")
    if kind not in PLACED or mode == "qk":
        raise ConfigError(f"position: {kind!r} acts inside of attention, and mixer.kind is {mixer.kind!r}; choose "
                         f"{', '.join(PLACED)}")  # fmt: skip
    both = "full" in masks
    if both and isinstance(mixer, RecurrentMixer) and dim % 2:
        raise ConfigError(f"dim: {dim} is odd, and each direction of a bidirectional mixer 'recurrent' has half of it")
    if both and isinstance(mixer, ConvMixer) and mixer.kernel_size % 2 == 0:
        raise ConfigError(
            f"mixer.kernel_size: {mixer.kernel_size} is even; a bidirectional convolution needs an odd size"
        )
    if isinstance(mixer, NoMixer) and not residual:
        raise ConfigError("residual: with mixer 'none' and without it, the block's output is zero; set it to "
                         "true")  # fmt: skip
