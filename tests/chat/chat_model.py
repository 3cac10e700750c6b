"""A chat model as `transformers` writes it: tiny, random, one token a letter, and ChatML for a template."""

import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers as hf
from hub.text_folders import saved
from tokenizers import Tokenizer, decoders, models

LETTERS = " abcdefghijklmnopqrstuvwxyz.,?!\nABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789'|<>_/\\"
SPECIALS = ("<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (Path(__file__).parents[1] / "text" / "chats" / "chatml.jinja").read_text(encoding="utf8")
LENGTH = 211  # tokens at once


def tokenizer(template: str | None = TEMPLATE) -> hf.PreTrainedTokenizerFast:
    table = {word: id for id, word in enumerate([*SPECIALS, *LETTERS])}
    inner = Tokenizer(models.BPE(table, []))
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(list(SPECIALS))
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=inner, chat_template=template, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def model(length: int = LENGTH) -> hf.LlamaForCausalLM:
    torch.manual_seed(7)
    return hf.LlamaForCausalLM(hf.LlamaConfig(
        vocab_size=len(SPECIALS) + len(LETTERS), hidden_size=24, intermediate_size=44, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=length,
        pad_token_id=0, bos_token_id=1, eos_token_id=2))  # fmt: skip


def folder(place: Path, template: str | None = TEMPLATE, length: int = LENGTH) -> Path:
    return saved(model(length), tokenizer(template), place)
