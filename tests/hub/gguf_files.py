"""GGUF files written by the package `gguf` itself from small models of `transformers`, as llama.cpp converts them."""

from pathlib import Path

import numpy as np
import torch
from parity.tolerance import randomise
from torch import nn

# A tensor of theirs, and what llama.cpp calls it.
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "model.layers.": "blk.",
}  # fmt: skip


def made(case) -> nn.Module:
    torch.manual_seed(7)
    model = case()
    randomise(model)
    return model.eval()


def called(name: str) -> str:
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def neighbours(x: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k with the two channels that turn together beside each other, as llama.cpp turns them."""
    return x.reshape(heads, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def tensors(model: nn.Module) -> dict[str, np.ndarray]:
    c, found = model.config, {}
    for name, tensor in model.state_dict().items():
        x = tensor.float().numpy()
        if c.model_type == "llama" and (".q_proj" in name or ".k_proj" in name):
            x = neighbours(x, c.num_attention_heads if ".q_proj" in name else c.num_key_value_heads)
        if not (name == "lm_head.weight" and c.tie_word_embeddings):
            found[called(name)] = np.ascontiguousarray(x)
    return found


def write(path: Path, model: nn.Module, quantised=None, lists=None, more=None) -> Path:
    """The model in a file; tables in blocks of the type `quantised`, vectors in fp32 as everybody has them."""
    import gguf

    c = model.config
    file = gguf.GGUFWriter(path, c.model_type)
    file.add_context_length(c.max_position_embeddings)
    file.add_embedding_length(c.hidden_size)
    file.add_block_count(c.num_hidden_layers)
    file.add_feed_forward_length(c.intermediate_size)
    file.add_head_count(c.num_attention_heads)
    file.add_head_count_kv(c.num_key_value_heads)
    file.add_key_length(c.head_dim)
    file.add_value_length(c.head_dim)
    file.add_rope_dimension_count(c.head_dim)
    file.add_rope_freq_base(c.rope_parameters["rope_theta"])
    file.add_layer_norm_rms_eps(c.rms_norm_eps)
    for add, value in (lists or {}).items():
        getattr(file, add)(value)
    if more is not None:
        more(file)
    for name, x in tensors(model).items():
        if quantised is not None and x.ndim > 1:
            file.add_tensor(name, gguf.quantize(x, quantised), raw_dtype=quantised)
        else:
            file.add_tensor(name, x)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path
