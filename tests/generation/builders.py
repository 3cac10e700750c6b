"""Models small enough to watch while they write: odd sizes, lively weights, double precision."""

from collections.abc import Callable

import torch
from parity.families import pair
from parity.tolerance import randomise
from torch import Tensor, nn

from regard import config as C
from regard.core import model as core
from regard.generation.limits import GenerationLimits
from regard.generation.session import DecodeSession
from regard.inference.model import Model

D, H, V, S = 12, 3, 19, 7  # S: tokens of a source
LONG = 300

POSITIONS = {
    "none": C.NoPosition(),
    "sinusoidal": C.SinusoidalPosition(),
    "learned": C.LearnedPosition(length=LONG, offset=2),
    "onehot": C.OneHotPosition(length=LONG),
    "rotary": C.RotaryPosition(),
    "alibi": C.AlibiPosition(),
    "t5": C.T5Bias(num_buckets=7, max_distance=9, bidirectional=False),
    "shaw": C.ShawPosition(max_distance=3),
    "relative": C.RelativeBias(max_distance=3),
}


def trunk(**rest) -> C.Trunk:
    said = dict(dim=D, depth=2, mask="causal", attention=C.Attention(heads=H, head_dim=4), dropout=C.NO_DROPOUT)
    return C.Trunk(**said | rest)


def model(position: C.Position = POSITIONS["rotary"], embed: C.TextEmbedding | None = None, **rest) -> Model:
    """A decoder that does not say one word for ever: its head is its own, and its weights are large."""
    width = D if position.kind == "onehot" else None
    c = C.Transformer(
        embed=embed or C.TextEmbedding(vocab=V), trunk=trunk(position=position, embed_dim=width, **rest),
        head=C.LMHead(tied=False),
    )  # fmt: skip
    return lively(c)


def translator(cross: str = "last") -> Model:
    c = C.Transformer(
        embed=C.TextEmbedding(vocab=V), trunk=trunk(cross=cross), encoder=C.Encoder(trunk=trunk(mask="full")),
        head=C.LMHead(tied=False),
    )  # fmt: skip
    return lively(c)


@torch.no_grad()
def lively(c: C.Transformer) -> Model:
    made = Model(c).double().eval()
    randomise(made)
    for weight in made.parameters():
        weight.mul_(2)
    return made


def prompts(*lengths: int) -> list[list[int]]:
    return [torch.randint(V, (length,)).tolist() for length in lengths]


def session(one: core.Transformer, texts: list[list[int]], **settings) -> DecodeSession:
    """Greedy unless said; `context`, `known`, `ends` and `source` go where they belong."""
    limits = GenerationLimits(**{name: settings.pop(name) for name in ("context", "known", "ends") if name in settings})
    sources = {name: settings.pop(name) for name in ("source", "source_real") if name in settings}
    return DecodeSession(one, texts, C.SamplingParams(**dict(temperature=0.0) | settings), limits, **sources)


def written(one: core.Transformer, texts: list[list[int]], **settings) -> list[list[int]]:
    """What each row says, in ids."""
    rows: list[list[int]] = [[] for _ in texts]
    for ids in session(one, texts, **settings):
        for row, id in zip(rows, ids, strict=True):
            row += [] if id is None else [id]
    return rows


def likeliest(logits: Tensor) -> int:
    return int(logits.argmax())


@torch.no_grad()
def slide(
    one: core.Transformer, text: list[int], length: int, end: int | None = None, pick: Callable = likeliest,
    **source: Tensor,
) -> list[int]:  # fmt: skip
    """The lecture's loop, word for word: everything is read again for every token."""
    generated = list(text)
    for _ in range(length):
        out = one(torch.tensor([generated]), **source)
        token = pick(out[0, -1])
        if token == end:
            break
        generated.append(token)
    return generated[len(text) :]


class Parrot(Model):
    """Says what it was told to, one id a step for each row, whatever it reads; after that, one id for ever."""

    def __init__(self, lines: list[list[int]], vocab: int, **embed) -> None:
        super().__init__(
            C.Transformer(embed=C.TextEmbedding(vocab=vocab, **embed), trunk=trunk(position=C.NoPosition()))
        )
        self.lines, self.place = lines, 0

    def forward(self, ids: Tensor, **_) -> Tensor:
        wanted = [line[min(self.place, len(line) - 1)] for line in self.lines]
        self.place += 1
        said = torch.nn.functional.one_hot(torch.tensor(wanted), self.c.embed.vocab)
        return 99.0 * said[:, None].expand(-1, ids.shape[1], -1)


def both(name: str, last: tuple[str, str], times: float) -> tuple[nn.Module, Model]:
    """Their model and ours in fp64, the last norm turned around: small models say for ever what they have just said."""
    theirs, core = (model.double() for model in pair(name))
    ours = Model(core.c).double().eval()
    ours.load_state_dict(core.state_dict())
    with torch.no_grad():
        for model, weight in zip((theirs, ours), last, strict=True):
            model.get_parameter(weight).mul_(times)
    return theirs, ours
