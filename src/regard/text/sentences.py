"""Tokenizers of SentencePiece's files, each as the family that published them uses its pieces."""

import json
from collections.abc import Iterable
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from regard.text import spm
from regard.text.parts import Card, Texts, around

FOREIGN = "\ufdd0"  # no character: begins pieces of the other language, which no text of this one has
LANGUAGES = """ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM
    ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"""
MORE = """af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE
    ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"""


def unigram(
    scores: list[tuple[str, float]], unknown: int, charsmap: bytes, before: Iterable[Any] = ()
) -> tokenizers.Tokenizer:
    """The likeliest pieces of each word; a space is a ▁ before it."""
    inner = tokenizers.Tokenizer(models.Unigram(scores, unknown, False))
    steps = [*before, *([normalizers.Precompiled(charsmap)] if charsmap else [])]
    if steps:
        inner.normalizer = normalizers.Sequence(steps)
    space = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    inner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), space])
    inner.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    return inner


def t5(read: Texts, card: Card) -> tokenizers.Tokenizer:
    """Pieces, and after them the tokens that stand for what was taken out of a text, the last first."""
    told, holes = spm.parsed(read("spiece.model")), int(card.get("extra_ids", 100))
    if not 0 <= holes <= 10_000:
        raise ValueError(f"extra_ids is {holes}")
    extra = [f"<extra_id_{number}>" for number in reversed(range(holes))]
    inner = unigram([*told.scores, *((token, 0.0) for token in extra)], told.unknown, told.charsmap)
    inner.add_special_tokens(extra)
    return around(inner, card, "$A eos", "$A eos $B eos")


def albert(read: Texts, card: Card) -> tokenizers.Tokenizer:
    """Small letters without accents, and no piece that ends in a number and a comma."""
    told = spm.parsed(read("spiece.model"))
    scores = [(text, score - 100 * (text[-1:] == "," and text[-2:-1].isdigit())) for text, score in told.scores]
    before: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    before += [] if card.get("keep_accents", False) else [normalizers.NFKD(), normalizers.StripAccents()]
    before += [normalizers.Lowercase()] if card.get("do_lower_case", True) else []
    inner = unigram(scores, told.unknown, told.charsmap, before)
    return around(inner, card, "cls $A sep", "cls $A sep $B:1 sep:1")


def fairseq(read: Texts, card: Card, codes: Iterable[str] = ()) -> tokenizers.Tokenizer:
    """Four special tokens in the place of SentencePiece's three, and others after all pieces."""
    told = spm.parsed(read("sentencepiece.bpe.model"))
    first = [card[key] for key in ("bos_token", "pad_token", "eos_token", "unk_token")]
    own, last = [(token, 0.0) for token in first], [(token, 0.0) for token in (*codes, card["mask_token"])]
    inner = unigram([*own, *told.scores[3:], *last], 3, told.charsmap)
    inner.add_special_tokens(list(codes))
    return inner


def xlm_roberta(read: Texts, card: Card) -> tokenizers.Tokenizer:
    return around(fairseq(read, card), card, "bos $A eos", "bos $A eos eos $B eos")


def mbart(read: Texts, card: Card) -> tokenizers.Tokenizer:
    """A text ends with its language; in the later model of fifty languages it begins with it."""
    later = card.get("tokenizer_class", "").startswith("MBart50")
    inner = fairseq(read, card, [*LANGUAGES.split(), *(MORE.split() if later else ())])
    card = {**card, "language_token": card.get("src_lang") or "en_XX"}
    one, two = ("language $A eos", "language $A $B eos") if later else ("$A eos language", "$A $B eos language")
    return around(inner, card, one, two)


def llama(read: Texts, card: Card) -> tokenizers.Tokenizer:
    """Pairs of pieces are merged over the whole text, spaces and all; what is unknown is bytes."""
    told = spm.parsed(read("tokenizer.model"))
    if not told.bpe:
        raise ValueError("pieces of type 1 (unigram), where a Llama has 2 (bpe)")
    known = {text: id for id, (text, _) in enumerate(told.scores)}
    plain = {piece.text: known[piece.text] for piece in told.pieces if piece.kind == spm.NORMAL}
    inner = tokenizers.Tokenizer(models.BPE(
        known, spm.merges(plain), unk_token=told.pieces[told.unknown].text, fuse_unk=True, byte_fallback=told.fallback
    ))  # fmt: skip
    spaced = card.get("add_prefix_space") is not False
    scheme = ("always" if card.get("legacy") else "first") if spaced else "never"
    inner.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if spaced else steps)
    inner.add_special_tokens([piece.text for piece in told.pieces if piece.kind in (spm.CONTROL, spm.UNKNOWN)])
    inner.add_tokens([AddedToken(piece.text, normalized=False) for piece in told.pieces if piece.kind == spm.USERS])
    start, end = "bos " * (card.get("add_bos_token") is not False), " eos" * bool(card.get("add_eos_token"))
    return around(inner, card, f"{start}$A{end}", f"{start}$A{end} {start.replace(' ', ':1 ')}$B:1{end and end + ':1'}")


def marian(read: Texts, card: Card, side: str = "source") -> tokenizers.Tokenizer:
    """The pieces of one language under the ids of a vocabulary that two languages share.

    A piece that the vocabulary lacks is said in smaller ones. Where a text begins with the name of a language
    (>>fra<<), that is one token.
    """
    told, ids = spm.parsed(read(f"{side}.spm")), json.loads(read("vocab.json"))
    size, unknown = max(ids.values()) + 1, ids[card["unk_token"]]
    if size > 2 * len(ids) + 1024:
        raise ValueError(f"{len(ids):,} tokens with ids up to {size - 1:,}; expected ids from 0 on")
    own = {piece.text: piece.score for piece in told.pieces if piece.kind == spm.NORMAL}
    scores = [(f"{FOREIGN}{id}", 0.0) for id in range(size)]
    for token, id in ids.items():
        scores[id] = (token, own[token]) if token in own else (token if named(token, card) else FOREIGN + token, 0.0)
    inner = unigram(scores, unknown, told.charsmap)
    inner.decoder = decoders.Sequence([decoders.Replace(FOREIGN, ""), inner.decoder])
    inner.add_tokens([AddedToken(token, normalized=False) for token in ids if language(token)])
    return around(inner, card, "$A eos", "$A $B eos")


def language(token: str) -> bool:
    return token.startswith(">>") and token.endswith("<<")


def named(token: str, card: Card) -> bool:
    return language(token) or token in (card["unk_token"], card["eos_token"], card["pad_token"])
