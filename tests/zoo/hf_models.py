"""The same models as `transformers` has them, from its own defaults where those are the published config.

Each is a class and what its config says. `more` is what theirs counts besides ours (or less, if negative).
"""

import torch
import transformers as hf
from torch import nn


def built(cls, config) -> nn.Module:
    with torch.device("meta"):
        return cls(config)


def bert(cls=hf.BertModel, **said):
    return cls, hf.BertConfig(**said)


def gpt2(dim=768, depth=12, heads=12, length=1024):
    ends = dict(bos_token_id=None, eos_token_id=None)
    return hf.GPT2LMHeadModel, hf.GPT2Config(n_embd=dim, n_layer=depth, n_head=heads, n_positions=length, **ends)


def llama(**said):
    return hf.LlamaForCausalLM, hf.LlamaConfig(**said)


def vit(**said):
    return hf.ViTForImageClassification, hf.ViTConfig(num_labels=1000, **said)


def imagegpt(**said):
    return hf.ImageGPTForCausalImageModeling, hf.ImageGPTConfig(**said)


LARGE = dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
HUGE = dict(hidden_size=1280, num_hidden_layers=32, num_attention_heads=16, intermediate_size=5120)
GPT2 = {
    "gpt2": (), "gpt2-medium": (1024, 24, 16), "gpt2-large": (1280, 36, 20), "gpt2-xl": (1600, 48, 25),
    "gpt3-125m": (768, 12, 12, 2048), "gpt3-350m": (1024, 24, 16, 2048), "gpt3-760m": (1536, 24, 16, 2048),
    "gpt3-1.3b": (2048, 24, 16, 2048), "gpt3-2.7b": (2560, 32, 32, 2048), "gpt3-6.7b": (4096, 32, 32, 2048),
    "gpt3-13b": (5120, 40, 40, 2048), "gpt3-175b": (12288, 96, 96, 2048),
}  # fmt: skip
MODELS = {name: lambda said=said: gpt2(*said) for name, said in GPT2.items()} | {
    "bert-base": bert,
    "bert-large": lambda: bert(**LARGE),
    "roberta-base": lambda: (
        hf.RobertaModel, hf.RobertaConfig(max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5)),
    "distilbert": lambda: (hf.DistilBertModel, hf.DistilBertConfig()),
    "albert-base": lambda: (
        hf.AlbertModel,
        hf.AlbertConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072, hidden_dropout_prob=0.0,
                        attention_probs_dropout_prob=0.0)),
    "electra-small": lambda: (hf.ElectraModel, hf.ElectraConfig()),
    "llama-7b": llama,
    "llama3-8b": lambda: llama(vocab_size=128256, intermediate_size=14336, num_key_value_heads=8, rms_norm_eps=1e-5,
                               rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
    "smollm2-135m": lambda: llama(vocab_size=49152, hidden_size=576, num_hidden_layers=30, num_attention_heads=9,
                                  num_key_value_heads=3, intermediate_size=1536, rms_norm_eps=1e-5,
                                  tie_word_embeddings=True,
                                  rope_parameters={"rope_type": "default", "rope_theta": 100000.0}),
    "qwen3-0.6b": lambda: (
        hf.Qwen3ForCausalLM,
        hf.Qwen3Config(hidden_size=1024, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
                       intermediate_size=3072, tie_word_embeddings=True,
                       rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})),
    "t5-small": lambda: (hf.T5ForConditionalGeneration, hf.T5Config()),
    "t5-v1.1-base": lambda: (
        hf.T5ForConditionalGeneration,
        hf.T5Config(d_model=768, d_ff=2048, num_layers=12, num_heads=12, feed_forward_proj="gated-gelu",
                    tie_word_embeddings=False)),
    "bart-base": lambda: (
        hf.BartForConditionalGeneration,
        hf.BartConfig(d_model=768, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12,
                      decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072, attention_dropout=0.1,
                      activation_dropout=0.1)),
    "marian": lambda: (
        hf.MarianMTModel,
        hf.MarianConfig(vocab_size=58101, d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8,
                        decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048,
                        max_position_embeddings=512, activation_function="swish", scale_embedding=True,
                        pad_token_id=58100, decoder_start_token_id=58100)),
    "vit-b16": vit,
    "vit-l16": lambda: vit(**LARGE),
    "vit-h14": lambda: vit(patch_size=14, **HUGE),
    "swin-tiny": lambda: (hf.SwinForImageClassification, hf.SwinConfig(num_labels=1000)),
    "clip-vit-b32": lambda: (hf.CLIPModel, hf.CLIPConfig()),
    "imagegpt-small": imagegpt,
    "imagegpt-medium": lambda: imagegpt(n_embd=1024, n_layer=36, n_head=8),
    "imagegpt-large": lambda: imagegpt(n_embd=1536, n_layer=48, n_head=16),
}  # fmt: skip


def count(name: str) -> int:
    """The parameters that theirs trains, and a bias that it keeps as a buffer; sinusoids are not trained."""
    model = built(*MODELS[name]())
    total = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    if name == "marian":  # the published bias is trained, and a buffer here
        total += model.final_logits_bias.numel()
    if name == "t5-v1.1-base":  # transformers 5 ties every fresh T5; the checkpoint brings a table of its own
        total += model.shared.weight.numel()
    return total
