"""A folder of each kind as `transformers` writes them, and things to ask them about."""

import json
from pathlib import Path

import torch
import transformers as hf
from hub.text_folders import LENGTH, TEXTS, bert, bytelevel, saved, wordpiece

from regard import text
from regard.config.recipe import CharTokenizer
from regard.report.image_rows import encode_png

CLASSES = {"id2label": {0: "bad", 1: "so-so", 2: "good"}, "label2id": {"bad": 0, "so-so": 1, "good": 2}}
NAMES = {"id2label": {0: "O", 1: "B-PER", 2: "I-PER"}, "label2id": {"O": 0, "B-PER": 1, "I-PER": 2}}
CONTEXT = "Ada saw a cat. The old dog sat on a big mat in Paris, and it was good. " * 4
KINDS = {
    "body": ("Model", {}), "words": ("ForMaskedLM", {}), "spans": ("ForQuestionAnswering", {}),
    "classes": ("ForSequenceClassification", CLASSES), "tags": ("ForTokenClassification", NAMES),
    "many": ("ForSequenceClassification", CLASSES | {"problem_type": "multi_label_classification"}),
    "number": ("ForSequenceClassification", {"num_labels": 1}), "silent": ("Model", {}),
    "maskless": ("ForMaskedLM", {}),
}  # fmt: skip


def stocked(place: Path) -> Path:
    models(place)
    files(place)
    return place


def models(place: Path) -> None:
    for name, (kind, more) in KINDS.items():
        bert(kind, place / name, **more)
    decoder = hf.GPT2LMHeadModel(hf.GPT2Config(
        vocab_size=301, n_embd=36, n_layer=2, n_head=4, n_positions=90, bos_token_id=0, eos_token_id=2))  # fmt: skip
    decoder.generation_config = hf.GenerationConfig(max_new_tokens=7, eos_token_id=2, do_sample=True, top_k=3)
    saved(decoder, bytelevel(""), place / "gpt2")
    pair = hf.T5ForConditionalGeneration(hf.T5Config(
        vocab_size=301, d_model=36, d_kv=9, num_heads=4, d_ff=60, num_layers=2, decoder_start_token_id=1,
        pad_token_id=1, eos_token_id=2))  # fmt: skip
    pair.generation_config = hf.GenerationConfig(
        max_new_tokens=9, num_beams=2, decoder_start_token_id=1, eos_token_id=2, pad_token_id=1)  # fmt: skip
    saved(pair, bytelevel("$A </s>", "$A </s> $B </s>"), place / "t5")
    sizes = dict(hidden_size=36, num_hidden_layers=1, num_attention_heads=4, intermediate_size=60)
    clip = hf.CLIPModel(hf.CLIPConfig(
        text_config=sizes | dict(vocab_size=len(wordpiece()), max_position_embeddings=LENGTH, eos_token_id=3),
        vision_config=sizes | dict(image_size=12, patch_size=4), projection_dim=24))  # fmt: skip
    saved(clip, wordpiece(), place / "clip")


def files(place: Path) -> None:
    for folder, name in (("silent", "tokenizer.json"), ("silent", "tokenizer_config.json"),
                         ("maskless", "tokenizer_config.json")):  # fmt: skip
        (place / folder / name).unlink()
    text.train_tokenizer(CharTokenizer(), ["a cat"]).save(place / "maskless")
    asked = [{"question": each, "context": CONTEXT[: 60 * (n + 1)]} for n, each in enumerate(TEXTS)]
    for name, lines in {
        "texts.txt": TEXTS,
        "texts.jsonl": [json.dumps({"text": each, "n": n}) for n, each in enumerate(TEXTS)],
        "blanks.txt": [f"{each[:-1]} [MASK]" for each in TEXTS],
        "holes.txt": ["a cat", "", "a dog"],
        "asked.jsonl": map(json.dumps, asked),
        "context.txt": [CONTEXT],
    }.items():  # fmt: skip
        (place / name).write_text("\n".join(lines) + "\n")
    (place / "empty.txt").write_text("")
    (place / "latin.txt").write_bytes("über\n".encode("latin1"))
    (place / "picture.png").write_bytes(encode_png(torch.randint(0, 255, (3, 12, 12)).to(torch.uint8)))
