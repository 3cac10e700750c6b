"""Marian (Junczys-Dowmunt et al. 2018): the original encoder-decoder with sinusoidal positions, used by OPUS-MT.

Source and target share an embedding, or each has its own: then the table rows of the class with /apart apply.
"""

from typing import Any

from regard import config
from regard.hub import name_table
from regard.hub.families.canonical import max_length
from regard.hub.families.encoder_decoder_common import both_trunks, embedding_from_hf, trunk_from_hf, trunks_to_hf
from regard.hub.families.hf_config import HFConfig
from regard.hub.families.registry import Family, register_family


class MarianFamily(Family):
    def rows(self, architecture: str, c: config.Model) -> list[name_table.NameRow]:
        apart = isinstance(c, config.Transformer) and c.encoder is not None and c.encoder.embed is not None
        return super().rows(f"{architecture}/apart" if apart else architecture, c)


def to_hf(c: config.Transformer, context: int | None) -> dict[str, Any]:
    own = c.encoder.embed if c.encoder is not None else None
    read = own.vocab if isinstance(own, config.TextEmbedding) else c.embed.vocab
    return trunks_to_hf(c) | {
        "vocab_size": read,
        "decoder_vocab_size": c.embed.vocab,
        "share_encoder_decoder_embeddings": own is None,
        "max_position_embeddings": max_length(both_trunks(c)[1], context, 512),
        "tie_word_embeddings": not isinstance(c.head, config.LMHead) or c.head.tied,
    }


def from_hf(hf: HFConfig, head: config.Head) -> config.Transformer:
    words = hf.get_int("vocab_size")
    shared = hf.get_bool("share_encoder_decoder_embeddings", True)
    if shared:
        hf.require("tie_word_embeddings", True)
        hf.require("decoder_vocab_size", words)
    if hf.get_int("d_model") % 2:
        raise hf.error("d_model", "sines and cosines come in pairs; expected an even width")
    around: dict[str, Any] = {"position": config.SinusoidalPosition(layout="halves"), "norm_placement": "post"}
    own = None if shared else embedding_from_hf(hf)
    told = "decoder_vocab_size" if hf.get("decoder_vocab_size") else "vocab_size"
    return config.Transformer(
        embed=embedding_from_hf(hf, told),
        trunk=trunk_from_hf(hf, "decoder", **around),
        encoder=config.Encoder(trunk=trunk_from_hf(hf, "encoder", **around), embed=own),
        head=head,
    )


def lm_head(hf: HFConfig) -> config.Head:
    return config.LMHead(bias=True, tied=hf.get_bool("tie_word_embeddings", True))


register_family(MarianFamily("marian", "Marian", {"MarianMTModel": lm_head}, to_hf, from_hf, prefix="model."))
