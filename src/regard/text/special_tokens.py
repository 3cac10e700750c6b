"""Special tokens: which ids are pad, bos, eos, mask, cls, sep; and encoding one or two texts between them. #: S073

    [CLS] how are you ? [SEP] fine , thanks ! [SEP]
      0    0   0   0  0   0    1   1   1    1   1      segment ids: which of the two texts

A tokenizer.json marks a token as special but does not give its role: that is in tokenizer_config.json, or follows from
the usual names. Its post-processor adds special tokens around a text; without one nothing is added. Truncation shortens
the text, never these.
"""

from dataclasses import dataclass
from typing import Any

from tokenizers import Encoding, Tokenizer

from regard.config.errors import DataError

# Role, its name in transformers, and the usual tokens for it.
SPECIAL_TOKEN_ROLES = {
    "pad": ("pad_token", ("<pad>", "[PAD]", "<|pad|>", "<|padding|>")),
    "bos": ("bos_token", ("<start>", "<s>", "<bos>", "[BOS]", "<sos>", "<|startoftext|>", "<|begin_of_text|>")),
    "eos": ("eos_token", ("<end>", "</s>", "<eos>", "[EOS]", "<stop>", "<|endoftext|>", "<|end_of_text|>")),
    "mask": ("mask_token", ("<mask>", "[MASK]")),
    "cls": ("cls_token", ("<cls>", "[CLS]")),
    "sep": ("sep_token", ("<sep>", "[SEP]")),
    "unk": ("unk_token", ("<unk>", "[UNK]")),
}


def find_special_tokens(spec: dict[str, Any], vocabulary: dict[str, int], card: dict[str, Any]) -> dict[str, int]:
    """The ids by role, from the config, or else by name."""
    said = {role: token_content(card[key]) for role, (key, _) in SPECIAL_TOKEN_ROLES.items() if card.get(key)}
    tokens = said or added_tokens_by_name(spec)
    return {role: vocabulary[token] for role, token in tokens.items() if token in vocabulary} | unknown_tokens(spec)


def token_content(token: Any) -> str:
    """A token in a config, which may be an object ({"content": "<s>", "lstrip": false, ...})."""
    return str(token["content"] if isinstance(token, dict) else token)


def added_tokens_by_name(spec: dict[str, Any]) -> dict[str, str]:
    special = {token["content"] for token in spec["added_tokens"] if token["special"]}
    found = {role: [name for name in names if name in special] for role, (_, names) in SPECIAL_TOKEN_ROLES.items()}
    return {role: names[0] for role, names in found.items() if names}


def unknown_tokens(spec: dict[str, Any]) -> dict[str, int]:
    """The token of the model for unknown words."""
    model = spec["model"]
    if model["type"] == "Unigram":
        return {} if model["unk_id"] is None else {"unk": model["unk_id"]}
    token = model.get("unk_token")
    return {"unk": model["vocab"][token]} if token in model["vocab"] else {}


def tokenizer_config_of(tokens: dict[str, str]) -> dict[str, Any]:
    """The tokenizer_config.json with which `transformers.AutoTokenizer` knows the roles."""
    plain = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    return plain | {SPECIAL_TOKEN_ROLES[role][0]: token for role, token in tokens.items()}


@dataclass(frozen=True)
class EncodedText:
    """The ids of a text or a pair with special tokens, and the origin of each id.

    `segments` are segment ids. `owners` is the text of each token, 0 or 1, and None for a special token; `spans` are
    its characters in that text.
    """

    ids: list[int]
    segments: list[int]
    owners: list[int | None]
    spans: list[tuple[int, int]]

    def __len__(self) -> int:
        return len(self.ids)


def encode_with_specials(
    inner: Tokenizer, text: str, other: str | None = None, longest: int | None = None
) -> EncodedText:
    """Encode a text, or two, in at most so many tokens: the longer text is truncated first."""
    parts = encode_texts(inner, text, other)
    rooms = truncation_lengths([len(part.ids) for part in parts], tokens_left(inner, len(parts), longest))
    for part, share in zip(parts, rooms, strict=True):
        truncate_encoding(part, share)
    return add_special_tokens(inner, *parts)


def encode_texts(inner: Tokenizer, *texts: str | None) -> list[Encoding]:
    return [inner.encode(text, add_special_tokens=False) for text in texts if text is not None]


def tokens_left(inner: Tokenizer, texts: int, longest: int | None) -> int:
    """The number of tokens available for the texts themselves."""
    if longest is None:
        return 2**31
    left = longest - inner.num_special_tokens_to_add(texts == 2)
    if left < texts:
        raise DataError(f"length: {longest} tokens are too few for the special tokens of a text; allow more")
    return left


def truncation_lengths(lengths: list[int], left: int) -> list[int]:
    """The kept length of each text; the shorter one is kept whole if it fits into half of the room."""
    if sum(lengths) <= left:
        return lengths
    if len(lengths) == 1:
        return [left]
    short = min(*lengths, left // 2)
    return [short, left - short] if lengths[0] <= lengths[1] else [left - short, short]


def truncate_encoding(part: Encoding, length: int) -> None:
    """Truncate an encoding, and drop the rest.

    The library keeps the overflow in parts of the same length, and combines each part of one text with each of the
    other when it adds special tokens: gigabytes for two long texts. A second truncation reduces the overflow to one
    token.
    """
    part.truncate(length + 1)
    part.truncate(length)


def add_special_tokens(inner: Tokenizer, first: Encoding, second: Encoding | None = None) -> EncodedText:
    made = inner.post_process(first, second, add_special_tokens=True)
    # the text's own tokens in order; the library loses the origin of some, and trims some spans a second time
    parts = [(number, span) for number, part in enumerate((first, second)) if part for span in part.offsets]
    own = iter(parts)
    told = [(None, (0, 0)) if special else next(own, (None, (0, 0))) for special in made.special_tokens_mask]
    owners, spans = [owner for owner, _ in told], [span for _, span in told]
    segments = [owner or 0 for owner in owners] if inner.post_processor is None else made.type_ids
    return EncodedText(made.ids, segments, owners, spans)
