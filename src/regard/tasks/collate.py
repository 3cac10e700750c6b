"""Collation of text rows: special tokens, padding, truncation and word boundaries.

    BERT     [CLS] a [SEP] b [SEP]        RoBERTa   <s> a </s></s> b </s>        T5   a </s> b </s>

A published tokenizer.json has a post-processor with its special tokens. Without one, cls and sep are used, or start and
end, or none around a single text.

Word boundaries are found from the ids alone:

    WordPiece   un ##afford ##able cat       a token with ## continues the word before
    others      ␣un afford able ␣cat !       a token that begins with a letter continues one that ends with a letter
"""

import copy
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.errors import ConfigError, DataError
from regard.text.post_processor import add_post_processor
from regard.text.special_tokens import SPECIAL_TOKEN_ROLES
from regard.text.token_bytes import WORDPIECE_PREFIX
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_files import tokenizer_errors

SENTINEL = "<extra_id_{}>"  # T5's sentinel tokens


@dataclass(frozen=True)
class SpecialTokenFrame:
    """The special tokens before, between and after texts."""

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)

    def __call__(self, first: Sequence[int], second: Sequence[int] | None = None) -> list[int]:
        middle = [] if second is None else [*self.between, *second]
        return [*self.before, *first, *middle, *self.after]

    def segments(self, first: Sequence[int], second: Sequence[int] | None = None) -> list[int]:
        """Segment ids: 0 up to the tokens between the texts, 1 from the second text on."""
        if second is None:
            return [0] * (len(first) + len(self))
        return [0] * (len(self.before) + len(first) + len(self.between)) + [1] * (len(second) + len(self.after))


@dataclass(frozen=True, eq=False)
class TaskSpecialTokens:
    """The special token ids of a tokenizer that a task uses."""

    size: int = 0
    roles: dict[str, int] = field(default_factory=dict)
    single: SpecialTokenFrame = SpecialTokenFrame()
    pair: SpecialTokenFrame = SpecialTokenFrame()
    sentinels: tuple[int, ...] = ()
    said: bool = False  # the tokenizer.json defines the special tokens around a text
    special: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))  # (V,) True for special tokens

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "TaskSpecialTokens":
        special = torch.zeros(len(tokenizer), dtype=torch.bool)
        special[list(tokenizer.specials | set(tokenizer.special_ids.values()))] = True
        single, pair, said = frames_of_tokenizer(tokenizer)
        return cls(len(tokenizer), dict(tokenizer.special_ids), single, pair, sentinel_ids(tokenizer), said, special)

    def __getitem__(self, role: str) -> int:
        if role not in self.roles:
            raise ConfigError(f"tokenizer: it has no {role} token; add one with regard.tasks.add_task_tokens")
        return self.roles[role]

    @property
    def ordinary(self) -> Tensor:
        """The ids of ordinary tokens."""
        return (~self.special).nonzero()[:, 0]

    @property
    def fill(self) -> int:
        """The id for padding: pad, or any other, since `real` marks the tokens."""
        return self.roles.get("pad", 0)

    def begin(self, name: str = "auto") -> int:
        """The token before a target."""
        if name != "auto":
            return self[name]
        return next((self.roles[role] for role in ("bos", "pad", "eos") if role in self.roles), -1)


def frames_of_tokenizer(tokenizer: Tokenizer) -> tuple[SpecialTokenFrame, SpecialTokenFrame, bool]:
    """Special tokens around one text and around two: from tokenizer.json (True), or else by roles."""
    one, two = tokenizer.inner.encode("a"), tokenizer.inner.encode("a", "a")
    if None in one.sequence_ids and 0 in one.sequence_ids:
        return frame_from_ids(one.ids, one.sequence_ids), frame_from_ids(two.ids, two.sequence_ids), True
    roles = tokenizer.special_ids
    first, last = ("cls", "sep") if "sep" in roles else ("bos", "eos")
    before, after = (tuple(roles[role] for role in (name,) if role in roles) for name in (first, last))
    return SpecialTokenFrame(before, (), after), SpecialTokenFrame(before, after, after), False


