"""Marian (Junczys-Dowmunt et al. 2018): the original encoder-decoder with sinusoids, as OPUS-MT translates.

Source and target share a table of words, or each has its own: then the rows of the class with /apart are meant.
"""

from typing import Any

from regard import config
from regard.hub import names
from regard.hub.families.pairs import hear_embed, hear_side, say_sides, sides
from regard.hub.families.settled import length
from regard.hub.families.table import Family, enter
from regard.hub.families.theirs import Theirs


class Marian(Family):
    def rows(self, architecture: str, c: config.Model) -> list[names.Row]:
        apart = isinstance(c, config.Transformer) and c.encoder is not None and c.encoder.embed is not None
        return super().rows(f"{architecture}/apart" if apart else architecture, c)


def say(c: config.Transformer, context: int | None) -> dict[str, Any]:
    own = c.encoder.embed if c.encoder is not None else None
    read = own.vocab if isinstance(own, config.Embed) else c.embed.vocab
    return say_sides(c) | {
        "vocab_size": read,
        "decoder_vocab_size": c.embed.vocab,
        "share_encoder_decoder_embeddings": own is None,
        "max_position_embeddings": length(sides(c)[1], context, 512),
        "tie_word_embeddings": not isinstance(c.head, config.Vocabulary) or c.head.tied,
    }


def hear(theirs: Theirs, head: config.Head) -> config.Transformer:
    words = theirs.whole("vocab_size")
    shared = theirs.flag("share_encoder_decoder_embeddings", True)
    if shared:
        theirs.only("tie_word_embeddings", True)
        theirs.only("decoder_vocab_size", words)
    if theirs.whole("d_model") % 2:
        raise theirs.wrong("d_model", "sines and cosines come in pairs; expected an even width")
    around: dict[str, Any] = {"position": config.Sinusoidal(layout="halves"), "place": "post"}
    own = None if shared else hear_embed(theirs)
    told = "decoder_vocab_size" if theirs.get("decoder_vocab_size") else "vocab_size"
    return config.Transformer(
        embed=hear_embed(theirs, told),
        trunk=hear_side(theirs, "decoder", **around),
        encoder=config.Encoder(trunk=hear_side(theirs, "encoder", **around), embed=own),
        head=head,
    )


def vocabulary(theirs: Theirs) -> config.Head:
    return config.Vocabulary(bias=True, tied=theirs.flag("tie_word_embeddings", True))


enter(Marian("marian", "Marian", {"MarianMTModel": vocabulary}, say, hear, prefix="model."))
