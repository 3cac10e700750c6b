"""Special tokens: which ids are pad, bos, eos, mask, cls, sep; and encoding one or two texts between them. #: S073

    [CLS] how are you ? [SEP] fine , thanks ! [SEP]
      0    0   0   0  0   0    1   1   1    1   1      segment ids: which of the two texts

A tokenizer.json knows that a token is special, not what for: tokenizer_config.json says it, else the usual names do.
Its post-processor says what stands around a text; without one nothing is added. Truncation cuts the text, never these.
"""

from dataclasses import dataclass
from typing import Any

from tokenizers import Encoding, Tokenizer

from regard.config.errors import DataError

# A role, the name that transformers has for it, and the tokens that mean it.
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
    """The ids by role: as the card says, or else by name."""
    said = {role: token_content(card[key]) for role, (key, _) in SPECIAL_TOKEN_ROLES.items() if card.get(key)}
    tokens = said or added_tokens_by_name(spec)
    return {role: vocabulary[token] for role, token in tokens.items() if token in vocabulary} | unknown_tokens(spec)


def token_content(token: Any) -> str:
    """A card may describe a token ({"content": "<s>", "lstrip": false, ...}) instead of naming it."""
    return str(token["content"] if isinstance(token, dict) else token)


def added_tokens_by_name(spec: dict[str, Any]) -> dict[str, str]:
    special = {token["content"] for token in spec["added_tokens"] if token["special"]}
    found = {role: [name for name in names if name in special] for role, (_, names) in SPECIAL_TOKEN_ROLES.items()}
    return {role: names[0] for role, names in found.items() if names}


def unknown_tokens(spec: dict[str, Any]) -> dict[str, int]:
    """What the model itself says for words it does not know."""
    model = spec["model"]
    if model["type"] == "Unigram":
        return {} if model["unk_id"] is None else {"unk": model["unk_id"]}
    token = model.get("unk_token")
    return {"unk": model["vocab"][token]} if token in model["vocab"] else {}


def tokenizer_config_of(tokens: dict[str, str]) -> dict[str, Any]:
    """The tokenizer_config.json that makes `transformers.AutoTokenizer` know the roles."""
    plain = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    return plain | {SPECIAL_TOKEN_ROLES[role][0]: token for role, token in tokens.items()}


@dataclass(frozen=True)
class EncodedText:
    """The ids of a text or a pair with all around them, and for each id where it comes from.

    `segments` are what a model with segments is given. `owners` says of which text a token is, 0 or 1, and None of a
    special token; `spans` are the characters of that text from where to where it stands.
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
    """A text, or two, of at most so many tokens in all: of the longer text is cut first."""
    parts = encode_texts(inner, text, other)
    rooms = truncation_lengths([len(part.ids) for part in parts], tokens_left(inner, len(parts), longest))
    for part, share in zip(parts, rooms, strict=True):
        truncate_encoding(part, share)
    return add_special_tokens(inner, *parts)


def encode_texts(inner: Tokenizer, *texts: str | None) -> list[Encoding]:
    return [inner.encode(text, add_special_tokens=False) for text in texts if text is not None]


def tokens_left(inner: Tokenizer, texts: int, longest: int | None) -> int:
    """How many tokens are left for the texts themselves."""
    if longest is None:
        return 2**31
    left = longest - inner.num_special_tokens_to_add(texts == 2)
    if left < texts:
        raise DataError(f"length: {longest} tokens are too few for what stands around a text; allow more")
    return left


def truncation_lengths(lengths: list[int], left: int) -> list[int]:
    """How much of each text is kept; while the shorter one fits into half of the room, it is kept whole."""
    if sum(lengths) <= left:
        return lengths
    if len(lengths) == 1:
        return [left]
    short = min(*lengths, left // 2)
    return [short, left - short] if lengths[0] <= lengths[1] else [left - short, short]


def truncate_encoding(part: Encoding, length: int) -> None:
    """Keep so many tokens, and forget the rest.

    The library keeps what it cuts off, in pieces of the same length, and puts each piece of one text beside each of the
    other where it adds special tokens: gigabytes for two long texts. Cut again, all of them are gone but one token.
    """
    part.truncate(length + 1)
    part.truncate(length)


def add_special_tokens(inner: Tokenizer, first: Encoding, second: Encoding | None = None) -> EncodedText:
    made = inner.post_process(first, second, add_special_tokens=True)
    # in their order the texts' own tokens; the library forgets whose some are, and trims some spans a second time
    parts = [(number, span) for number, part in enumerate((first, second)) if part for span in part.offsets]
    own = iter(parts)
    told = [(None, (0, 0)) if special else next(own, (None, (0, 0))) for special in made.special_tokens_mask]
    owners, spans = [owner for owner, _ in told], [span for _, span in told]
    segments = [owner or 0 for owner in owners] if inner.post_processor is None else made.type_ids
    return EncodedText(made.ids, segments, owners, spans)
