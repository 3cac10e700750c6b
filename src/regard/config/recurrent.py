"""What can be said about the older stacks: tokens read one after the other, or through small windows."""

from typing import Literal

from regard.config.checks import at_least
from regard.config.positions import Nowhere
from regard.config.setting import setting
from regard.config.trunk import MLP, Norm


@setting
class Recurrent:
    """A stack of recurrent layers (rnn, gru, lstm) or of convolutions (cnn) where a transformer has blocks.

    `mask` says which way they read: causal from left to right, everything both ways, half of `dim` each. `width` is
    that of the embeddings, if it is another. A cnn sees `size` places in a layer, `dilation` times further apart in
    each next one, and adds what it finds to what was there. `dropout` is the rate on the embeddings, between layers
    and at the end.

    A decoder reads its encoder by `cross`: fixed, one vector for a whole source (Cho et al. 2014); or additive, at each
    step the places that suit the state before it (Bahdanau et al. 2015).
    """

    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["rnn", "gru", "lstm", "cnn"] = "lstm"
    dim: int = 512
    depth: int = 2
    width: int | None = None
    mask: Literal["causal", "everything"] = "causal"
    size: int = 3
    dilation: int = 1
    cross: Literal["none", "fixed", "additive"] = "none"
    dropout: float = 0.1

    def __post_init__(self) -> None:
        at_least(1, dim=self.dim, depth=self.depth, width=self.width, size=self.size, dilation=self.dilation)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: {self.dropout} is not a rate between 0 and 1")
        if self.cell != "cnn" and (self.size, self.dilation) != (3, 1):
            raise ValueError(f"size, dilation: they are for cell 'cnn', and the cell is {self.cell!r}; leave them out")
        if self.cell != "cnn" and self.mask == "everything" and self.dim % 2:
            raise ValueError(f"dim: {self.dim} cannot be halved, and each way of reading has half of it")
        if self.mask == "everything" and self.cell == "cnn" and self.size % 2 == 0:
            raise ValueError(f"size: {self.size} has no middle; a window that looks both ways has an odd size")
        if self.cross != "none" and (self.mask != "causal" or self.cell == "cnn"):
            raise ValueError("cross: who tells a target reads it from left to right, with a state; set mask to causal "
                             "and cell to rnn, gru or lstm")  # fmt: skip

    # ---------------------------------------------------------------- what is asked of every stack

    @property
    def masks(self) -> tuple[str, ...]:
        return (self.mask,)

    @property
    def heads(self) -> tuple[int, ...]:
        return ()

    @property
    def position(self) -> Nowhere:
        return Nowhere()

    @property
    def place(self) -> str:
        return "pre"

    @property
    def norm(self) -> Norm:
        return Norm()

    @property
    def mlp(self) -> MLP:
        return MLP()
