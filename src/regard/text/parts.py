"""Tokenizers of words and their parts, from vocab.txt or from vocab.json and merges.txt.

The files say the parts and not how a text is cut into them; that is said here, as `transformers` does it.
"""

import json
from collections.abc import Callable
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

Card = dict[str, Any]
Texts = Callable[[str], bytes]  # the contents of a file of the folder


def wordpiece(read: Texts, card: Card) -> tokenizers.Tokenizer:
    """BERT's: a word is its longest pieces from the left, ## before those inside."""
    lines = read("vocab.txt").decode().replace("\r\n", "\n").split("\n")
    vocabulary = {line: id for id, line in enumerate(lines[:-1] if not lines[-1] else lines)}
    inner = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=card["unk_token"]))
    inner.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=bool(card.get("tokenize_chinese_chars", True)),
        strip_accents=card.get("strip_accents"), lowercase=bool(card.get("do_lower_case", True)),
    )  # fmt: skip
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return around(inner, card, "cls $A sep", "cls $A sep $B:1 sep:1")


def pairs(read: Texts, **how: Any) -> tokenizers.Tokenizer:
    """A vocabulary and the pairs that are merged, first those that were met most often."""
    vocabulary = json.loads(read("vocab.json"))
    lines = [line.split() for line in read("merges.txt").decode().split("\n") if not line.startswith("#version")]
    merged = [(one, two) for one, two in filter(None, lines)]
    return tokenizers.Tokenizer(models.BPE(vocabulary, merged, **how))


def gpt2(read: Texts, card: Card) -> tokenizers.Tokenizer:
    """Over bytes, so that any text can be said; nothing stands around it."""
    inner, spaced = pairs(read), bool(card.get("add_prefix_space", False))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=spaced), decoders.ByteLevel()
    return inner


def roberta(read: Texts, card: Card) -> tokenizers.Tokenizer:
    """The same between <s> and </s>."""
    inner, spaced = gpt2(read, card), bool(card.get("add_prefix_space", False))
    sep, cls = place(inner, card["sep_token"]), place(inner, card["cls_token"])
    inner.post_processor = processors.RobertaProcessing(sep, cls, True, spaced)
    return inner


def clip(read: Texts, card: Card) -> tokenizers.Tokenizer:
    """Small letters, and the end of a word is a part of its last piece."""
    inner = pairs(read, end_of_word_suffix="</w>", unk_token=card["unk_token"])
    steps = [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    inner.normalizer = normalizers.Sequence(steps)
    words = Regex(r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")
    inner.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(words, behavior="removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])  # fmt: skip
    last = decoders.Replace(Regex("</w>$"), "")
    inner.decoder = decoders.Sequence([decoders.ByteLevel(), last, decoders.Replace("</w>", " ")])
    end, start = place(inner, card["eos_token"]), place(inner, card["bos_token"])
    inner.post_processor = processors.RobertaProcessing(end, start, False, False)
    return inner


def openai(read: Texts, card: Card) -> tokenizers.Tokenizer:
    """The first GPT's: words as BERT finds them, in pairs of letters."""
    inner = pairs(read, end_of_word_suffix="</w>", unk_token=card["unk_token"])
    inner.normalizer, inner.decoder = normalizers.BertNormalizer(lowercase=True), decoders.BPEDecoder(suffix="</w>")
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return inner


# ---------------------------------------------------------------- what stands around


def around(inner: tokenizers.Tokenizer, card: Card, one: str, two: str) -> tokenizers.Tokenizer:
    """What stands around a text or two, said in roles: "cls $A sep" is "[CLS] $A [SEP]"."""
    tokens = {role: card.get(f"{role}_token") for role in ("cls", "sep", "bos", "eos", "language")}
    used = {word.partition(":")[0] for word in two.split()} & tokens.keys()

    def spelt(template: str) -> list[str]:
        words = (word.partition(":") for word in template.split())
        return [f"{tokens.get(word, word)}:{segment or 0}" for word, _, segment in words]

    ids = [place(inner, str(tokens[role])) for role in sorted(used)]
    inner.post_processor = processors.TemplateProcessing(single=spelt(one), pair=spelt(two), special_tokens=ids)
    return inner


def place(inner: tokenizers.Tokenizer, token: str) -> tuple[str, int]:
    """A token with its id, as what stands around a text is told."""
    if (id := inner.token_to_id(token)) is None:
        raise ValueError(f"{token!r} stands around every text, and the vocabulary has no such token")
    return token, id
