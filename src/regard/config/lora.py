"""What can be said about low-rank adapters: which maps learn a small change, and what else learns with them."""


from regard.config.checks import at_least
from regard.config.setting import setting


@setting
class LoRA:
    """W + alpha/rank · B A in place of W, of which A and B alone learn, `rank` numbers thin (Hu et al. 2021).

    `targets` name the maps: q, k, v, out, gate, up and down wherever they are, qkv for one A that the three share, or
    more of a path, such as `trunk.blocks.0.attn.q`; in each step of it `*` stands for what it does in a shell.
    `dropout` is on what A reads. What `whole` names learns as in any other run; unless said it is what has no weights
    to begin with: a head for another task, a table of words that has grown.
    """

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ("q", "v")
    dropout: float = 0.0
    whole: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        at_least(1, rank=self.rank)
        if self.alpha <= 0:
            raise ValueError(f"alpha: {self.alpha} would leave nothing of what is learned; choose a number above 0")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: {self.dropout} is not from 0 up to 1; 0 drops nothing")
        if not self.targets or "" in self.targets:
            raise ValueError("targets: an empty name; name maps, such as 'q' and 'v'")
        if "" in (self.whole or ()):
            raise ValueError("whole: an empty name; name parts of the model, such as 'head'")
