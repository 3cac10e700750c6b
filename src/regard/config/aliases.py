"""Aliases of settings: their names in `transformers`, torch, peft, OpenAI's API and regard 0.1.0.

An alias is accepted where it means the same (`train.learning_rate=3e-4` sets `train.optimizer.lr`), and configs are
written with our name. A name of another meaning, or of another table, raises an error with ours: `n_ctx: here it is
train.context`. Aliases are looked up before did-you-mean, since similar spelling may be another setting ("hidden_size"
is not "hidden").
"""

import re
from collections.abc import Container, Iterable
from functools import cache

# Names of other libraries, by the config class in whose table they are accepted. Values may be paths from that table.
ALIASES: dict[str, dict[str, str]] = {
    "Transformer": {  # the short keys of [model] in a recipe
        "dim": "hidden_size d_model n_embd embedding_dim model_dim emb_dim",
        "depth": "num_hidden_layers num_layers n_layer n_layers encoder_layers",
        "heads": "num_attention_heads num_heads n_head n_heads nhead encoder_attention_heads",
        "kv_heads": "num_key_value_heads n_kv_heads num_kv_heads groups",
        "hidden": "intermediate_size ffn_dim dim_feedforward d_ff n_inner encoder_ffn_dim",
        "vocab": "vocab_size n_vocab",
        "dropout": "hidden_dropout_prob hidden_dropout dropout_rate",
        "kernel": "attn_implementation",
        "trunk.dropout.attention": "attention_probs_dropout_prob attention_dropout attn_pdrop",
        "trunk.dropout.embed": "embd_pdrop",
        "trunk.dropout.residual": "resid_pdrop",
        "trunk.mlp.activation": "hidden_act activation_function",
        "trunk.norm.eps": "layer_norm_eps rms_norm_eps layer_norm_epsilon",
        "trunk.attention.head_dim": "head_dim d_kv",
        "trunk.position.base": "rope_theta",
        "head.tied": "tie_word_embeddings",
    },
    "Trunk": {
        "dim": "hidden_size d_model n_embd",
        "depth": "num_hidden_layers num_layers n_layer n_layers",
        "attention.heads": "num_attention_heads num_heads n_head n_heads nhead",
        "attention.kv_heads": "num_key_value_heads n_kv_heads num_kv_heads",
        "attention.head_dim": "head_dim",
        "mlp.hidden": "intermediate_size ffn_dim dim_feedforward d_ff n_inner",
        "mlp.activation": "hidden_act activation_function",
        "norm.eps": "layer_norm_eps rms_norm_eps layer_norm_epsilon",
        "position.base": "rope_theta",
        "dropout.attention": "attention_probs_dropout_prob attention_dropout attn_pdrop",
        "dropout.embed": "embd_pdrop",
        "dropout.residual": "resid_pdrop",
    },
    "Attention": {
        "heads": "num_attention_heads num_heads n_head n_heads nhead",
        "kv_heads": "num_key_value_heads n_kv_heads num_kv_heads",
        "head_dim": "d_kv",
        "kernel": "attn_implementation",
    },
    "MLP": {"hidden": "intermediate_size ffn_dim dim_feedforward d_ff n_inner", "activation": "hidden_act"},
    "Norm": {"eps": "layer_norm_eps rms_norm_eps layer_norm_epsilon"},
    "Dropout": {"attention": "attention_dropout attn_pdrop", "embed": "embd_pdrop", "residual": "resid_pdrop"},
    "RotaryPosition": {
        "base": "rope_theta theta", "fraction": "partial_rotary_factor",
        "original_length": "original_max_position_embeddings",
    },
    "LearnedPosition": {"length": "max_position_embeddings n_positions"},
    "TextEmbedding": {
        "vocab": "vocab_size n_vocab", "segments": "type_vocab_size", "pad_id": "pad_token_id",
        "eos_id": "eos_token_id",
    },
    "PatchEmbedding": {"channels": "num_channels"},
    "ConvEmbedding": {"channels": "num_channels"},
    "VideoEmbedding": {"channels": "num_channels", "frames": "num_frames"},
    "AudioEmbedding": {"sample_rate": "sampling_rate"},
    "MelSpectrogram": {"n_mels": "num_mel_bins"},
    "LMHead": {"tied": "tie_word_embeddings", "vocab": "vocab_size"},
    "PoolingHead": {"pooling": "pooling_mode", "out": "num_labels"},
    "TokenHead": {"out": "num_labels"},
    "MaskedLM": {"rate": "mlm_probability"},
    "SpanCorruption": {"rate": "noise_density", "mean_span_length": "mean_noise_span_length"},
    "TextInfilling": {"rate": "noise_density"},
    "Translation": {"label_smoothing": "label_smoothing_factor"},
    "Captioning": {"label_smoothing": "label_smoothing_factor"},
    "QuestionAnswering": {"max_answer_tokens": "max_answer_length"},
    "Data": {"source": "train_file data_files", "validation": "validation_file", "on_bad_record": "on_bad_lines"},
    "Train": {
        "optimizer.lr": "lr learning_rate",
        "optimizer.weight_decay": "weight_decay wd",
        "optimizer.betas": "betas",
        "optimizer.eps": "adam_epsilon",
        "optimizer.kind": "optim",
        "schedule.kind": "lr_scheduler_type lr_scheduler scheduler",
        "schedule.warmup": "warmup warmup_steps num_warmup_steps warmup_iters",
        "batch_size": "per_device_train_batch_size train_batch_size micro_batch_size",
        "batch_tokens": "max_tokens_per_batch",
        "gradient_accumulation": "gradient_accumulation_steps grad_accum_steps accumulate_grad_batches",
        "context": "block_size max_seq_length max_seq_len seq_len seq_length sequence_length context_length",
        "steps": "max_steps num_steps max_iters num_training_steps",
        "epochs": "num_train_epochs num_epochs max_epochs",
        "max_grad_norm": "grad_clip gradient_clip_val clip_grad_norm",
        "activation_checkpointing": "gradient_checkpointing",
        "eval_every": "eval_steps eval_interval",
        "save_every": "save_steps save_interval",
        "keep_checkpoints": "save_total_limit",
        "keep_best": "save_best",
        "patience": "early_stopping_patience",
        "workers": "num_workers dataloader_num_workers",
        "compile": "torch_compile",
        "pack": "packing",
        "ema_decay": "ema",
        "carry_state": "stateful",
        "seed": "random_state manual_seed",
        "init_from": "model_name_or_path",
    },
    "LoRA": {"rank": "r lora_rank", "alpha": "lora_alpha", "dropout": "lora_dropout", "targets": "target_modules"},
    "SamplingParams": {
        "max_new_tokens": "max_tokens max_completion_tokens num_predict",
        "min_new_tokens": "min_tokens",
        "repetition_penalty": "repeat_penalty",
        "logit_bias": "sequence_bias",
        "stop": "stop_strings stop_sequences stop_words",
        "regex": "guided_regex",
        "json_schema": "guided_json",
    },
    "BeamSearchParams": {
        "max_new_tokens": "max_tokens max_completion_tokens num_predict",
        "min_new_tokens": "min_tokens",
        "num_beams": "beam_size beam_width",
        "num_return_sequences": "n_best best_of",
        "repetition_penalty": "repeat_penalty",
        "logit_bias": "sequence_bias",
    },
    "Speculation": {  # keywords of generate besides the settings of a class
        "draft_model": "assistant_model",
        "prompt_lookup": "prompt_lookup_num_tokens",
        "num_speculative_tokens": "num_assistant_tokens",
    },
}  # fmt: skip

