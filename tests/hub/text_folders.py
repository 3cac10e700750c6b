"""Folders as `transformers` writes them: tiny random models with a small tokenizer, to be used by both."""

import json
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers as hf
from parity.tolerance import randomise
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

WORDS = [
    "the", "cat", "sat", "on", "a", "mat", "and", "saw", "dog", "paris", "is", "capital", "of", "france", "who", "what",
    "where", ".", ",", "?", "!", "un", "##s", "##ing", "play", "in", "city", "big", "old", "man", "ada", "love",
    "##lace", "wrote", "to", "london", "it", "was", "good", "bad", "film",
]  # fmt: skip
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
V, LENGTH = len(SPECIAL) + len(WORDS), 37  # words, and tokens at once
SIZES = dict(vocab_size=V, hidden_size=36, num_hidden_layers=2, num_attention_heads=4, intermediate_size=60,
             max_position_embeddings=LENGTH)  # fmt: skip
TEXTS = ["The cat sat.", "Ada Lovelace wrote to a big old man in London, and it was good!", "who is it?",
         "a dog, a cat and a mat", "playing in Paris"]  # fmt: skip


def wordpiece() -> hf.PreTrainedTokenizerFast:
    """BERT's way: [CLS] a [SEP] b [SEP]."""
    table = {word: place for place, word in enumerate([*SPECIAL, *WORDS])}
    inner = Tokenizer(models.WordPiece(table, unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_max_length=LENGTH,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"])  # fmt: skip


def bytelevel(template: str = "<s> $A </s>", pair: str = "<s> $A </s> </s> $B </s>") -> hf.PreTrainedTokenizerFast:
    """RoBERTa's and GPT-2's way: bytes, and what the template puts around a text."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(vocab_size=300, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], show_progress=False,
                         initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    inner.train_from_iterator([text.lower() for text in TEXTS] * 3, trainer)
    ids = [(token, inner.token_to_id(token)) for token in ("<s>", "</s>")]
    if template:
        inner.post_processor = processors.TemplateProcessing(single=template, pair=pair, special_tokens=ids)
    made = hf.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", bos_token="<s>",
                                      eos_token="</s>", cls_token="<s>", sep_token="</s>")  # fmt: skip
    made.add_special_tokens({"mask_token": hf.AddedToken("<mask>", lstrip=True, special=True)})
    return made


def saved(model: hf.PreTrainedModel, tokenizer, folder: Path) -> Path:
    """Random in every weight, biases and gains too; written by `transformers` itself."""
    randomise(model)
    model.eval().save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return folder


def bert(kind: str, folder: Path, **settings) -> tuple[hf.PreTrainedModel, hf.PreTrainedTokenizerFast, Path]:
    """BertFor... with the tokenizer above, and where both were saved."""
    torch.manual_seed(5)
    model, tokenizer = getattr(hf, f"Bert{kind}")(hf.BertConfig(**SIZES | settings)), wordpiece()
    return model, tokenizer, saved(model, tokenizer, folder)


def sentences(folder: Path, mode: str = "pooling_mode_mean_tokens", normal: bool = True, length: int = 11) -> None:
    """What sentence-transformers puts beside a model."""
    steps = [("Transformer", ""), ("Pooling", "1_Pooling"), *([("Normalize", "2_Normalize")] if normal else [])]
    told = [{"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for place, (kind, path) in enumerate(steps)]  # fmt: skip
    (folder / "1_Pooling").mkdir()
    for name, table in (("modules.json", told), ("1_Pooling/config.json", {mode: True, "word_embedding_dimension": 36}),
                        ("sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False})):  # fmt: skip
        (folder / name).write_text(json.dumps(table))
