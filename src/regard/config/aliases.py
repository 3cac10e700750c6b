"""Aliases: the names that settings have in `transformers`, nanoGPT, OpenAI's API and torch, and our name for each.

They are answered and not accepted: `train.lr: here it is train.optimizer.lr`. A name that is near in letters, as
did-you-mean finds it, is often another thing ("hidden_size" is no "hidden"), so these are looked up first.
"""

from collections.abc import Iterable

MODEL = {
    "model.dim": ("hidden_size", "d_model", "n_embd", "embed_dim", "embedding_dim", "model_dim", "emb_dim"),
    "model.depth": ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "layers", "encoder_layers"),
    "model.heads": ("num_attention_heads", "num_heads", "n_head", "n_heads", "nhead", "encoder_attention_heads"),
    "model.groups": ("num_key_value_heads", "n_kv_heads", "kv_heads", "num_kv_heads"),
    "model.hidden": ("intermediate_size", "ffn_dim", "dim_feedforward", "d_ff", "n_inner", "encoder_ffn_dim"),
    "model.vocab": ("vocab_size", "n_vocab"),
    "model.dropout": ("hidden_dropout_prob", "hidden_dropout", "resid_pdrop", "dropout_rate"),
    "model.trunk.dropout.attention": ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop"),
    "model.trunk.dropout.embed": ("embd_pdrop",),
    "model.trunk.mlp.activation": ("hidden_act", "activation_function", "act_fn"),
    "model.trunk.norm.eps": ("layer_norm_eps", "rms_norm_eps", "layer_norm_epsilon"),
    "model.trunk.attention.width": ("head_dim", "d_kv"),
    "model.trunk.attention.kernel": ("attn_implementation", "_attn_implementation"),
    "model.trunk.position.length": ("max_position_embeddings", "n_positions"),
    "model.trunk.position.base": ("rope_theta",),
    "model.preset": ("model_type", "architecture"),
}  # fmt: skip
TRAIN = {
    "train.optimizer.lr": ("lr", "learning_rate"),
    "train.optimizer.weight_decay": ("weight_decay", "wd"),
    "train.optimizer.betas": ("adam_beta1", "adam_beta2", "beta1", "beta2", "betas"),
    "train.optimizer.eps": ("adam_epsilon",),
    "train.optimizer.kind": ("optim",),
    "train.schedule.kind": ("lr_scheduler_type", "lr_scheduler", "scheduler"),
    "train.schedule.warmup": ("warmup", "warmup_steps", "num_warmup_steps", "warmup_iters"),
    "train.batch": ("batch_size", "per_device_train_batch_size", "train_batch_size", "micro_batch_size"),
    "train.accumulate": ("gradient_accumulation_steps", "grad_accum_steps", "accumulate_grad_batches"),
    "train.context": ("block_size", "max_length", "max_seq_length", "max_seq_len", "seq_len", "sequence_length",
                      "context_length", "model_max_length"),
    "train.steps": ("max_steps", "num_steps", "max_iters", "num_training_steps"),
    "train.epochs": ("num_train_epochs", "num_epochs", "max_epochs"),
    "train.clip": ("max_grad_norm", "grad_clip", "gradient_clip_val", "clip_grad_norm"),
    "train.precision": ("fp16", "bf16", "mixed_precision", "torch_dtype", "dtype", "amp"),
    "train.recompute": ("gradient_checkpointing", "activation_checkpointing"),
    "train.eval_every": ("eval_steps", "eval_interval", "val_check_interval"),
    "train.save_every": ("save_steps", "save_interval"),
    "train.keep": ("save_total_limit",),
    "train.best": ("load_best_model_at_end", "save_best"),
    "train.patience": ("early_stopping_patience",),
    "train.workers": ("num_workers", "dataloader_num_workers"),
    "train.compile": ("torch_compile",),
    "train.pack": ("packing",),
    "train.average": ("ema", "ema_decay"),
    "train.seed": ("random_state", "manual_seed"),
    "train.init_from": ("model_name_or_path", "pretrained", "resume_from"),
    "data.source": ("dataset", "dataset_name", "train_file", "data_path"),
    "data.validation": ("validation_file", "val_split", "eval_dataset", "test_size"),
}  # fmt: skip
GENERATION = {
    "new": ("max_new_tokens", "max_tokens", "max_completion_tokens", "num_predict"),
    "new, which counts new tokens alone": ("max_length",),
    "shortest": ("min_new_tokens", "min_tokens", "min_length"),
    "repetition": ("repetition_penalty", "repeat_penalty"),
    "frequency": ("frequency_penalty",),
    "presence": ("presence_penalty",),
    "no_repeat": ("no_repeat_ngram_size",),
    "typical": ("typical_p",),
    "bias": ("logit_bias", "sequence_bias"),
    "beams": ("num_beams", "beam_size", "beam_width"),
    "best": ("num_return_sequences", "n_best"),
    "stop": ("stop_strings", "stop_sequences", "stop_words"),
    "regex": ("guided_regex",),
    "schema": ("guided_json", "json_schema", "response_format"),
    "draft": ("assistant_model",),
    "lookup": ("prompt_lookup_num_tokens",),
    "temperature, of which 0 is always the likeliest token; otherwise a text is drawn": ("do_sample", "greedy"),
}  # fmt: skip


def flatten_aliases(table: dict[str, tuple[str, ...]]) -> dict[str, str]:
    return {theirs: ours for ours, names in table.items() for theirs in names}


SETTINGS, SAMPLING = flatten_aliases(MODEL) | flatten_aliases(TRAIN), flatten_aliases(GENERATION)


def suggest_word(name: str, known: Iterable[str], path: str = "") -> str:
    """The clause "here it is train.optimizer.lr" for another library's name in a table at `path` that knows these
    names; or nothing."""
    there = set(known)
    plain = name.lstrip("-").replace("-", "_").lower()
    ours = (SAMPLING if there & {"new", "--new"} else SETTINGS).get(plain)
    if ours is None:
        return ""
    leaf = ours.rpartition(".")[2]
    beside = f"{path}.{leaf}" if path else leaf
    return f"here it is {beside if leaf in there else ours}"
