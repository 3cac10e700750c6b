"""Encoder-decoders: T5, BART, mBART, Marian and Whisper. Both sides differ wherever the family lets them."""

import torch
import transformers as hf
from hub.published import LENGTH, D, F, V
from torch import nn

ENDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
LAYERS = dict(encoder_layers=3, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=6,
              encoder_ffn_dim=F, decoder_ffn_dim=44, d_model=D)  # fmt: skip
MELS, SOUND = 7, 19  # bands of a spectrogram, tokens of a sound


def t5(cls=hf.T5ForConditionalGeneration, own=False, **said):
    """With `own` the head has its own table, as published 1.1 has it: a fresh model of transformers 5 never does."""
    sizes = dict(vocab_size=V, d_model=D, d_kv=10, d_ff=F, num_layers=3, num_decoder_layers=2, num_heads=4,
                 relative_attention_num_buckets=12, relative_attention_max_distance=20,
                 decoder_start_token_id=0)  # fmt: skip
    model = cls(hf.T5Config(**ENDS | sizes | said))
    if own:
        model.lm_head.weight = nn.Parameter(D**-0.5 * torch.randn(V, D))
    return model


def bart(cls=hf.BartForConditionalGeneration, config=hf.BartConfig, **said):
    sizes = dict(vocab_size=V, max_position_embeddings=LENGTH, decoder_start_token_id=2, forced_eos_token_id=None)
    return cls(config(**ENDS | LAYERS | sizes | said))


def mbart(cls=hf.MBartForConditionalGeneration, **said):
    return bart(cls, hf.MBartConfig, **said)


def marian(**said):
    sizes = dict(vocab_size=V, max_position_embeddings=LENGTH, eos_token_id=0, bos_token_id=None, pad_token_id=V - 1,
                 decoder_start_token_id=V - 1)  # fmt: skip
    return hf.MarianMTModel(hf.MarianConfig(**LAYERS | sizes | said))


def whisper(cls=hf.WhisperForConditionalGeneration, **said):
    sizes = dict(vocab_size=V, num_mel_bins=MELS, max_source_positions=SOUND, max_target_positions=LENGTH,
                 decoder_start_token_id=3, begin_suppress_tokens=None)  # fmt: skip
    return cls(hf.WhisperConfig(**ENDS | LAYERS | sizes | said))


GATED = dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)
APART = dict(share_encoder_decoder_embeddings=False)
CASES = {
    "t5": t5,
    "t5 gated, a head of its own": lambda: t5(own=True, **GATED),
    "t5 gated silu, more buckets": lambda: t5(feed_forward_proj="gated-silu", relative_attention_num_buckets=34,
                                              relative_attention_max_distance=50, layer_norm_epsilon=1e-4),
    "t5 gelu, one layer each": lambda: t5(feed_forward_proj="gelu", num_layers=1, num_decoder_layers=1, num_heads=5),
    "t5 body": lambda: t5(hf.T5Model),
    "t5 encoder": lambda: t5(hf.T5EncoderModel, feed_forward_proj="gated-gelu"),
    "bart": bart,
    "bart scaled, relu": lambda: bart(scale_embedding=True, activation_function="relu"),
    "bart tanh, deeper decoder": lambda: bart(activation_function="gelu_new", encoder_layers=1, decoder_layers=4),
    "bart body": lambda: bart(hf.BartModel),
    "bart classes": lambda: bart(hf.BartForSequenceClassification, num_labels=5),
    "bart answer": lambda: bart(hf.BartForQuestionAnswering, scale_embedding=True),
    "mbart": mbart,
    "mbart scaled, relu": lambda: mbart(scale_embedding=True, activation_function="relu"),
    "mbart body": lambda: mbart(hf.MBartModel, encoder_layers=1),
    "mbart classes": lambda: mbart(hf.MBartForSequenceClassification),
    "bart usual classes": lambda: bart(hf.BartForSequenceClassification, activation_function="relu"),
    "mbart answer": lambda: mbart(hf.MBartForQuestionAnswering),
    "marian": lambda: marian(scale_embedding=True, activation_function="swish"),
    "marian relu, unscaled": lambda: marian(activation_function="relu", encoder_layers=1),
    "marian apart": lambda: marian(**APART),
    "marian apart, two vocabularies": lambda: marian(decoder_vocab_size=61, decoder_start_token_id=7, **APART),
    "marian apart, a head of its own": lambda: marian(tie_word_embeddings=False, scale_embedding=True, **APART),
    "whisper": whisper,
    "whisper untied": lambda: whisper(tie_word_embeddings=False, scale_embedding=True),
    "whisper relu, more bands": lambda: whisper(activation_function="relu", num_mel_bins=11, encoder_layers=1),
    "whisper body": lambda: whisper(hf.WhisperModel, max_source_positions=5, activation_function="quick_gelu"),
}  # fmt: skip
SILENT = ("body", "encoder", "classes", "answer")
SPEAK = {name for name in CASES if not name.endswith(SILENT)}  # those that say what comes next