# Keys of regard 0.1.0 (folders of format 1), by class: old=new.
RENAMED: dict[str, str] = {
    "Adafactor": "decay=decay_rate clip=clip_threshold",
    "Attention": "groups=kv_heads width=head_dim value_width=value_head_dim maps=projections",
    "AudioAugment": "times=time_masks bands=freq_masks hidden=mask_fraction",
    "AudioEmbedding": "rate=sample_rate seconds=max_seconds long=too_long way=features normal=normalize vary=augment",
    "BeamSearchParams": (
        "new=max_new_tokens shortest=min_new_tokens beams=num_beams best=num_return_sequences "
        "repetition=repetition_penalty no_repeat=no_repeat_ngram_size bias=logit_bias"
    ),
    "Captioning": "smoothing=label_smoothing",
    "CharTokenizer": "fallback=byte_fallback",
    "ChunkEmbedding": "size=chunk_size pool=pooling",
    "Classification": "text=input pair=input_pair",
    "Contrastive": "phrases=phrase_list",
    "ConvEmbedding": "image=image_size white=max_value blocks=blocks_per_stage",
    "ConvMixer": "size=kernel_size",
    "ConvSpectrogram": "window=win_length hop=hop_length mels=n_mels",
    "Data": "column=text_column columns=column_names documents=blank_line_ends_document bad=on_bad_record",
    "DenseMixer": "length=max_length",
    "Dropout": "sublayer=residual",
    "DualEncoder": "scale=initial_scale limit=max_scale",
    "ForecastHead": "line=linear_skip",
    "Forecasting": "date=date_column gaps=fill_gaps part=eval_split",
    "GraphDistanceBias": "radius=max_distance",
    "GraphEmbedding": (
        "tags=num_tags waves=laplacian_pe walks=random_walk_pe degrees=max_degree nodes=max_nodes normal=normalize "
        "hide=node_dropout"
    ),
    "ImageAugment": "turn=rotate changes=rand_augment strength=magnitude",
    "ImageResize": "fit=mode whole=size_before_crop",
    "LMHead": "size=vocab",
    "LearnedPosition": "width=dim",
    "LoRA": "whole=modules_to_save",
    "LogitBias": "id=token_id add=bias",
    "MaskedLM": "text=input mask=mask_replace_prob random=random_replace_prob",
    "MelSpectrogram": (
        "window=win_length hop=hop_length mels=n_mels low=f_min high=f_max scale=mel_scale frames=frames_per_token "
        "bands=bands_per_token"
    ),
    "MultiRateFrames": "size=frame_size steps=strides",
    "MultimodalEmbedding": "seen=prefix",
    "Muon": "rounds=newton_schulz_steps",
    "NextPixel": "text=input",
    "NextToken": "text=input",
    "NodeClassification": "part=eval_split",
    "PatchEmbedding": "size=patch_size image=image_size cls=cls_tokens white=max_value frame=resize",
    "PixelEmbedding": "colours=colors white=max_value frame=resize",
    "PoolingHead": "place=pooling voices=classifiers",
    "PrefixLM": "text=input begin=decoder_start",
    "PretrainingHead": "vocabulary=lm pooled=pooling",
    "QuestionAnswering": "start=answer_start stride=doc_stride longest=max_answer_tokens",
    "RawFrames": "size=frame_size",
    "Recipe": "text=tokenizer",
    "RecurrentStack": "width=embed_dim size=kernel_size",
    "Regression": "text=input pair=input_pair",
    "RelativeBias": "radius=max_distance inside=scaled",
    "Report": "new=max_new_tokens",
    "RotaryPosition": (
        "part=fraction length=original_length fast=beta_fast slow=beta_slow low=low_freq_factor high=high_freq_factor "
        "factors=freq_factors stretch=attention_factor"
    ),
    "SamplingParams": (
        "new=max_new_tokens shortest=min_new_tokens typical=typical_p repetition=repetition_penalty "
        "frequency=frequency_penalty presence=presence_penalty no_repeat=no_repeat_ngram_size bias=logit_bias "
        "schema=json_schema"
    ),
    "SeriesEmbedding": (
        "patch=patch_length mix=channel_mixing normal=normalize names=channel_names center=mean scale=std"
    ),
    "ShawPosition": "radius=max_distance",
    "SinusoidalPosition": "width=dim",
    "SpanCorruption": "text=input mean=mean_span_length begin=decoder_start",
    "Speculation": "draft=draft_model lookup=prompt_lookup guess=num_speculative_tokens",
    "StateSpaceMixer": "states=state_dim",
    "StepGuard": "spike=spike_sigmas limit=max_skipped_steps",
    "SubwordTokenizer": "lower=lowercase",
    "T5Bias": "buckets=num_buckets distance=max_distance both=bidirectional",
    "TextEmbedding": "pad=pad_id end=eos_id highest=eos_is_max_id",
    "TextInfilling": "text=input mean=mean_span_length begin=decoder_start",
    "TextToImage": "phrases=phrase_list words=text_loss_weight",
    "Train": (
        "batch=batch_size tokens=batch_tokens carry=carry_state padding=padding_side chunk=loss_chunk "
        "accumulate=gradient_accumulation clip=max_grad_norm average=ema_decay vectors=word_vectors "
        "recompute=activation_checkpointing keep=keep_checkpoints best=keep_best board=tensorboard"
    ),
    "Translation": "smoothing=label_smoothing begin=decoder_start",
    "Trunk": "width=embed_dim place=norm_placement across=cross_attention shared=share_layers",
    "VideoEmbedding": "image=image_size tube=tubelet_size size=patch_size",
    "WSDSchedule": "decay=decay_fraction final=min_lr_ratio",
    "WarmupSchedule": "final=min_lr_ratio",
    "WordTokenizer": "lower=lowercase fallback=byte_fallback",
}  # fmt: skip

