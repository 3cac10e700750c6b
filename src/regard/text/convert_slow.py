"""Slow tokenizer conversion: published tokenizers without a tokenizer.json, built from older files.

    vocab.txt                            WordPiece           BERT, DistilBERT, ELECTRA
    vocab.json, merges.txt               BPE over bytes      GPT-2, GPT-Neo, RoBERTa, BART, CLIP; over letters: GPT
    spiece.model, tokenizer.model, ...   SentencePiece       T5, ALBERT, XLM-R, mBART, Llama
    source.spm, target.spm, vocab.json   two of these        Marian

The files list the tokens and not how a text is split into them; that is here, by family, as in `transformers` and with
the same ids. `tokenizer_class` in tokenizer_config.json decides, or else model_type in config.json.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from regard.text import sentencepiece_file
from regard.text.special_tokens import token_content

TokenizerConfig = dict[str, Any]
FileReader = Callable[[str], bytes]  # returns the contents of a file of the folder


def convert_wordpiece(read: FileReader, card: TokenizerConfig) -> tokenizers.Tokenizer:
    """WordPiece (BERT): a word is split into its longest tokens from the left, ## before those inside."""
    lines = read("vocab.txt").decode().replace("\r\n", "\n").split("\n")
    vocabulary = {line: id for id, line in enumerate(lines[:-1] if not lines[-1] else lines)}
    inner = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=card["unk_token"]))
    inner.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=bool(card.get("tokenize_chinese_chars", True)),
        strip_accents=card.get("strip_accents"), lowercase=bool(card.get("do_lower_case", True)),
    )  # fmt: skip
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return with_template(inner, card, "cls $A sep", "cls $A sep $B:1 sep:1")


def convert_bpe(read: FileReader, **rest: Any) -> tokenizers.Tokenizer:
    """BPE: a vocabulary and its merges, most frequent first."""
    vocabulary = json.loads(read("vocab.json"))
    lines = [line.split() for line in read("merges.txt").decode().split("\n") if not line.startswith("#version")]
    merged = [(one, two) for one, two in filter(None, lines)]
    return tokenizers.Tokenizer(models.BPE(vocabulary, merged, **rest))


def convert_gpt2(read: FileReader, card: TokenizerConfig) -> tokenizers.Tokenizer:
    """Byte-level BPE (GPT-2), for any text; no special tokens are added."""
    inner, spaced = convert_bpe(read), bool(card.get("add_prefix_space", False))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=spaced), decoders.ByteLevel()
    return inner


def convert_roberta(read: FileReader, card: TokenizerConfig) -> tokenizers.Tokenizer:
    """Byte-level BPE between <s> and </s> (RoBERTa, BART)."""
    inner, spaced = convert_gpt2(read, card), bool(card.get("add_prefix_space", False))
    sep, cls = token_with_id(inner, card["sep_token"]), token_with_id(inner, card["cls_token"])
    inner.post_processor = processors.RobertaProcessing(sep, cls, True, spaced)
    return inner


