"""Models that other libraries have a class for: a table of families, each a small file that enters itself."""

from regard.hub.families import (  # noqa: F401
    albert,
    bart,
    bert,
    clip,
    deit,
    distilbert,
    electra,
    gpt2,
    gpt_neo,
    imagegpt,
    llama,
    marian,
    mbart,
    mistral,
    openai,
    qwen,
    roberta,
    swin,
    t5,
    vit,
    whisper,
)
from regard.hub.families.settled import settled
from regard.hub.families.table import FAMILIES, Family, Heard, Kin, enter, family_of, heard, kin, reasons

__all__ = ["FAMILIES", "Family", "Heard", "Kin", "enter", "family_of", "heard", "kin", "reasons", "settled"]
