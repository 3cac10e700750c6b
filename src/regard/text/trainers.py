"""Tokenizer trainers: character, byte, word, WordPiece, BPE and Unigram, each trained on text.

    char       F i r s t   C i t i z e n     one character       wordpiece  First  Cit ##izen    BERT's subwords
    byte       46 69 72 73 74 20 ...         one byte of UTF-8   bpe        First  Cit izen      GPT-2's
    word       First  Citizen                one word or mark    unigram    First  Citi zen      T5's

A space belongs to the word after it, so nothing is lost between words. Text outside the vocabulary falls back to bytes,
so every kind can encode any text, except `char` and `word` where `fallback` is off. #: S072
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from regard import config
from regard.config.errors import ConfigError, DataError
from regard.text.split_points import WORD_PATTERN
from regard.text.token_bytes import BYTE_LETTERS, BYTE_TOKENS, WORDPIECE_PREFIX
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_files import tokenizer_errors

# Special tokens by kind, in the order of their ids; `special_tokens` has their roles.
GPT = ("<|endoftext|>",)
BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
T5 = ("<pad>", "</s>", "<unk>")
WORD = ("<pad>", "<start>", "<end>")
UNKNOWN = "<unk>"


def train_tokenizer(setting: config.Tokenizer, texts: Iterable[str]) -> Tokenizer:
    """Train the tokenizer of a config. Equal texts give an equal tokenizer.json."""
    if isinstance(setting, config.TokenizerFile):
        return Tokenizer.load(setting.path, setting.specials)
    inner = KINDS[setting.kind](setting, non_empty([texts] if isinstance(texts, str) else texts))
    return Tokenizer(inner, specials=setting.specials)


def non_empty(texts: Iterable[str]) -> Iterator[str]:
    empty = True
    for text in texts:
        empty = empty and not text
        yield text
    if empty:
        raise DataError("there is no text to train the tokenizer on; name one that is not empty")


def train_char(setting: config.CharTokenizer, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Character tokenizer: the characters of the text in order, with the fallback followed by 256 bytes."""
    found: set[str] = set()
    for text in texts:
        found.update(text)
    names = [*sorted(found), *(BYTE_TOKENS if setting.byte_fallback else ())]
    inner = tokenizers.Tokenizer(models.BPE(vocab=number_tokens(names), merges=[], byte_fallback=setting.byte_fallback))
    inner.decoder = byte_decoder() if setting.byte_fallback else decoders.Fuse()
    return inner