def convert_clip(read: FileReader, card: TokenizerConfig) -> tokenizers.Tokenizer:
    """Lower case BPE with an end-of-word mark in the last token (CLIP)."""
    inner = convert_bpe(read, end_of_word_suffix="</w>", unk_token=card["unk_token"])
    steps = [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    inner.normalizer = normalizers.Sequence(steps)
    words = Regex(r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")
    inner.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(words, behavior="removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])  # fmt: skip
    last = decoders.Replace(Regex("</w>$"), "")
    inner.decoder = decoders.Sequence([decoders.ByteLevel(), last, decoders.Replace("</w>", " ")])
    end, start = token_with_id(inner, card["eos_token"]), token_with_id(inner, card["bos_token"])
    inner.post_processor = processors.RobertaProcessing(end, start, False, False)
    return inner


def convert_openai(read: FileReader, card: TokenizerConfig) -> tokenizers.Tokenizer:
    """BPE over letters (the first GPT), with BERT's words."""
    inner = convert_bpe(read, end_of_word_suffix="</w>", unk_token=card["unk_token"])
    inner.normalizer, inner.decoder = normalizers.BertNormalizer(lowercase=True), decoders.BPEDecoder(suffix="</w>")
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return inner


# ---------------------------------------------------------------- post-processors


def with_template(inner: tokenizers.Tokenizer, card: TokenizerConfig, one: str, two: str) -> tokenizers.Tokenizer:
    """Add a post-processor, with special tokens by role: "cls $A sep" is "[CLS] $A [SEP]"."""
    tokens = {role: card.get(f"{role}_token") for role in ("cls", "sep", "bos", "eos", "language")}
    used = {word.partition(":")[0] for word in two.split()} & tokens.keys()

    def fill_template(template: str) -> list[str]:
        words = (word.partition(":") for word in template.split())
        return [f"{tokens.get(word, word)}:{segment or 0}" for word, _, segment in words]

    ids = [token_with_id(inner, str(tokens[role])) for role in sorted(used)]
    inner.post_processor = processors.TemplateProcessing(
        single=fill_template(one), pair=fill_template(two), special_tokens=ids
    )
    return inner


def token_with_id(inner: tokenizers.Tokenizer, token: str) -> tuple[str, int]:
    """A token with its id, as a post-processor needs it."""
    if (id := inner.token_to_id(token)) is None:
        raise ValueError(f"{token!r} surrounds every text, and the vocabulary has no such token")
    return token, id


FOREIGN = "\ufdd0"  # a noncharacter: starts tokens of the other language, which no text contains
LANGUAGES = """ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM
    ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"""
MORE = """af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE
    ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"""


def unigram_tokenizer(
    scores: list[tuple[str, float]], unknown: int, charsmap: bytes, before: Iterable[Any] = ()
) -> tokenizers.Tokenizer:
    """Unigram: the most likely tokens of each word; a space is a ▁ before it."""
    inner = tokenizers.Tokenizer(models.Unigram(scores, unknown, False))
    steps = [*before, *([normalizers.Precompiled(charsmap)] if charsmap else [])]
    if steps:
        inner.normalizer = normalizers.Sequence(steps)
    space = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    inner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), space])
    inner.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    return inner


def convert_t5(read: FileReader, card: TokenizerConfig) -> tokenizers.Tokenizer:
    """T5: Unigram tokens, then sentinel tokens, the last one first."""
    told, holes = sentencepiece_file.parse_sentencepiece(read("spiece.model")), int(card.get("extra_ids", 100))
    if not 0 <= holes <= 10_000:
        raise ValueError(f"extra_ids is {holes}")
    extra = [f"<extra_id_{number}>" for number in reversed(range(holes))]
    inner = unigram_tokenizer([*told.scores, *((token, 0.0) for token in extra)], told.unknown, told.charsmap)
    inner.add_special_tokens(extra)
    return with_template(inner, card, "$A eos", "$A eos $B eos")


def convert_albert(read: FileReader, card: TokenizerConfig) -> tokenizers.Tokenizer:
    """ALBERT: lower case without accents; no token ends in a digit and a comma."""
    told = sentencepiece_file.parse_sentencepiece(read("spiece.model"))
    scores = [(text, score - 100 * (text[-1:] == "," and text[-2:-1].isdigit())) for text, score in told.scores]
    before: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    before += [] if card.get("keep_accents", False) else [normalizers.NFKD(), normalizers.StripAccents()]
    before += [normalizers.Lowercase()] if card.get("do_lower_case", True) else []
    inner = unigram_tokenizer(scores, told.unknown, told.charsmap, before)
    return with_template(inner, card, "cls $A sep", "cls $A sep $B:1 sep:1")


def convert_fairseq(read: FileReader, card: TokenizerConfig, codes: Iterable[str] = ()) -> tokenizers.Tokenizer:
    """fairseq (XLM-R): four special tokens instead of SentencePiece's three, and others after all tokens."""
    told = sentencepiece_file.parse_sentencepiece(read("sentencepiece.bpe.model"))
    first = [card[key] for key in ("bos_token", "pad_token", "eos_token", "unk_token")]
    own, last = [(token, 0.0) for token in first], [(token, 0.0) for token in (*codes, card["mask_token"])]
    inner = unigram_tokenizer([*own, *told.scores[3:], *last], 3, told.charsmap)
    inner.add_special_tokens(list(codes))
    return inner


