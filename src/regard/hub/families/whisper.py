"""Whisper (Radford et al. 2022): an encoder reads a sound, a decoder tells it as text; pre-norm on both sides."""

from typing import Any

from regard import config
from regard.hub.families.pairs import hear_side, say_sides, sides
from regard.hub.families.settled import length
from regard.hub.families.table import Family, enter
from regard.hub.families.theirs import Theirs, bare

RATE = 16_000  # their files of settings never say another
HEARD = config.Convolved()


def say(c: config.Transformer, context: int | None) -> dict[str, Any]:
    reads, writes = sides(c)
    heard = c.encoder.embed if c.encoder is not None else None
    if not isinstance(heard, config.Sound):
        raise ValueError("encoder.embed is no sound, and Whisper reads nothing else")
    return say_sides(c) | {
        "num_mel_bins": getattr(heard.way, "mels", HEARD.mels),
        "max_source_positions": length(reads, None, heard.count),
        "max_target_positions": length(writes, context, 448),
        "tie_word_embeddings": not isinstance(c.head, config.Vocabulary) or c.head.tied,
    }


def hear(theirs: Theirs, head: config.Head) -> config.Transformer:
    long, short = theirs.whole("max_source_positions", 1500), theirs.whole("max_target_positions", 448)
    bias = ("q", "v", "out")
    return config.Transformer(
        embed=config.Embed(vocab=theirs.whole("vocab_size")),
        trunk=hear_side(theirs, "decoder", position=config.Learned(length=short), bias=bias),
        encoder=config.Encoder(
            trunk=hear_side(theirs, "encoder", position=config.Learned(length=long), bias=bias),
            embed=sound(theirs.whole("num_mel_bins", 80), long),
        ),
        head=head,
        init="bert",
    )


def sound(mels: int, tokens: int) -> config.Sound:
    """As long as there are places: two windows become a token."""
    seconds = tokens * 2 * HEARD.hop / RATE
    return config.Sound(rate=RATE, seconds=seconds, way=config.Convolved(mels=mels), normal="peak")


def vocabulary(theirs: Theirs) -> config.Head:
    return config.Vocabulary(tied=theirs.flag("tie_word_embeddings", True))


enter(Family("whisper", "Whisper", {"WhisperForConditionalGeneration": vocabulary, "WhisperModel": bare}, say, hear,
             length="max_target_positions", prefix="model.", alone=("WhisperModel",)))  # fmt: skip
