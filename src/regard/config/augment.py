"""What can be said about changing images while a model trains: what they show stays the same."""


from regard.config.checks import at_least, fraction
from regard.config.setting import setting


@setting
class Augment:
    """Changes to the images of a training batch, drawn anew each time; nothing is changed in evaluation.

    `flip` turns every second image left to right. `crop` lays so many black pixels around an image, and cuts one of
    its size out of that. `turn` is up to so many degrees to either side, `zoom` up to such a part larger or smaller.
    `changes` is how many of a set of thirteen are made one after the other (RandAugment: Cubuk et al. 2020), each as
    strong as `strength` says. `mixup` lays images over each other (Zhang et al. 2018), `cutmix` sets a piece of one
    into another (Yun et al. 2019): both are the number of the Beta distribution that draws the shares, 0 is never, and
    where both are said each batch has one of the two.
    """

    flip: bool = False
    crop: int = 0
    turn: float = 0.0
    zoom: float = 0.0
    changes: int = 0
    strength: float = 0.3
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        at_least(0, crop=self.crop, turn=self.turn, changes=self.changes, mixup=self.mixup, cutmix=self.cutmix)
        fraction(strength=self.strength)
        if not 0 <= self.zoom < 1:
            raise ValueError(f"zoom: {self.zoom} is not from 0 up to 1; 0.1 is up to a tenth larger or smaller")
