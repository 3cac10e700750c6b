"""Framing: a text, or two, between the special tokens that a model was trained to see around them.

    [CLS] how are you ? [SEP] fine , thanks ! [SEP]
      0    0   0   0  0   0    1   1   1    1   1      which of two texts, as segments count them

A tokenizer.json says in its post-processor what stands around; one that says nothing adds nothing. What is too long is
cut, and what is around it stays.
"""

from dataclasses import dataclass

from tokenizers import Encoding, Tokenizer

from regard.config import DataError


@dataclass(frozen=True)
class Framed:
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


def framed(inner: Tokenizer, text: str, other: str | None = None, longest: int | None = None) -> Framed:
    """A text, or two, of at most so many tokens in all: of the longer text is cut first."""
    parts = spoken(inner, text, other)
    rooms = shares([len(part.ids) for part in parts], room(inner, len(parts), longest))
    for part, share in zip(parts, rooms, strict=True):
        part.truncate(share)
    return around(inner, *parts)


def spoken(inner: Tokenizer, *texts: str | None) -> list[Encoding]:
    return [inner.encode(text, add_special_tokens=False) for text in texts if text is not None]


def room(inner: Tokenizer, texts: int, longest: int | None) -> int:
    """How many tokens are left for the texts themselves."""
    if longest is None:
        return 2**31
    left = longest - inner.num_special_tokens_to_add(texts == 2)
    if left < texts:
        raise DataError(f"length: {longest} tokens are too few for what stands around a text; allow more")
    return left


def shares(lengths: list[int], left: int) -> list[int]:
    """How much of each text is kept; while the shorter one fits into half of the room, it is kept whole."""
    if sum(lengths) <= left:
        return lengths
    if len(lengths) == 1:
        return [left]
    short = min(*lengths, left // 2)
    return [short, left - short] if lengths[0] <= lengths[1] else [left - short, short]


def around(inner: Tokenizer, first: Encoding, second: Encoding | None = None) -> Framed:
    made = inner.post_process(first, second, add_special_tokens=True)
    # in their order the texts' own tokens; the library forgets whose some are, and trims some spans a second time
    parts = [(number, span) for number, part in enumerate((first, second)) if part for span in part.offsets]
    own = iter(parts)
    told = [(None, (0, 0)) if special else next(own, (None, (0, 0))) for special in made.special_tokens_mask]
    owners, spans = [owner for owner, _ in told], [span for _, span in told]
    segments = [owner or 0 for owner in owners] if inner.post_processor is None else made.type_ids
    return Framed(made.ids, segments, owners, spans)