def convert_xlm_roberta(read: FileReader, card: TokenizerConfig) -> tokenizers.Tokenizer:
    return with_template(convert_fairseq(read, card), card, "bos $A eos", "bos $A eos eos $B eos")


def convert_mbart(read: FileReader, card: TokenizerConfig) -> tokenizers.Tokenizer:
    """mBART: a text ends with its language; in mBART-50 it starts with it."""
    later = card.get("tokenizer_class", "").startswith("MBart50")
    inner = convert_fairseq(read, card, [*LANGUAGES.split(), *(MORE.split() if later else ())])
    card = {**card, "language_token": card.get("src_lang") or "en_XX"}
    one, two = ("language $A eos", "language $A $B eos") if later else ("$A eos language", "$A $B eos language")
    return with_template(inner, card, one, two)


def convert_llama(read: FileReader, card: TokenizerConfig) -> tokenizers.Tokenizer:
    """Llama: BPE merges over the whole text, spaces included; unknown characters are bytes."""
    told = sentencepiece_file.parse_sentencepiece(read("tokenizer.model"))
    if not told.bpe:
        raise ValueError("pieces of type 1 (unigram), where a Llama has 2 (bpe)")
    known = {text: id for id, (text, _) in enumerate(told.scores)}
    plain = {piece.text: known[piece.text] for piece in told.pieces if piece.kind == sentencepiece_file.NORMAL}
    inner = tokenizers.Tokenizer(
        models.BPE(
            known,
            sentencepiece_file.merges_from_ranks(plain),
            unk_token=told.pieces[told.unknown].text,
            fuse_unk=True,
            byte_fallback=told.fallback,
        )
    )
    spaced = card.get("add_prefix_space") is not False
    scheme = ("always" if card.get("legacy") else "first") if spaced else "never"
    inner.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if spaced else steps)
    inner.add_special_tokens(
        [piece.text for piece in told.pieces if piece.kind in (sentencepiece_file.CONTROL, sentencepiece_file.UNKNOWN)]
    )
    inner.add_tokens(
        [AddedToken(piece.text, normalized=False) for piece in told.pieces if piece.kind == sentencepiece_file.USERS]
    )
    start, end = "bos " * (card.get("add_bos_token") is not False), " eos" * bool(card.get("add_eos_token"))
    return with_template(
        inner, card, f"{start}$A{end}", f"{start}$A{end} {start.replace(' ', ':1 ')}$B:1{end and end + ':1'}"
    )


def convert_marian(read: FileReader, card: TokenizerConfig, side: str = "source") -> tokenizers.Tokenizer:
    """Marian: the SentencePiece tokens of one language, with the ids of a vocabulary shared by two.

    A token that the vocabulary lacks is split further. A language code at the start of a text (>>fra<<) is one token.
    """
    told, ids = sentencepiece_file.parse_sentencepiece(read(f"{side}.spm")), json.loads(read("vocab.json"))
    size, unknown = max(ids.values()) + 1, ids[card["unk_token"]]
    if size > 2 * len(ids) + 1024:
        raise ValueError(f"{len(ids):,} tokens with ids up to {size - 1:,}; expected ids from 0 on")
    own = {piece.text: piece.score for piece in told.pieces if piece.kind == sentencepiece_file.NORMAL}
    scores = [(f"{FOREIGN}{id}", 0.0) for id in range(size)]
    for token, id in ids.items():
        scores[id] = (
            (token, own[token]) if token in own else (token if is_named_token(token, card) else FOREIGN + token, 0.0)
        )
    inner = unigram_tokenizer(scores, unknown, told.charsmap)
    inner.decoder = decoders.Sequence([decoders.Replace(FOREIGN, ""), inner.decoder])
    inner.add_tokens([AddedToken(token, normalized=False) for token in ids if is_language_code(token)])
    return with_template(inner, card, "$A eos", "$A $B eos")


def is_language_code(token: str) -> bool:
    return token.startswith(">>") and token.endswith("<<")


def is_named_token(token: str, card: TokenizerConfig) -> bool:
    return is_language_code(token) or token in (card["unk_token"], card["eos_token"], card["pad_token"])


BERT = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
ROBERTA = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>",
           "pad_token": "<pad>", "mask_token": "<mask>"}  # fmt: skip
END = "<|endoftext|>"

