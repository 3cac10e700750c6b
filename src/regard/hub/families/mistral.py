"""Mistral (Jiang et al. 2023): Llama without biases whose layers see a window of the last tokens, or all of them."""

from typing import Any

from regard import config
from regard.hub.families.decoders import LABEL, SPAN, TAGS, classes, looks, windows
from regard.hub.families.llama import common, relative
from regard.hub.families.settled import of_blocks
from regard.hub.families.table import Family, enter
from regard.hub.families.theirs import Theirs

WINDOW = 4096


def say(c: config.Transformer, context: int | None) -> dict[str, Any]:
    return common(c, context) | {"sliding_window": windows(of_blocks(c))[0]}


def hear(theirs: Theirs, head: config.Head) -> config.Transformer:
    theirs.only("layer_types", None)
    # null is no window, and nothing said is the usual one
    everything = "sliding_window" in theirs.said and theirs.get("sliding_window") is None
    return relative(theirs, head, looks(None if everything else theirs.whole("sliding_window", WINDOW)))


HEADS = classes("Mistral", False, LABEL, TAGS, SPAN)
enter(Family("mistral", "Mistral", HEADS, say, hear, prefix="model.", alone=("MistralModel",), map="llama"))
