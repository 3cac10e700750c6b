"""Roles: which token pads, starts, ends, masks. #: S073

A tokenizer.json knows that a token is special, not what for; a tokenizer_config.json says it, and without one the names
that people use say it well enough.
"""

from typing import Any

# A role, the name that transformers has for it, and the tokens that mean it.
ROLES = {
    "pad": ("pad_token", ("<pad>", "[PAD]", "<|pad|>", "<|padding|>")),
    "start": ("bos_token", ("<start>", "<s>", "<bos>", "[BOS]", "<sos>", "<|startoftext|>", "<|begin_of_text|>")),
    "end": ("eos_token", ("<end>", "</s>", "<eos>", "[EOS]", "<stop>", "<|endoftext|>", "<|end_of_text|>")),
    "mask": ("mask_token", ("<mask>", "[MASK]")),
    "cls": ("cls_token", ("<cls>", "[CLS]")),
    "sep": ("sep_token", ("<sep>", "[SEP]")),
    "unk": ("unk_token", ("<unk>", "[UNK]")),
}


def roles_of(spec: dict[str, Any], vocabulary: dict[str, int], card: dict[str, Any]) -> dict[str, int]:
    """The ids by role: as the card says, or else by name."""
    said = {role: content(card[key]) for role, (key, _) in ROLES.items() if card.get(key)}
    tokens = said or named(spec)
    return {role: vocabulary[token] for role, token in tokens.items() if token in vocabulary} | unknown(spec)


def content(token: Any) -> str:
    """A card may describe a token ({"content": "<s>", "lstrip": false, ...}) instead of naming it."""
    return str(token["content"] if isinstance(token, dict) else token)


def named(spec: dict[str, Any]) -> dict[str, str]:
    special = {token["content"] for token in spec["added_tokens"] if token["special"]}
    found = {role: [name for name in names if name in special] for role, (_, names) in ROLES.items()}
    return {role: names[0] for role, names in found.items() if names}


def unknown(spec: dict[str, Any]) -> dict[str, int]:
    """What the model itself says for words it does not know."""
    model = spec["model"]
    if model["type"] == "Unigram":
        return {} if model["unk_id"] is None else {"unk": model["unk_id"]}
    token = model.get("unk_token")
    return {"unk": model["vocab"][token]} if token in model["vocab"] else {}


def card_of(tokens: dict[str, str]) -> dict[str, Any]:
    """The tokenizer_config.json that makes `transformers.AutoTokenizer` know the roles."""
    plain = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    return plain | {ROLES[role][0]: token for role, token in tokens.items()}
