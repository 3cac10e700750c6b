"""Whisper (Radford et al. 2022): an audio encoder and a text decoder; pre-norm on both sides."""

from typing import Any

from regard import config
from regard.hub.families.canonical import max_length
from regard.hub.families.encoder_decoder_common import both_trunks, trunk_from_hf, trunks_to_hf
from regard.hub.families.hf_config import HFConfig, body_without_head
from regard.hub.families.registry import Family, register_family

RATE = 16_000  # the configs have no key for it
WHISPER_AUDIO = config.ConvSpectrogram()


def to_hf(c: config.Transformer, context: int | None) -> dict[str, Any]:
    reads, writes = both_trunks(c)
    heard = c.encoder.embed if c.encoder is not None else None
    if not isinstance(heard, config.AudioEmbedding):
        raise ValueError("encoder.embed is no audio front end, and Whisper needs one")
    return trunks_to_hf(c) | {
        "num_mel_bins": getattr(heard.features, "n_mels", WHISPER_AUDIO.n_mels),
        "max_source_positions": max_length(reads, None, heard.count),
        "max_target_positions": max_length(writes, context, 448),
        "tie_word_embeddings": not isinstance(c.head, config.LMHead) or c.head.tied,
    }


def from_hf(hf: HFConfig, head: config.Head) -> config.Transformer:
    long, short = hf.get_int("max_source_positions", 1500), hf.get_int("max_target_positions", 448)
    bias = ("q", "v", "out")
    return config.Transformer(
        embed=config.TextEmbedding(vocab=hf.get_int("vocab_size")),
        trunk=trunk_from_hf(hf, "decoder", position=config.LearnedPosition(length=short), bias=bias),
        encoder=config.Encoder(
            trunk=trunk_from_hf(hf, "encoder", position=config.LearnedPosition(length=long), bias=bias),
            embed=audio_from_hf(hf.get_int("num_mel_bins", 80), long),
        ),
        head=head,
        init="bert",
    )


def audio_from_hf(mels: int, tokens: int) -> config.AudioEmbedding:
    """The audio front end for this many positions: two frames become one token."""
    seconds = tokens * 2 * WHISPER_AUDIO.hop_length / RATE
    return config.AudioEmbedding(
        sample_rate=RATE, max_seconds=seconds, features=config.ConvSpectrogram(n_mels=mels), normalize="peak"
    )


def lm_head(hf: HFConfig) -> config.Head:
    return config.LMHead(tied=hf.get_bool("tie_word_embeddings", True))


register_family(
    Family(
        "whisper",
        "Whisper",
        {"WhisperForConditionalGeneration": lm_head, "WhisperModel": body_without_head},
        to_hf,
        from_hf,
        length="max_target_positions",
        prefix="model.",
        body_prefix=("WhisperModel",),
    )
)
