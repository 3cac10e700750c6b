"""GGUF tokenizer, built from lists: tokens in the order of their ids, and how they merge.

gpt2     merges in the order of training, over GPT-2's letters for bytes; `split` names the pre-tokenizer
llama    a score for each token, as in SentencePiece: of all neighbours those with the best result merge first
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from regard.config.errors import DataError, did_you_mean
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_files import mute_stderr, tokenizer_errors

# Token types: normal; unknown; control, never part of a text; user-defined, matched in a text as a whole.
PLAIN, UNKNOWN, CONTROL, OWN = 1, 2, 3, 4
LONGEST = 256  # longest token in characters that is merged from two
BLANK = "▁"  # the space in tokens
# Pre-tokenizers: regexes applied one after the other.
GPT2 = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
)
QWEN2 = (LLAMA3[0].replace(r"\p{N}{1,3}", r"\p{N}"),)
SPLITS = {
    "gpt-2": GPT2, "smollm": (r"\p{N}", *GPT2), "llama-bpe": LLAMA3, "llama3": LLAMA3, "llama-v3": LLAMA3,
    "qwen2": QWEN2, "deepseek-r1-qwen": QWEN2,
}  # fmt: skip
WHOLE_WORD_SPLITS = ("llama-bpe", "llama3", "llama-v3")  # a word that is a token is not merged from parts
COMPOSED = ("qwen2", "deepseek-r1-qwen")  # accented letters are composed (NFC)


@dataclass(frozen=True)
class GgufVocab:
    """GGUF vocabulary. `types` gives the type of each token; `start` is the id before every text, if any; `blank`:
    whether a text starts as if after a space."""

    kind: str
    tokens: Sequence[str]
    merges: Sequence[str] = ()
    scores: Sequence[float] = ()
    types: Sequence[int] = ()
    split: str = "gpt-2"
    start: int | None = None
    blank: bool = True


def tokenizer_from_gguf(lists: GgufVocab, card: dict[str, Any]) -> Tokenizer:
    """Build the tokenizer of these lists; `card` is its tokenizer_config.json."""
    if lists.kind not in KINDS:
        raise DataError(f"tokenizer: no kind {lists.kind[:64]!r}{did_you_mean(lists.kind, KINDS)} known are "
                        f"{', '.join(KINDS)}")  # fmt: skip
    for name, each in (("types", lists.types), ("scores", lists.scores)):
        if each and len(each) != len(lists.tokens):
            raise DataError(f"tokenizer: {len(lists.tokens):,} tokens and {len(each):,} {name}; expected one for each")
    with mute_stderr(), tokenizer_errors("tokenizer: its lists form none"):
        inner = KINDS[lists.kind](lists)
        inner.add_special_tokens(added_tokens(lists, CONTROL))
        inner.add_tokens(added_tokens(lists, OWN))
        if lists.start is not None:
            first = lists.tokens[lists.start]
            around = dict(single=f"{first} $A", pair=f"{first} $A {first}:1 $B:1")
            inner.post_processor = processors.TemplateProcessing(**around, special_tokens=[(first, lists.start)])
        return Tokenizer(inner, card)


def added_tokens(lists: GgufVocab, kind: int) -> list[AddedToken]:
    found = [token for token, each in zip(lists.tokens, lists.types, strict=False) if each == kind]
    return [AddedToken(token, normalized=False, special=kind == CONTROL) for token in found]


def token_ids(lists: GgufVocab) -> dict[str, int]:
    return {token: id for id, token in enumerate(lists.tokens)}


def bpe_tokenizer(lists: GgufVocab) -> tokenizers.Tokenizer:
    """Byte-level BPE, as in GPT-2."""
    if lists.split not in SPLITS:
        raise DataError(f"tokenizer: no pre-tokenizer {lists.split!r}{did_you_mean(lists.split, SPLITS)} known "
                        f"are {', '.join(SPLITS)}")  # fmt: skip
    ids = token_ids(lists)
    pairs = [parse_merge(merge, ids) for merge in lists.merges]
    inner = tokenizers.Tokenizer(models.BPE(ids, pairs, ignore_merges=lists.split in WHOLE_WORD_SPLITS))
    if lists.split in COMPOSED:
        inner.normalizer = normalizers.NFC()
    words = [pre_tokenizers.Split(Regex(each), "isolated") for each in SPLITS[lists.split]]
    spelt = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Sequence([*words, spelt]), decoders.ByteLevel()
    return inner


def parse_merge(merge: str, ids: dict[str, int]) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if left not in ids or right not in ids or left + right not in ids:
        raise DataError(f"tokenizer: the merge {merge[:40]!r} is not of two tokens, which together are a third")
    return left, right


def sentencepiece_tokenizer(lists: GgufVocab) -> tokenizers.Tokenizer:
    """BPE by scores, as in SentencePiece."""
    model = models.BPE(
        token_ids(lists), derive_merges(lists), byte_fallback=True, fuse_unk=True, unk_token=unknown_token(lists)
    )
    inner = tokenizers.Tokenizer(model)
    first = [normalizers.Prepend(BLANK)] if lists.blank else []
    inner.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", BLANK)])
    after = [decoders.Strip(" ", 1, 0)] if lists.blank else []
    inner.decoder = decoders.Sequence([decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), *after])
    return inner


def unknown_token(lists: GgufVocab) -> str | None:
    """The token for a character without a token or bytes."""
    return next((token for token, each in zip(lists.tokens, lists.types, strict=False) if each == UNKNOWN), None)


def derive_merges(lists: GgufVocab) -> list[tuple[str, str]]:
    """The possible pairs that merge into each token, most likely first."""
    ids, found = token_ids(lists), list[tuple[float, int, int, str, str]]()
    types = lists.types or [PLAIN] * len(lists.tokens)
    for piece, score, kind in zip(lists.tokens, lists.scores, types, strict=True):
        for cut in range(1, len(piece) if kind == PLAIN and len(piece) <= LONGEST else 0):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                found.append((-score, ids[left], ids[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


KINDS: dict[str, Callable[[GgufVocab], tokenizers.Tokenizer]] = {
    "gpt2": bpe_tokenizer,
    "llama": sentencepiece_tokenizer,
}
