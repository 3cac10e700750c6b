"""What can be said about beam search: how many beginnings go on together, and which ended text is the best."""

from typing import Literal

from regard.config.checks import at_least
from regard.config.sampling import Nudge, finite, nudges, positive
from regard.config.setting import setting

STEEPEST = 10.0  # of length_penalty: beyond it the length alone decides, and soon no number holds the scores


@setting
class Search:
    """The likeliest texts are looked for, `beams` beginnings at a time; the `best` of those that ended are given.

    A text's score is log p / length^length_penalty, its length the tokens made, the end token among them: 0 compares
    whole probabilities and favours short texts, 1 compares them a token, above 1 favours long texts.
    At most `new` tokens are made, and the end token only after `shortest` others. `repetition`, `no_repeat` and `bias`
    mean what they do in Sampling; they change log p, as they do in `transformers`.
    `early_stopping` says when a search that has as many ended texts as beams is over: at once (true), as soon as the
    likeliest beginning is worse than all of them at its present length (false), or at any length (never). These rules
    and the score are those of `transformers`.
    """

    new: int = 200
    shortest: int = 0
    beams: int = 4
    best: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    repetition: float = 1.0
    no_repeat: int | None = None
    bias: tuple[Nudge, ...] = ()

    def __post_init__(self) -> None:
        at_least(0, shortest=self.shortest)
        at_least(1, new=self.new, beams=self.beams, best=self.best, no_repeat=self.no_repeat)
        finite(length_penalty=self.length_penalty)
        object.__setattr__(self, "bias", nudges(self.bias))
        positive(repetition=self.repetition)
        if self.best > self.beams:
            raise ValueError(f"best: {self.best} texts are more than the {self.beams} that the search keeps; "
                             f"set beams to {self.best} or more")  # fmt: skip
        if abs(self.length_penalty) > STEEPEST:
            raise ValueError(f"length_penalty: {self.length_penalty} is not between {-STEEPEST} and {STEEPEST}")
        if self.shortest >= self.new:
            raise ValueError(f"shortest: {self.shortest} tokens and an end are more than new, {self.new}; raise new")
