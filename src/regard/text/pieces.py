"""Published tokenizers without a tokenizer.json, made from the files that came before it.

    vocab.txt                            WordPiece           BERT, DistilBERT, ELECTRA
    vocab.json, merges.txt               pairs of bytes      GPT-2, GPT-Neo, RoBERTa, BART, CLIP; of letters: GPT
    spiece.model, tokenizer.model, ...   SentencePiece       T5, ALBERT, XLM-R, mBART, Llama
    source.spm, target.spm, vocab.json   two of them         Marian

Which it is goes by `tokenizer_class` in tokenizer_config.json, or else by the model_type in config.json. Ids are those
of `transformers`.
"""

from collections.abc import Callable

import tokenizers
from tokenizers import AddedToken

from regard.text.parts import Card, Texts, clip, gpt2, openai, roberta, wordpiece
from regard.text.roles import content
from regard.text.sentences import albert, llama, marian, mbart, t5, xlm_roberta

BERT = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
ROBERTA = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>",
           "pad_token": "<pad>", "mask_token": "<mask>"}  # fmt: skip
END = "<|endoftext|>"

FILES = {
    wordpiece: ("vocab.txt",), gpt2: ("vocab.json", "merges.txt"), roberta: ("vocab.json", "merges.txt"),
    clip: ("vocab.json", "merges.txt"), openai: ("vocab.json", "merges.txt"), t5: ("spiece.model",),
    albert: ("spiece.model",), xlm_roberta: ("sentencepiece.bpe.model",), mbart: ("sentencepiece.bpe.model",),
    llama: ("tokenizer.model",), marian: ("source.spm", "target.spm", "vocab.json"),
}  # fmt: skip
# By the class of transformers and by the kind of model; with what each calls its special tokens unless said.
MAKERS: dict[str, tuple[Callable[..., tokenizers.Tokenizer], dict[str, str]]] = {
    "bert": (wordpiece, BERT), "distilbert": (wordpiece, BERT), "electra": (wordpiece, BERT),
    "gpt2": (gpt2, dict.fromkeys(("unk_token", "bos_token", "eos_token"), END)), "roberta": (roberta, ROBERTA),
    "bart": (roberta, ROBERTA), "openaigpt": (openai, {"unk_token": "<unk>"}),
    "clip": (clip, dict.fromkeys(("unk_token", "eos_token", "pad_token"), END) | {"bos_token": "<|startoftext|>"}),
    "t5": (t5, {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}),
    "albert": (albert, BERT | {"bos_token": "[CLS]", "eos_token": "[SEP]", "unk_token": "<unk>", "pad_token": "<pad>"}),
    "xlmroberta": (xlm_roberta, ROBERTA), "mbart": (mbart, ROBERTA), "mbart50": (mbart, ROBERTA),
    "llama": (llama, {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}),
    "marian": (marian, {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}),
}  # fmt: skip
ALIKE = {"gptneo": "gpt2", "mistral": "llama", "cliptextmodel": "clip"}  # models whose tokenizer is another's


def kind_of(card: Card, settings: Card) -> str | None:
    """Which of them the folder's own words name."""
    for word in (card.get("tokenizer_class"), settings.get("tokenizer_class"), settings.get("model_type")):
        name = str(word or "").removesuffix("Fast").removesuffix("Tokenizer").lower().replace("_", "").replace("-", "")
        if (name := ALIKE.get(name, name)) in MAKERS:
            return name
    return None


def files_of(kind: str) -> tuple[str, ...]:
    return FILES[MAKERS[kind][0]]


def made(kind: str, read: Texts, card: Card, side: str = "source") -> tuple[tokenizers.Tokenizer, Card]:
    """The tokenizer of a kind, and its card with every special token that it has."""
    make, usual = MAKERS[kind]
    said = {key: content(value) for key, value in card.items() if key.endswith("_token") and value}
    card = {**usual, **card, **said}
    inner = make(read, card, **({"side": "target" if side == "target" else "source"} if make is marian else {}))
    known = {token for key in usual if inner.token_to_id(token := card[key]) is not None}
    mask = card.get("mask_token") if make is not wordpiece else None  # it takes the space before it along
    inner.add_special_tokens([AddedToken(token, lstrip=token == mask, normalized=False) for token in sorted(known)])
    add(inner, card)
    return inner, {key: value for key, value in card.items() if key not in usual or value in known}


def add(inner: tokenizers.Tokenizer, card: Card) -> None:
    """Tokens that were added to a vocabulary later, each under the id that the folder says."""
    said = card.get("added_tokens_decoder") or {}
    later = {int(id): token for id, token in said.items()}
    for id, token in sorted(later.items()):
        inner.add_tokens([AddedToken(content(token), special=bool(token["special"]), normalized=False)])
        if inner.token_to_id(content(token)) != id:
            raise ValueError(f"the token {content(token)!r} was added as {id}, and there is no place for it")
