"""What can be said about models beside each other."""

from typing import Literal

from regard.config.checks import at_least
from regard.config.fronts import Embed, Front
from regard.config.heads import Head
from regard.config.mixed import Mixed
from regard.config.models import Encoder, Stack, Transformer
from regard.config.setting import setting


@setting
class Towers:
    """Several models side by side whose pooled vectors are compared (CLIP: Radford et al. 2021).

    Cosines are multiplied by a scale that is trained: it begins at `scale` and never grows beyond `limit`. Where one
    model is meant, for its words or its width, it is the tower that reads text.
    """

    kind: Literal["towers"] = "towers"
    towers: tuple[Transformer, ...]
    scale: float = 1 / 0.07
    limit: float = 100.0

    def __post_init__(self) -> None:
        if not self.towers:
            raise ValueError("towers: there are none; describe at least two, as [model.image] and [model.text]")
        at_least(1e-3, scale=self.scale)
        if self.scale > self.limit:
            raise ValueError(f"scale: it begins at {self.scale:g}, beyond its limit of {self.limit:g}")
        if len({tower.precision for tower in self.towers}) > 1:
            raise ValueError("towers: their precision differs; choose one for all")

    @property
    def text(self) -> Transformer:
        """The tower that reads text; the last one if none does."""
        return next((tower for tower in self.towers if isinstance(tower.embed, Embed)), self.towers[-1])

    @property
    def embed(self) -> Front | Mixed:
        return self.text.embed

    @property
    def trunk(self) -> Stack:
        return self.text.trunk

    @property
    def head(self) -> Head:
        return self.text.head

    @property
    def encoder(self) -> Encoder | None:
        return None

    @property
    def init(self) -> str:
        return self.text.init

    @property
    def precision(self) -> Literal["fp32", "mixed", "bf16"]:
        return self.text.precision


Model = Transformer | Towers
