"""What can be said about mixtures: front ends in one sequence, and models beside each other."""

from typing import Literal

from regard.config.fronts import Embed, Front, Patches
from regard.config.setting import setting


@setting
class Mixed:
    """What is `seen` and then a `text`, in one sequence: tokens of both look at each other as the mask allows.

    Places run on from the one to the other, and a learned vector tells the two apart. Under the mask "prefix(n)", n
    being the tokens of what is seen, these see each other and the text is written after them (GIT: Wang et al. 2022).
    """

    kind: Literal["mixed"] = "mixed"
    seen: Front = Patches()
    text: Embed = Embed()

    def __post_init__(self) -> None:
        if isinstance(self.seen, Embed):
            raise ValueError("seen.kind: 'text' is what comes after it; choose patches or another that reads no text")

    @property
    def vocab(self) -> int:
        return self.text.vocab

    @property
    def pad(self) -> int | None:
        return self.text.pad

    @property
    def end(self) -> int | None:
        return self.text.end
