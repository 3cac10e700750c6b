"""A clean and a corrupted prompt for every shape of model: as long as each other, padded alike, other tokens."""

import torch
from lens.small_models import SHAPES

from regard import config as C
from regard.inference.model import Model
from regard.lens.prompt import read_prompt
from regard.text import train_tokenizer

TEXT = "the cat sat on the mat and the dog sat on the log. " * 20
PATCHABLE = [name for name in SHAPES if name != "towers"]


def pair(name, dtype=torch.float32):
    """The model, and two prompts of three rows; the encoder of an encoder-decoder reads another source as well."""
    shape = SHAPES[name]
    model = shape.model().to(dtype)
    torch.manual_seed(1)
    (first,) = shape.reads()
    prompts = []
    for x, change in ((first, lambda table: table), (first, other_tokens)):
        given = {name: change(table) for name, table in shape.named.items()}
        cast = {name: table.to(dtype) if table.is_floating_point() else table for name, table in given.items()}
        prompts.append(read_prompt(model, change(x).to(dtype) if x.is_floating_point() else change(x), **cast))
    return model, *prompts


def other_tokens(x):
    """Another image, or other ids where there is no padding."""
    return -x.flip(-1) if x.is_floating_point() else torch.where(x > 0, x % 17 + 2, x)


def writer():
    """A decoder of one block with a tokenizer of its own."""
    tokenizer = train_tokenizer(C.SubwordTokenizer(vocab=300), [TEXT])
    trunk = C.Trunk(dim=8, depth=1, mask="causal", attention=C.Attention(heads=2))
    model = Model(C.Transformer(embed=C.TextEmbedding(vocab=len(tokenizer)), trunk=trunk))
    model.tokenizer = tokenizer
    return model
