"""What can be said about heads: what is asked of a trunk's vectors."""

from dataclasses import dataclass
from typing import Literal

from regard.config.checks import at_least
from regard.config.series import Horizon


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Logits over the vocabulary; `transform` is BERT's extra dense layer, activation and norm before them.

    `size` is their number where it is not the embedding's: an image never says the token that it starts with.
    """

    kind: Literal["vocabulary"] = "vocabulary"
    tied: bool = True
    bias: bool = False
    scale: float = 1.0
    transform: bool = False
    size: int | None = None

    def __post_init__(self) -> None:
        at_least(1, size=self.size)
        if self.tied and self.size is not None:
            raise ValueError("size: a tied head has the embedding's; leave it out, or set tied to false")


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """One vector for the whole sequence, from `place`; `dense` is BERT's tanh layer, `out` the width of a last map."""

    kind: Literal["pooled"] = "pooled"
    place: Literal["cls", "mean", "last", "end"] = "cls"
    dense: bool = False
    out: int | None = None
    bias: bool = True

    def __post_init__(self) -> None:
        at_least(1, out=self.out)


@dataclass(frozen=True, kw_only=True)
class Both:
    """Logits for every token and one vector for the whole, as BERT was trained: the model answers with the pair."""

    kind: Literal["both"] = "both"
    vocabulary: Vocabulary = Vocabulary(transform=True, bias=True)
    pooled: Pooled = Pooled(dense=True, out=2)


@dataclass(frozen=True, kw_only=True)
class Each:
    """`out` numbers for every token: the classes of a tag, or how well an answer begins and ends there (2)."""

    kind: Literal["each"] = "each"
    out: int = 2
    bias: bool = True

    def __post_init__(self) -> None:
        at_least(1, out=self.out)


@dataclass(frozen=True, kw_only=True)
class Bare:
    """No head: the trunk's vectors themselves."""

    kind: Literal["none"] = "none"


Head = Vocabulary | Pooled | Both | Each | Bare | Horizon
