"""Head roles: six patterns of attention, each scored from 0 to 1 for a head.

    previous    the token just before        ·■···      same       other copies of this token
    itself      the token itself                        first      the first token, where nothing else calls
    delimiter   marks, spaces, line breaks              induction  what came after this token last time

A score is the share of attention that goes where the role says, averaged over the tokens that the role can apply to.
Its chance is the score of uniform attention over everything visible; see `RoleScore.lift`. A role is not scored where
it has no meaning: an image has no delimiters, and cross-attention to another text has no previous token.
"""

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.lens.attention_maps import AttentionView


@dataclass(frozen=True)
class HeadRole:
    """A role by name: what such a head does, in a sentence; where it looks; and what must be there to be asked."""

    name: str
    does: str
    says: Callable[[AttentionView], Tensor]  # (B, Q, K) True where to look; rows that are empty do not count
    needs: frozenset[str]
    repeats: bool = False  # asked of a sequence that stands there twice


@dataclass(frozen=True)
class RoleScore:
    """The share of attention a role gets, beside the share that looking everywhere alike would give it."""

    value: float
    chance: float

    @property
    def lift(self) -> float:
        """How far from chance (0) to always (1); below zero where the head looks away."""
        return (self.value - self.chance) / max(1 - self.chance, 1e-6)


def available_facts(view: AttentionView) -> set[str]:
    """What there is to ask about: each other, a line of tokens, a first among them, ids, delimiters, a past."""
    facts = {
        "own": view.own,
        "line": not view.k.image,
        "first": not view.k.image or bool(view.k.at.isnan().any()),  # an image has one if a learned token precedes it
        "ids": view.own and view.k.ids is not None,
        "marks": view.marks is not None,
        "past": view.own and view.causal,
    }
    return {name for name, there in facts.items() if there}


def key_offset(view: AttentionView) -> Tensor:  # (B, Q, K)
    """How far back the key stands."""
    return view.q.order[:, :, None] - view.k.order[:, None, :]


def same_token(view: AttentionView) -> Tensor:
    assert view.q.ids is not None and view.k.ids is not None
    return view.q.ids[:, :, None] == view.k.ids[:, None, :]


def first_key(view: AttentionView) -> Tensor:
    """The first key, for all but itself."""
    begins = (view.k.order == 0)[:, None, :].expand_as(view.visible)
    return begins & (key_offset(view) != 0) if view.own else begins


def delimiter_keys(view: AttentionView) -> Tensor:
    assert view.marks is not None
    return view.marks[:, None, :].expand_as(view.visible)


def keys_after_copy(view: AttentionView) -> Tensor:
    """The keys that follow an earlier copy of the query."""
    copies = same_token(view) & (key_offset(view) > 0)
    return torch.nn.functional.pad(copies[:, :, :-1], (1, 0))


ROLES: tuple[HeadRole, ...] = (
    HeadRole("previous", "looks at the token just before: what are we in the middle of?",
         lambda view: key_offset(view) == 1, frozenset({"own", "line"})),
    HeadRole("itself", "looks at the token it stands on, and thinks about nothing else",
         lambda view: key_offset(view) == 0, frozenset({"own"})),
    HeadRole("same", "looks at other copies of the same token: where have I seen this?",
         lambda view: same_token(view) & (key_offset(view) != 0), frozenset({"own", "ids"})),
    HeadRole("first", "looks at the first token: a place to rest when nothing else matters",
         first_key, frozenset({"first"})),
    HeadRole("delimiter", "looks at spaces, line breaks and punctuation: where did this word, this line begin?",
         delimiter_keys, frozenset({"marks"})),
    HeadRole("induction", "finds the last time this token came by and looks at what followed: the same again?",
         keys_after_copy, frozenset({"own", "ids", "past"}), repeats=True),
)  # fmt: skip


def score_role(role: HeadRole, view: AttentionView) -> list[RoleScore] | None:
    """The score of each head; nothing where the role applies to no token."""
    says = role.says(view) & view.visible
    rows = says.any(-1) & view.choice
    if not bool(rows.any()):
        return None
    alike = view.visible / view.visible.sum(-1, keepdim=True).clamp(min=1)
    chance = float((alike * says).sum(-1)[rows].mean())
    values = (view.pattern * says[:, None]).sum(-1).transpose(1, 2)[rows].mean(0)  # (H,)
    return [RoleScore(float(value), chance) for value in values]


def repeated_ids(vocabulary: Tensor, length: int, batch: int = 4, seed: int = 0) -> Tensor:
    """(batch, 2·length) ids drawn at random and repeated once: only a head that looks back can predict the second half.

    No id comes twice within a half, as long as the vocabulary allows (Olsson et al. 2022).
    """
    if length < 1 or batch < 1 or not len(vocabulary):
        raise ConfigError(f"length {length}, batch {batch}, {len(vocabulary)} ids: give at least one of each")
    chance = torch.Generator().manual_seed(seed)
    rounds = -(-length // len(vocabulary))
    rows = [
        torch.cat([vocabulary[torch.randperm(len(vocabulary), generator=chance)] for _ in range(rounds)])[:length]
        for _ in range(batch)
    ]
    return torch.stack(rows).repeat(1, 2)


def delimiter_ids(tokenizer: Any) -> frozenset[int]:
    """The ids of tokens of nothing but spaces, line breaks and punctuation, and of those that part texts."""
    marks = {ident for ident in range(len(tokenizer)) if is_delimiter(tokenizer.decode([ident]))}
    return frozenset(marks | {tokenizer.special_ids[role] for role in ("sep", "eos") if role in tokenizer.special_ids})


def is_delimiter(text: str) -> bool:
    return text != "" and all(char.isspace() or unicodedata.category(char).startswith("P") for char in text)
