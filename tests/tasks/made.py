"""Tokenizers, records and small models that the tests of objectives are made of."""

from functools import cache

import torch
from core.made import trunk
from parity.near import randomise

from regard import config as C
from regard import text
from regard.core.model import Transformer
from regard.tasks import Rows, build, equip

PROSE = """The cat sat on the mat. A dog met an owl, and neither said why!
Thank you for inviting me to your party last week.
Unaffordable naïve cafés in 1992; don't ask, won't tell. It was the cat that sat there.
Ada Lovelace wrote the first programme, and Charles Babbage the second.
""" * 7
KINDS = {
    "char": C.Characters(), "byte": C.Bytes(), "word": C.Words(vocab=400), "bpe": C.Pieces(kind="bpe", vocab=330),
    "wordpiece": C.Pieces(kind="wordpiece", vocab=640), "unigram": C.Pieces(kind="unigram", vocab=400),
}  # fmt: skip


@cache
def tokenizer(kind="wordpiece"):
    return text.train(KINDS[kind], [PROSE])


def chance(seed=0):
    return torch.Generator().manual_seed(seed)


def task(c, kind="wordpiece", model=None, length=31, side="right", multiple=1, **more):
    """An objective and the tokenizer that it is for."""
    known = equip(c, tokenizer(kind))
    return build(c, known, model, rows=Rows(length, side, multiple), **more), known


def model(head=None, vocab=640, segments=2, encoder=False, seed=0, **said):
    """A small model with noise on every weight."""
    torch.manual_seed(seed)
    two = {"mask": "causal", "cross": "last"} if encoder else {}
    c = C.Transformer(
        embed=C.Embed(vocab=vocab, segments=0 if encoder else segments), head=head or C.Vocabulary(tied=False),
        trunk=trunk(position=C.Sinusoidal(), **(two | said)),
        encoder=C.Encoder(trunk=trunk(position=C.Sinusoidal())) if encoder else None,
    )  # fmt: skip
    made = Transformer(c).eval()
    randomise(made)
    return made


def shown(known, ids):
    """Ids as a person reads them."""
    return " ".join(known.token(id).replace("Ġ", "") for id in ids)