SLOW_FILES = {
    convert_wordpiece: ("vocab.txt",),
    convert_gpt2: ("vocab.json", "merges.txt"),
    convert_roberta: ("vocab.json", "merges.txt"),
    convert_clip: ("vocab.json", "merges.txt"),
    convert_openai: ("vocab.json", "merges.txt"),
    convert_t5: ("spiece.model",),
    convert_albert: ("spiece.model",),
    convert_xlm_roberta: ("sentencepiece.bpe.model",),
    convert_mbart: ("sentencepiece.bpe.model",),
    convert_llama: ("tokenizer.model",),
    convert_marian: ("source.spm", "target.spm", "vocab.json"),
}
# By tokenizer class of transformers and by model type; with the default special tokens of each.
MAKERS: dict[str, tuple[Callable[..., tokenizers.Tokenizer], dict[str, str]]] = {
    "bert": (convert_wordpiece, BERT),
    "distilbert": (convert_wordpiece, BERT),
    "electra": (convert_wordpiece, BERT),
    "gpt2": (convert_gpt2, dict.fromkeys(("unk_token", "bos_token", "eos_token"), END)),
    "roberta": (convert_roberta, ROBERTA),
    "bart": (convert_roberta, ROBERTA),
    "openaigpt": (convert_openai, {"unk_token": "<unk>"}),
    "clip": (
        convert_clip,
        dict.fromkeys(("unk_token", "eos_token", "pad_token"), END) | {"bos_token": "<|startoftext|>"},
    ),
    "t5": (convert_t5, {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}),
    "albert": (
        convert_albert,
        BERT | {"bos_token": "[CLS]", "eos_token": "[SEP]", "unk_token": "<unk>", "pad_token": "<pad>"},
    ),
    "xlmroberta": (convert_xlm_roberta, ROBERTA),
    "mbart": (convert_mbart, ROBERTA),
    "mbart50": (convert_mbart, ROBERTA),
    "llama": (convert_llama, {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}),
    "marian": (convert_marian, {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}),
}
ALIKE = {"gptneo": "gpt2", "mistral": "llama", "cliptextmodel": "clip"}  # model types that use another's tokenizer


def slow_kind(card: TokenizerConfig, settings: TokenizerConfig) -> str | None:
    """The kind that the folder's files name."""
    for word in (card.get("tokenizer_class"), settings.get("tokenizer_class"), settings.get("model_type")):
        name = str(word or "").removesuffix("Fast").removesuffix("Tokenizer").lower().replace("_", "").replace("-", "")
        if (name := ALIKE.get(name, name)) in MAKERS:
            return name
    return None


def slow_files(kind: str) -> tuple[str, ...]:
    return SLOW_FILES[MAKERS[kind][0]]


def convert_slow_tokenizer(
    kind: str, read: FileReader, card: TokenizerConfig, side: str = "source"
) -> tuple[tokenizers.Tokenizer, TokenizerConfig]:
    """Build the tokenizer of a kind, and its config with all special tokens."""
    make, usual = MAKERS[kind]
    said = {key: token_content(value) for key, value in card.items() if key.endswith("_token") and value}
    card = {**usual, **card, **said}
    inner = make(read, card, **({"side": "target" if side == "target" else "source"} if make is convert_marian else {}))
    known = {token for key in usual if inner.token_to_id(token := card[key]) is not None}
    mask = card.get("mask_token") if make is not convert_wordpiece else None  # it includes the space before
    inner.add_special_tokens([AddedToken(token, lstrip=token == mask, normalized=False) for token in sorted(known)])
    add_extra_tokens(inner, card)
    return inner, {key: value for key, value in card.items() if key not in usual or value in known}


def add_extra_tokens(inner: tokenizers.Tokenizer, card: TokenizerConfig) -> None:
    """Add tokens that were added to a vocabulary later, with the folder's ids."""
    said = card.get("added_tokens_decoder") or {}
    later = {int(id): token for id, token in said.items()}
    for id, token in sorted(later.items()):
        inner.add_tokens([AddedToken(token_content(token), special=bool(token["special"]), normalized=False)])
        if inner.token_to_id(token_content(token)) != id:
            raise ValueError(f"the token {token_content(token)!r} was added as {id}, and there is no place for it")