# Values of regard 0.1.0 by setting; read so only where the setting accepts the new value and not the old one.
RENAMED_VALUES: dict[str, dict[str, str]] = {
    "kind": {
        "next": "next_token", "masked": "masked_lm", "translate": "translation",
        "tag": "token_classification",
        "spans": "span_corruption", "infill": "text_infilling", "prefix": "prefix_lm",
        "classify": "classification", "regress": "regression", "answer": "question_answering",
        "contrast": "contrastive", "caption": "captioning", "draw": "text_to_image",
        "nodes": "node_classification", "pixels": "next_pixel", "forecast": "forecasting",
        "vocabulary": "lm", "pooled": "pooling", "both": "pretraining", "each": "token", "film": "video",
        "sound": "audio", "mixed": "multimodal", "convolutions": "conv", "masked_pixels": "masked_conv",
        "towers": "dual_encoder", "buckets": "t5", "near": "conv_like", "spatial": "graph_distance",
        "fc": "dense", "rnn": "recurrent", "graph": "graph_conv", "convolved": "conv", "frames": "raw",
        "rates": "multi_rate",
    },
    "too_long": {"refuse": "error", "cut": "truncate"},
    "mode": {"cut": "crop", "squeeze": "stretch", "shorter": "shortest_edge"},
    "values": {"colours": "colors"},
    "fill_gaps": {"refuse": "error"},
    "on_bad_record": {"stop": "error"},
    "pooling": {"end": "eos"},
    "decoder_start": {"start": "bos", "end": "eos"},
    "init": {"quiet": "zero_init"},
    "mask": {"everything": "full", "landmarks": "global_tokens", "cells": "window2d"},
    "kernel": {"cells": "window2d", "tiled": "tiled_flash", "steps": "native_decode"},
}  # fmt: skip

