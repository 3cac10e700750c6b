"""Small tokenizers with the special tokens, the spaces and the chat templates of well-known families, as folders.

Real ones differ in the size of their vocabulary; what is parsed, stripped, prefixed and put around a text is alike.
"""

from pathlib import Path

import tokenizers
import transformers as hf
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = Path(__file__).parent / "chats"
WORDS = ["Hi, who are you?", "I am nobody.", "And what is 2+2?", "user assistant system model [INST] [/INST]"] * 9
LLAMA2 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content.strip() + ' ' + eos_token + bos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n'"
    " + m.content | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}"
    "{% endif %}"
)
PHI = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + '\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
BERT = "{{ cls_token }}{% for m in messages %}{{ m.content + ' ' + sep_token + ' ' }}{% endfor %}"
T5 = "{% for m in messages %}{{ '<extra_id_1>' + m.role + '\n' + m.content + eos_token }}{% endfor %}"


def learn(inner, trainer):
    inner.train_from_iterator(WORDS, trainer)
    return inner


def bytes_of(specials, split=None):
    """Byte-level BPE, as GPT-2, Llama 3 and Qwen have it."""
    inner = tokenizers.Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    first = [] if split is None else [pre_tokenizers.Split(Regex(split), "isolated")]
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Sequence([*first, level]), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learn(inner, trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False))
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return inner


def sentencepiece(specials, how, **flags):
    """BPE over ▁ with bytes, as Llama 2 (prepend, always or first) and Gemma (nothing) have it."""
    known = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    known += sorted(set("".join(WORDS)) - {" "})
    pairs = [("▁", "H"), ("▁", "a"), ("▁", "w"), ("H", "i"), ("u", "s"), ("▁", "[")]
    known += [a + b for a, b in pairs]
    vocabulary = {token: id for id, token in enumerate(known)}
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if how == "legacy":
        inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    elif how == "first":
        inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        inner.normalizer = normalizers.Replace(" ", "▁")
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        + [decoders.Strip(" ", 1, 0)] * (how != "gemma")
    )
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<unk>", "<s>", "</s>")])
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False, **flags) for token in specials])
    return inner


def begins(inner, token):
    inner.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A $B", special_tokens=[(token, inner.token_to_id(token))]
    )
    return inner


def wordpiece():
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    alphabet = sorted(set("".join(WORDS).lower() + "<|>[]_/"))
    learn(inner, trainers.WordPieceTrainer(vocab_size=150, special_tokens=names, initial_alphabet=alphabet,
                                           show_progress=False))  # fmt: skip
    inner.decoder = decoders.WordPiece()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return inner


def unigram():
    inner = tokenizers.Tokenizer(models.Unigram())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    names = ["<pad>", "</s>", "<unk>", "<extra_id_0>", "<extra_id_1>"]
    learn(inner, trainers.UnigramTrainer(vocab_size=120, special_tokens=names, unk_token="<unk>", show_progress=False))
    inner.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return inner


HEADS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
DIGITS = r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"
START = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
FAMILIES = {
    "chatml": lambda: (bytes_of(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]), (FOLDER / "chatml.jinja").read_text(),
                       {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}),
    "qwen": lambda: (bytes_of(["<|endoftext|>", "<|im_start|>", "<|im_end|>"], DIGITS),
                     (FOLDER / "qwen.jinja").read_text(), {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}),
    "llama2": lambda: (begins(sentencepiece([], "legacy"), "<s>"), LLAMA2, START),
    "llama3": lambda: (begins(bytes_of(HEADS, DIGITS), HEADS[0]), (FOLDER / "llama3.jinja").read_text(),
                       {"bos_token": HEADS[0], "eos_token": HEADS[3]}),
    "mistral": lambda: (begins(sentencepiece(["[INST]", "[/INST]"], "first"), "<s>"),
                        (FOLDER / "mistral.jinja").read_text(), START),
    "zephyr": lambda: (begins(sentencepiece([], "first"), "<s>"), (FOLDER / "zephyr.jinja").read_text(), START),
    "gemma": lambda: (begins(sentencepiece(["<start_of_turn>", "<end_of_turn>"], "gemma"), "<s>"), GEMMA, START),
    "phi": lambda: (sentencepiece(["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"], "first", rstrip=True), PHI,
                    START),
    "bert": lambda: (wordpiece(), BERT, {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
                                         "pad_token": "[PAD]", "unk_token": "[UNK]"}),
    "t5": lambda: (unigram(), T5, {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}),
}  # fmt: skip


def saved(name, folder):
    """The folder of a family, and the tokenizer that `transformers` reads from it."""
    inner, template, roles = FAMILIES[name]()
    hf.PreTrainedTokenizerFast(tokenizer_object=inner, chat_template=template, **roles).save_pretrained(folder)
    return hf.AutoTokenizer.from_pretrained(folder)
