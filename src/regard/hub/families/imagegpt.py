"""ImageGPT (Chen et al. 2020): pixels as ids of a palette, told one after another; causal, pre-norm RMS.

The palette stands beside the model, in preprocessor_config.json, and so does the shape of the images: config.json says
how many pixels they have, which is taken for the squarest grid of so many.
"""

import math
from typing import Any

from regard import config
from regard.hub.families.gpts import hear_eps, hear_gpt, hear_thinking, say_gpt, say_thinking
from regard.hub.families.table import Family, enter
from regard.hub.families.theirs import Theirs, bare


def say(c: config.Transformer, context: int | None) -> dict[str, Any]:
    assert isinstance(c.embed, config.Pixels)
    return {**say_gpt(c, c.embed.count), **say_thinking(c), "tie_word_embeddings": False}


def hear(theirs: Theirs, head: config.Head) -> config.Transformer:
    theirs = theirs.usually(n_embd=512, n_positions=1024, n_layer=24, n_head=8)
    norm = config.Norm(kind="rms", eps=hear_eps(theirs))
    trunk = hear_gpt(theirs, hear_thinking(theirs, "quick_gelu"), norm=norm)
    grid = squarest(theirs.whole("n_positions"))
    embed = config.Pixels(palette=colours(theirs), grid=grid, frame=config.Frame(fit="squeeze"))
    return config.Transformer(embed=embed, trunk=trunk, head=head, init="gpt2")


def colours(theirs: Theirs) -> int:
    """One word of theirs is the start token."""
    words = theirs.whole("vocab_size", 513)
    if words < 2:
        raise theirs.wrong("vocab_size", "expected at least one colour and the start token")
    return words - 1


def squarest(pixels: int) -> tuple[int, int]:
    """Rows and columns that are as near to each other as so many pixels allow."""
    rows = next(rows for rows in range(math.isqrt(pixels), 0, -1) if pixels % rows == 0)
    return rows, pixels // rows


def vocabulary(theirs: Theirs) -> config.Head:
    """Logits over the colours; the start token is never said."""
    theirs.only("tie_word_embeddings", False)
    return config.Vocabulary(tied=False, size=colours(theirs))


enter(Family("imagegpt", "ImageGPT", {"ImageGPTForCausalImageModeling": vocabulary, "ImageGPTModel": bare}, say, hear,
             "n_positions", "transformer.", alone=("ImageGPTModel",), front=config.Pixels))  # fmt: skip