def train_byte(setting: config.ByteTokenizer, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Byte tokenizer: 256 tokens whose id is the byte; no training."""
    inner = tokenizers.Tokenizer(models.BPE(vocab=BYTE_LETTERS, merges=[]))
    inner.pre_tokenizer, inner.decoder = byte_letters(), decoders.ByteLevel()
    return inner


def train_word(setting: config.WordTokenizer, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Word tokenizer: the most frequent words; others become bytes, or <unk> without the fallback."""
    fixed = (*WORD, *(BYTE_TOKENS if setting.byte_fallback else (UNKNOWN,)))
    check_vocab_size(setting.vocab, len(fixed) + 1)
    counter = word_tokenizer(models.WordLevel(), setting.lowercase)
    fit_tokenizer(counter, trainers.WordLevelTrainer(vocab_size=setting.vocab - len(fixed), show_progress=False), texts)
    known = counter.get_vocab()
    vocab = number_tokens([*fixed, *sorted(known, key=known.__getitem__)])
    if setting.byte_fallback:  # BPE without merges: a known word is one token, any other its characters or bytes
        inner = word_tokenizer(
            models.BPE(vocab=vocab, merges=[], byte_fallback=True, ignore_merges=True), setting.lowercase
        )
    else:
        inner = word_tokenizer(models.WordLevel(vocab=vocab, unk_token=UNKNOWN), setting.lowercase)
    inner.decoder = byte_decoder() if setting.byte_fallback else decoders.Fuse()
    inner.add_special_tokens(list(WORD))  # <unk> is not special: it replaces a word, so decoding shows it
    return inner


def train_bpe(setting: config.SubwordTokenizer, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Byte-level BPE (GPT-2): the most frequent pair becomes one token, repeatedly (Sennrich et al. 2016)."""
    inner = with_lowercase(tokenizers.Tokenizer(models.BPE()), setting.lowercase)
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    fit_tokenizer(inner, trainers.BpeTrainer(
        vocab_size=setting.vocab, special_tokens=list(GPT), initial_alphabet=list(BYTE_LETTERS), show_progress=False,
    ), texts)  # fmt: skip
    return inner


def train_wordpiece(setting: config.SubwordTokenizer, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """WordPiece (BERT): the longest matching token from the left (Schuster and Nakajima 2012), here over bytes.

    Every byte is a token at the start of a word and another inside, so [UNK] never occurs.
    """
    inside = [WORDPIECE_PREFIX + letter for letter in BYTE_LETTERS]
    fixed = [*BERT, *BYTE_LETTERS, *inside]
    check_vocab_size(setting.vocab, len(fixed))
    trainer = trainers.WordPieceTrainer(
        vocab_size=setting.vocab, special_tokens=[*BERT, *inside],  # named here, so that their ids are deterministic
        initial_alphabet=list(BYTE_LETTERS), continuing_subword_prefix=WORDPIECE_PREFIX, show_progress=False,
    )  # fmt: skip
    learner = word_tokenizer(models.WordPiece(unk_token=BERT[1]), setting.lowercase, byte_letters())
    fit_tokenizer(learner, trainer, texts)
    vocab = learner.get_vocab()
    inner = word_tokenizer(models.WordPiece(
        vocab=vocab, unk_token=BERT[1], continuing_subword_prefix=WORDPIECE_PREFIX, max_input_chars_per_word=1000,
    ), setting.lowercase, byte_letters())  # fmt: skip
    inner.decoder = decoders.Sequence([decoders.Replace(Regex(f"^{WORDPIECE_PREFIX}"), ""), decoders.ByteLevel()])
    inner.add_special_tokens(list(BERT))
    return inner


def train_unigram(setting: config.SubwordTokenizer, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Unigram (T5): tokens that maximise the likelihood of the text, each with a probability (Kudo 2018)."""
    learner = word_tokenizer(models.Unigram(), setting.lowercase)
    trainer = trainers.UnigramTrainer(
        vocab_size=setting.vocab - len(BYTE_TOKENS), special_tokens=list(T5), unk_token=T5[2], show_progress=False
    )
    try:
        fit_tokenizer(learner, trainer, texts)
    except DataError as problem:
        if "not large enough" not in str(problem):
            raise
        raise ConfigError(f"tokenizer.vocab: {setting.vocab:,} is too few for all characters of the text; "
                          f"set more, or choose bpe, which needs bytes alone") from None  # fmt: skip
    pieces = prune_unigram(learner, setting.vocab - len(BYTE_TOKENS))
    lowest = min(score for _, score in pieces)
    scores = [*((token, 0.0) for token in T5), *pieces, *((name, lowest) for name in BYTE_TOKENS)]
    inner = word_tokenizer(models.Unigram(vocab=scores, unk_id=2, byte_fallback=True), setting.lowercase)
    inner.decoder = byte_decoder()
    inner.add_special_tokens(list(T5))
    return inner


KINDS: dict[str, Callable[[Any, Iterable[str]], tokenizers.Tokenizer]] = {
    "char": train_char,
    "byte": train_byte,
    "word": train_word,
    "bpe": train_bpe,
    "wordpiece": train_wordpiece,
    "unigram": train_unigram,
}


# ---------------------------------------------------------------- components


def number_tokens(names: Iterable[str]) -> dict[str, int]:
    return {name: id for id, name in enumerate(names)}


def byte_letters() -> pre_tokenizers.PreTokenizer:
    """Each byte as one of GPT-2's letters, without other changes."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def byte_decoder() -> decoders.Decoder:
    return decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])


def word_tokenizer(model: Any, lower: bool, *then: pre_tokenizers.PreTokenizer) -> tokenizers.Tokenizer:
    """A tokenizer that splits text into words before the model."""
    inner, first = (
        with_lowercase(tokenizers.Tokenizer(model), lower),
        pre_tokenizers.Split(Regex(WORD_PATTERN), "isolated"),
    )
    inner.pre_tokenizer = pre_tokenizers.Sequence([first, *then]) if then else first
    return inner


def with_lowercase(inner: tokenizers.Tokenizer, lower: bool) -> tokenizers.Tokenizer:
    if lower:
        inner.normalizer = normalizers.Lowercase()
    return inner


def check_vocab_size(vocab: int, least: int) -> None:
    if vocab < least:
        raise ConfigError(f"tokenizer.vocab: {vocab:,} is too few; bytes and special tokens alone need {least:,}")


def fit_tokenizer(inner: tokenizers.Tokenizer, trainer: trainers.Trainer, texts: Iterable[str]) -> None:
    with tokenizer_errors("the tokenizer cannot be trained"):
        inner.train_from_iterator(texts, trainer)


def prune_unigram(learner: tokenizers.Tokenizer, most: int) -> list[tuple[str, float]]:
    """Prune a trained Unigram to `most` tokens with their scores, most likely first, deterministically.

    The library sums in an order that varies from run to run, and characters that it keeps although no word needs them
    come last in no order. Scores are therefore rounded, and those characters sorted.
    """
    found = json.loads(learner.to_str())["model"]["vocab"]
    pieces = {piece: round(score, 6) for piece, score in found if piece not in T5}
    lowest = min((score for piece, score in pieces.items() if len(piece) > 1), default=0.0)
    last = sorted(piece for piece, score in pieces.items() if score < lowest)
    first = sorted(pieces.keys() - set(last), key=lambda piece: (-pieces[piece], piece))
    scored = [(piece, pieces[piece]) for piece in first]
    scored += [(piece, round(lowest - (place + 1) * 1e-4, 6)) for place, piece in enumerate(last)]
    return scored[: most - len(T5)]