CURRENT: dict[str, Container[str]] = {}  # current names of masks and kernels, including registered ones

# The table of a class in a recipe, for error messages.
PLACES = {
    "Transformer": "model", "Trunk": "model.trunk", "Attention": "model.trunk.attention", "Train": "train",
    "LoRA": "train.lora", "TextEmbedding": "model.embed", "Data": "data", "LearnedPosition": "model.trunk.position",
}  # fmt: skip
# Names that are refused, since they mean something else than the setting for the same purpose.
ANSWERS = {
    "n_ctx": "train.context", "max_length": "train.context", "model_max_length": "train.context",
    "adam_beta1": "train.optimizer.betas", "adam_beta2": "train.optimizer.betas", "beta1": "train.optimizer.betas",
    "beta2": "train.optimizer.betas", "fp16": "train.precision", "bf16": "train.precision",
    "mixed_precision": "train.precision", "torch_dtype": "train.precision", "dtype": "train.precision",
    "amp": "train.precision", "load_best_model_at_end": "train.keep_best", "val_check_interval": "train.eval_every",
    "pretrained": "train.init_from", "resume_from": "train.init_from", "dataset": "data.source",
    "dataset_name": "data.source", "data_path": "data.source", "val_split": "data.validation",
    "eval_dataset": "data.validation", "test_size": "data.validation", "model_type": "model.preset",
    "architecture": "model.preset", "sliding_window": "model.mask, as in causal & window(n - 1)",
    "norm_first": "model.trunk.norm_placement, which is pre or post", "rope_scaling": "model.trunk.position.scaling",
    "act_fn": "model.trunk.mlp.activation", "layers": "model.depth", "_attn_implementation": "model.kernel",
}  # fmt: skip
SAMPLING_ANSWERS = {
    "max_length": "max_new_tokens, which counts new tokens alone",
    "min_length": "min_new_tokens, which counts new tokens alone",
    "response_format": "json_schema, which takes the schema itself",
    **dict.fromkeys(
        ("do_sample", "greedy"), "temperature, of which 0 is always the likeliest token; otherwise a text is drawn"
    ),
}