def with_special_template(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with a post-processor that adds a task's special tokens; unchanged if it has one."""
    single, pair, said = frames_of_tokenizer(tokenizer)
    return (
        tokenizer
        if said or not len(single)
        else add_post_processor(tokenizer, single.before, pair.between, single.after)
    )


def frame_from_ids(ids: Sequence[int], owners: Sequence[int | None]) -> SpecialTokenFrame:
    """Special tokens as a frame, by the text that owns each id; special tokens have no owner."""
    texts = [place for place, owner in enumerate(owners) if owner is not None]
    inside = tuple(id for id, owner in zip(ids, owners, strict=True) if owner is None)
    before, after = tuple(ids[: texts[0]]), tuple(ids[texts[-1] + 1 :])
    return SpecialTokenFrame(before, inside[len(before) : len(inside) - len(after)], after)


def sentinel_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """<extra_id_0>, <extra_id_1>, ... as far as the vocabulary has them."""
    found: list[int] = []
    while (id := tokenizer.inner.token_to_id(SENTINEL.format(len(found)))) is not None:
        found.append(id)
    return tuple(found)


def with_special_tokens(tokenizer: Tokenizer, roles: Iterable[str] = (), marks: int = 0) -> Tokenizer:
    """The tokenizer with missing special tokens appended: by role, and so many sentinels.

    Returned unchanged if nothing is missing. The encoding of texts does not change.
    """
    missing = [role for role in roles if role not in tokenizer.special_ids]
    names = [SENTINEL.format(place) for place in range(marks)] if marks and not sentinel_ids(tokenizer) else []
    if not missing and not names:
        return tokenizer
    tokens = {role: SPECIAL_TOKEN_ROLES[role][1][0] for role in missing}
    inner = copy.deepcopy(tokenizer.inner)
    inner.add_special_tokens([*tokens.values(), *names])
    card = {SPECIAL_TOKEN_ROLES[role][0]: token for role, token in tokens.items()} if tokenizer.card else {}
    return Tokenizer(inner, tokenizer.card | card, "parse" if tokenizer.parses_specials else "plain")


TaskExample = dict[str, Any]  # str -> list[int] | int | float: made by a task from a record
TaskBatch = dict[str, Tensor]  # made by a task from examples: model inputs by name, and labels


@dataclass(frozen=True)
class RowPadding:
    """Padding of rows to at most `length` tokens, on one `side`, to a multiple of `multiple`.

    A small set of lengths (multiple = 64, say) avoids compiling a model for each length.
    """

    length: int = 512
    side: Literal["right", "left"] = "right"
    multiple: int = 1

    def __post_init__(self) -> None:
        if self.length < 4 or self.multiple < 1:
            raise ValueError(f"rows of length {self.length} in multiples of {self.multiple}: at least 4 and 1")

    def width(self, lengths: Sequence[int]) -> int:
        """The padded width of rows of these lengths."""
        longest = max(lengths)
        return max(longest, min(self.length, -(-longest // self.multiple) * self.multiple))

    def pad(self, rows: Sequence[Sequence[int]], fill: int) -> Tensor:  # (B, N)
        there = self.real_mask(rows)
        ids = array("q", chain.from_iterable(rows))
        table = torch.full(there.shape, fill)
        table[there] = torch.frombuffer(ids, dtype=torch.long) if ids else torch.empty(0, dtype=torch.long)
        return table

    def real_mask(self, rows: Sequence[Sequence[int]]) -> Tensor:  # (B, N)
        """True where a row has a token."""
        lengths = [len(row) for row in rows]
        places, count = torch.arange(self.width(lengths)), torch.tensor(lengths)[:, None]
        return places >= len(places) - count if self.side == "left" else places < count

    def real(self, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """{"real": (B, N)}, True for tokens; empty if every row has full length, which is faster."""
        if all(len(row) == self.length for row in rows):
            return {}
        return {"real": self.real_mask(rows)}


def truncate_pair(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """Truncate two texts to `room` tokens together: the longer one is shortened first, from its end."""
    half = room // 2
    if len(first) + len(second) <= room:
        return first, second
    if len(first) <= half:
        return first, second[: room - len(first)]
    if len(second) <= half:
        return first[: room - len(second)], second
    return first[: room - half], second[:half]


@dataclass(frozen=True, eq=False)
class WordBoundaries:
    """Word boundaries by token id: whether it may continue a word (`head`), and whether a word may continue after it
    (`tail`)."""

    head: Tensor  # (V,)
    tail: Tensor  # (V,)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "WordBoundaries":
        tokens = [tokenizer.token(id) for id in range(len(tokenizer))]
        plain = torch.tensor([id not in tokenizer.specials for id in range(len(tokens))])
        if any(token.startswith(WORDPIECE_PREFIX) for token in tokens):
            return cls(torch.tensor([token.startswith(WORDPIECE_PREFIX) for token in tokens]) & plain, plain)
        spelt = tokenizer.spelling or [token.replace("▁", " ").encode() for token in tokens]
        head = torch.tensor([bool(piece) and is_word_byte(piece[0]) for piece in spelt])
        return cls(head & plain, torch.tensor([bool(piece) and is_word_byte(piece[-1]) for piece in spelt]) & plain)

    def words(self, ids: Tensor) -> Tensor:  # (B, N) -> (B, N)
        """The word index of each token, from 0 in each row."""
        goes_on = self.head[ids[:, 1:]] & self.tail[ids[:, :-1]]
        return F.pad((~goes_on).cumsum(-1), (1, 0))


def is_word_byte(byte: int) -> bool:
    """Whether a byte is part of a word: letters, digits, and all non-ASCII bytes."""
    return byte >= 0x80 or chr(byte).isalnum()


def tokenize_with_offsets(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """The ids of a text, and the character span of each."""
    with tokenizer_errors("the text cannot be encoded"):
        found = tokenizer.encoder(text).encode(text, add_special_tokens=False)
    return found.ids, found.offsets


def tokens_covering(offsets: list[tuple[int, int]], start: int, stop: int) -> tuple[int, int]:
    """The first and last token that overlap characters `start` to `stop`."""
    held = [place for place, (first, last) in enumerate(offsets) if first < stop and last > start]
    if not held:
        raise DataError(f"characters {start} to {stop} became no token")
    return held[0], held[-1]
