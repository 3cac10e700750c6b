"""Tokenizers, records and small models that the tests of objectives are made of."""

from functools import cache

import torch
from core.builders import trunk
from parity.tolerance import randomise

from regard import config as C
from regard import text
from regard.core.model import Transformer
from regard.tasks.collate import RowPadding
from regard.tasks.task import add_task_tokens, build_task

PROSE = (
    """The cat sat on the mat. A dog met an owl, and neither said why!
Thank you for inviting me to your party last week.
Unaffordable naïve cafés in 1992; don't ask, won't tell. It was the cat that sat there.
Ada Lovelace wrote the first programme, and Charles Babbage the second.
"""
    * 7
)
KINDS = {
    "char": C.CharTokenizer(),
    "byte": C.ByteTokenizer(),
    "word": C.WordTokenizer(vocab=400),
    "bpe": C.SubwordTokenizer(kind="bpe", vocab=330),
    "wordpiece": C.SubwordTokenizer(kind="wordpiece", vocab=640),
    "unigram": C.SubwordTokenizer(kind="unigram", vocab=400),
}


@cache
def tokenizer(kind="wordpiece"):
    return text.train_tokenizer(KINDS[kind], [PROSE])


def chance(seed=0):
    return torch.Generator().manual_seed(seed)


def task(c, kind="wordpiece", model=None, length=31, side="right", multiple=1, **more):
    """An objective and the tokenizer that it is for."""
    known = add_task_tokens(c, tokenizer(kind))
    return build_task(c, known, model, rows=RowPadding(length, side, multiple), **more), known


def model(head=None, vocab=640, segments=2, encoder=False, seed=0, **said):
    """A small model with noise on every weight."""
    torch.manual_seed(seed)
    two = {"mask": "causal", "cross": "last"} if encoder else {}
    c = C.Transformer(
        embed=C.TextEmbedding(vocab=vocab, segments=0 if encoder else segments), head=head or C.LMHead(tied=False),
        trunk=trunk(position=C.SinusoidalPosition(), **(two | said)),
        encoder=C.Encoder(trunk=trunk(position=C.SinusoidalPosition())) if encoder else None,
    )  # fmt: skip
    made = Transformer(c).eval()
    randomise(made)
    return made


def shown(known, ids):
    """Ids as a person reads them."""
    return " ".join(known.token(id).replace("Ġ", "") for id in ids)