@cache
def class_aliases(name: str) -> dict[str, str]:
    """All aliases of the settings of a config class, and our names."""
    elsewhere = {theirs: ours for ours, names in ALIASES.get(name, {}).items() for theirs in names.split()}
    return elsewhere | dict(pair.split("=") for pair in RENAMED.get(name, "").split())


def canonical_value(setting: str, value: str, allowed: Iterable[str] | None = None) -> str:
    """The current name of a value: of each word in a mask or kernel, of a whole choice, if it is allowed."""
    table = RENAMED_VALUES.get(setting, {})
    if setting in CURRENT:
        return "".join(
            word if word in CURRENT[setting] else table.get(word, word) for word in re.split(r"(\w+)", value)
        )
    new = table.get(value, value)
    known = {new} if allowed is None else set(allowed)
    return new if new in known and (allowed is None or value not in known) else value


@cache
def settings_elsewhere() -> dict[str, str]:
    """Names of other libraries, and the recipe path of our setting."""
    found = {
        theirs: f"{place}.{ours}"
        for cls, place in reversed(PLACES.items())
        for ours, names in ALIASES[cls].items()
        for theirs in names.split()
    }
    return found | ANSWERS


@cache
def generation_aliases() -> dict[str, str]:
    """Aliases of all keywords of `generate`, and our names."""
    return class_aliases("BeamSearchParams") | class_aliases("SamplingParams") | class_aliases("Speculation")


def suggest_word(name: str, known: Iterable[str], path: str = "") -> str:
    """The clause "here it is train.optimizer.lr" for another library's name in a table at `path` with these known
    settings; or ""."""
    there = set(known)
    plain = name.lstrip("-").replace("-", "_").lower()
    sampling = there & {"max_new_tokens", "--max-new-tokens"}
    ours = (generation_aliases() | SAMPLING_ANSWERS if sampling else settings_elsewhere()).get(plain)
    if ours is None:
        return ""
    leaf = ours.rpartition(".")[2]
    beside = f"{path}.{leaf}" if path else leaf
    return f"here it is {beside if leaf in there else ours}"
