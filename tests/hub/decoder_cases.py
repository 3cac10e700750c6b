"""Decoders: GPT, GPT-2 and GPT-Neo; Llama with its relatives Mistral, Qwen2 and Qwen3."""

import transformers as hf
from hub.published import LENGTH, D, F, H, V

ENDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
GROUPED = dict(
    vocab_size=V, hidden_size=D, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3,
    intermediate_size=F, head_dim=14, max_position_embeddings=LENGTH,
)  # fmt: skip
LABELS = dict(num_labels=5)


def gpt2(cls=hf.GPT2LMHeadModel, **said):
    sizes = dict(vocab_size=V, n_positions=LENGTH, n_embd=D, n_layer=3, n_head=H, n_inner=F)
    return lambda: cls(hf.GPT2Config(**ENDS | sizes | said))


def neo(cls=hf.GPTNeoForCausalLM, **said):
    sizes = dict(vocab_size=V, max_position_embeddings=LENGTH, hidden_size=D, num_layers=3, num_heads=H,
                 intermediate_size=F, window_size=4, attention_types=[[["global", "local", "local"], 1]])  # fmt: skip
    return lambda: cls(hf.GPTNeoConfig(**ENDS | sizes | said))


def gpt(cls=hf.OpenAIGPTLMHeadModel, **said):
    sizes = dict(vocab_size=V, n_positions=LENGTH, n_embd=D, n_layer=3, n_head=H)
    return lambda: whole(cls(hf.OpenAIGPTConfig(**ENDS | sizes | said)))


def whole(model):
    """The future is hidden by a table of ones and zeros: in whole numbers no noise moves it."""
    for block in model.base_model.h:
        block.attn.bias = block.attn.bias.int()
    return model


def llama(cls=hf.LlamaForCausalLM, **said):
    return lambda: cls(hf.LlamaConfig(**ENDS | GROUPED | said))


def mistral(cls=hf.MistralForCausalLM, **said):
    return lambda: cls(hf.MistralConfig(**ENDS | GROUPED | dict(sliding_window=4) | said))


def qwen2(cls=hf.Qwen2ForCausalLM, **said):
    return lambda: cls(hf.Qwen2Config(**ENDS | GROUPED | said))


def qwen3(cls=hf.Qwen3ForCausalLM, **said):
    return lambda: cls(hf.Qwen3Config(**ENDS | GROUPED | said))


def rope(kind, **said):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=500.0, **said))


SLIDES = dict(use_sliding_window=True, sliding_window=3)
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
FACTORS = [1.0, 1.1, 1.3, 1.7, 2.0, 2.5, 3.0]
CASES = {
    "gpt2": gpt2(),
    "gpt2 untied, relu": gpt2(tie_word_embeddings=False, activation_function="relu", layer_norm_epsilon=1e-3),
    "gpt2 four times as wide inside": gpt2(n_inner=None, activation_function="gelu", n_head=6),
    "gpt2 body": gpt2(hf.GPT2Model),
    "gpt2 label": gpt2(hf.GPT2ForSequenceClassification, **LABELS),
    "gpt2 label, last word pads": gpt2(hf.GPT2ForSequenceClassification, pad_token_id=V - 1, num_labels=1),
    "gpt2 tags": gpt2(hf.GPT2ForTokenClassification, **LABELS),
    "gpt2 span": gpt2(hf.GPT2ForQuestionAnswering),
    "gpt neo": neo(),
    "gpt neo untied, silu": neo(tie_word_embeddings=False, activation_function="silu", layer_norm_epsilon=1e-4),
    "gpt neo in turn, four times as wide inside": neo(
        num_layers=4, attention_types=[[["global", "local"], 2]], window_size=1, intermediate_size=None),
    "gpt neo far": neo(attention_types=[[["global"], 3]], num_heads=6),
    "gpt neo body": neo(hf.GPTNeoModel),
    "gpt neo label": neo(hf.GPTNeoForSequenceClassification, **LABELS),
    "gpt neo tags": neo(hf.GPTNeoForTokenClassification, **LABELS),
    "gpt neo span": neo(hf.GPTNeoForQuestionAnswering),
    "gpt": gpt(),
    "gpt relu": gpt(afn="relu", layer_norm_epsilon=1e-3),
    "gpt untied, swish": gpt(afn="swish", tie_word_embeddings=False, n_head=6),
    "gpt body": gpt(hf.OpenAIGPTModel),
    "gpt label": gpt(hf.OpenAIGPTForSequenceClassification, **LABELS),
    "llama": llama(),
    "llama tied, biases": llama(tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "llama one group, gelu": llama(num_key_value_heads=1, hidden_act="gelu", rms_norm_eps=1e-3, head_dim=6),
    "llama linear": llama(**rope("linear", factor=3.0)),
    "llama dynamic": llama(**rope("dynamic", factor=3.0)),
    "llama yarn": llama(**rope("yarn", factor=5.0, original_max_position_embeddings=16)),
    "llama 3": llama(**rope("llama3", factor=8.0, original_max_position_embeddings=20, low_freq_factor=1.0,
                            high_freq_factor=4.0)),
    "llama longrope": llama(**rope("longrope", factor=4.0, original_max_position_embeddings=20, short_factor=FACTORS,
                                   long_factor=FACTORS)),
    "llama body": llama(hf.LlamaModel),
    "llama label": llama(hf.LlamaForSequenceClassification, **LABELS),
    "llama tags": llama(hf.LlamaForTokenClassification, **LABELS),
    "mistral": mistral(),
    "mistral sees all": mistral(sliding_window=None, num_key_value_heads=6),
    "mistral tied, gelu": mistral(tie_word_embeddings=True, hidden_act="gelu_pytorch_tanh", sliding_window=2),
    "mistral yarn": mistral(**rope("yarn", factor=5.0, original_max_position_embeddings=16, beta_fast=4.0)),
    "mistral body": mistral(hf.MistralModel),
    "mistral label": mistral(hf.MistralForSequenceClassification, **LABELS),
    "mistral tags": mistral(hf.MistralForTokenClassification, **LABELS),
    "mistral span": mistral(hf.MistralForQuestionAnswering),
    "qwen2": qwen2(),
    "qwen2 tied, windows above": qwen2(tie_word_embeddings=True, max_window_layers=1, **SLIDES),
    "qwen2 windows in turn": qwen2(layer_types=MIXED, rms_norm_eps=1e-3, **SLIDES),
    "qwen2 linear": qwen2(num_key_value_heads=1, **rope("linear", factor=3.0)),
    "qwen2 body": qwen2(hf.Qwen2Model),
    "qwen2 label": qwen2(hf.Qwen2ForSequenceClassification, **LABELS),
    "qwen2 tags": qwen2(hf.Qwen2ForTokenClassification, **LABELS),
    "qwen3": qwen3(),
    "qwen3 tied, biases": qwen3(tie_word_embeddings=True, attention_bias=True, rms_norm_eps=1e-3),
    "qwen3 windows everywhere": qwen3(max_window_layers=0, head_dim=6, **SLIDES),
    "qwen3 yarn, windows in turn": qwen3(
        layer_types=MIXED, **SLIDES, **rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    "qwen3 body": qwen3(hf.Qwen3Model),
    "qwen3 label": qwen3(hf.Qwen3ForSequenceClassification, **LABELS),
    "qwen3 tags": qwen3(hf.Qwen3ForTokenClassification, **LABELS),
}  # fmt: skip
# Those that say what comes next; the length of an input changes what "dynamic" is, so it has no cache.
SPEAK = {name for name in CASES if name.split()[-1] not in ("body", "label", "pads", "tags", "span", "dynamic")}
