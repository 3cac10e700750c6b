"""Special tokens of an objective: which ids they have, how they stand around a text, and how a tokenizer gets them.

    BERT     [CLS] a [SEP] b [SEP]        RoBERTa   <s> a </s></s> b </s>        T5   a </s> b </s>

A published tokenizer.json says itself what stands around its texts. One that says nothing has cls and sep, or start
and end, or nothing around a single text.
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.config import ConfigError
from regard.text import Tokenizer
from regard.text.post_processor import add_template
from regard.text.roles import ROLES

SENTINEL = "<extra_id_{}>"  # T5's name for them


@dataclass(frozen=True)
class Around:
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
        """0 up to what stands between, 1 from the second text on."""
        if second is None:
            return [0] * (len(first) + len(self))
        return [0] * (len(self.before) + len(first) + len(self.between)) + [1] * (len(second) + len(self.after))


@dataclass(frozen=True, eq=False)
class Specials:
    """The numbers of a tokenizer that an objective needs after the text has become ids."""

    size: int = 0
    roles: dict[str, int] = field(default_factory=dict)
    single: Around = Around()
    pair: Around = Around()
    sentinels: tuple[int, ...] = ()
    said: bool = False  # the tokenizer.json itself says what stands around a text
    special: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))  # (V,) True where no text is said

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Specials":
        special = torch.zeros(len(tokenizer), dtype=torch.bool)
        special[list(tokenizer.specials | set(tokenizer.roles.values()))] = True
        single, pair, said = around(tokenizer)
        return cls(len(tokenizer), dict(tokenizer.roles), single, pair, sentinels(tokenizer), said, special)

    def __getitem__(self, role: str) -> int:
        if role not in self.roles:
            raise ConfigError(f"text: this tokenizer has no {role} token; add one with regard.tasks.equip")
        return self.roles[role]

    @property
    def ordinary(self) -> Tensor:
        """The ids that say text."""
        return (~self.special).nonzero()[:, 0]

    @property
    def fill(self) -> int:
        """What stands where nothing is: the pad id, or any; a batch says which tokens are real."""
        return self.roles.get("pad", 0)

    def begin(self, said: str = "auto") -> int:
        """The token before a target."""
        if said != "auto":
            return self[said]
        return next((self.roles[role] for role in ("start", "pad", "end") if role in self.roles), -1)


def around(tokenizer: Tokenizer) -> tuple[Around, Around, bool]:
    """What stands around one text, and around two: as the tokenizer.json says (True), or else by roles."""
    one, two = tokenizer.inner.encode("a"), tokenizer.inner.encode("a", "a")
    if None in one.sequence_ids and 0 in one.sequence_ids:
        return written(one.ids, one.sequence_ids), written(two.ids, two.sequence_ids), True
    roles = tokenizer.roles
    first, last = ("cls", "sep") if "sep" in roles else ("start", "end")
    before, after = (tuple(roles[role] for role in (name,) if role in roles) for name in (first, last))
    return Around(before, (), after), Around(before, after, after), False


def with_template(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with a tokenizer.json that says what an objective puts around texts; itself if it says it."""
    single, pair, said = around(tokenizer)
    return tokenizer if said or not len(single) else add_template(tokenizer, single.before, pair.between, single.after)


def written(ids: Sequence[int], owners: Sequence[int | None]) -> Around:
    """The special tokens among ids, by the texts that they stand around; a special token has no owner."""
    texts = [place for place, owner in enumerate(owners) if owner is not None]
    inside = tuple(id for id, owner in zip(ids, owners, strict=True) if owner is None)
    before, after = tuple(ids[: texts[0]]), tuple(ids[texts[-1] + 1 :])
    return Around(before, inside[len(before) : len(inside) - len(after)], after)


def sentinels(tokenizer: Tokenizer) -> tuple[int, ...]:
    """<extra_id_0>, <extra_id_1>, ... as far as the vocabulary has them."""
    found: list[int] = []
    while (id := tokenizer.inner.token_to_id(SENTINEL.format(len(found)))) is not None:
        found.append(id)
    return tuple(found)


def equipped(tokenizer: Tokenizer, roles: Iterable[str] = (), marks: int = 0) -> Tokenizer:
    """The tokenizer, with the special tokens that it lacks after its last id: by role, and so many sentinels.

    Itself if it lacks none. What text becomes stays the same.
    """
    missing = [role for role in roles if role not in tokenizer.roles]
    names = [SENTINEL.format(place) for place in range(marks)] if marks and not sentinels(tokenizer) else []
    if not missing and not names:
        return tokenizer
    tokens = {role: ROLES[role][1][0] for role in missing}
    inner = copy.deepcopy(tokenizer.inner)
    inner.add_special_tokens([*tokens.values(), *names])
    card = {ROLES[role][0]: token for role, token in tokens.items()} if tokenizer.card else {}
    return Tokenizer(inner, tokenizer.card | card, "parse" if tokenizer.parses_specials else "plain")
