"""What a head may be for: six roles, each a question about where a head looks, answered by a number from 0 to 1.

    previous    the token just before        ·■···      same       earlier copies of this token
    itself      the token itself                        first      the first token, where nothing else calls
    delimiter   marks, spaces, line breaks              induction  what came after this token last time

A score is the share of attention that goes where the role says, averaged over the tokens that the role can apply to.
Its chance is the score of somebody who looks at everything visible alike; see `Score.lift`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# who asks and what stands there -> (B, N, N) True where the role says to look; rows that are empty do not count
Says = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Role:
    """A role by name: what such a head does, in a sentence, and where it looks."""

    name: str
    does: str
    says: Says
    repeats: bool = False  # asked of a sequence that stands there twice


@dataclass(frozen=True)
class Score:
    """The share of attention a role gets, beside the share that looking everywhere alike would give it."""

    value: float
    chance: float

    @property
    def lift(self) -> float:
        """How far from chance (0) to always (1); below zero where the head looks away."""
        return (self.value - self.chance) / max(1 - self.chance, 1e-6)


def offset(ids: Tensor) -> Tensor:  # (B, N, N) how far back the key stands
    place = torch.arange(ids.shape[1], device=ids.device)
    return (place[:, None] - place[None, :]).expand(len(ids), -1, -1)


def same(ids: Tensor) -> Tensor:
    return ids[:, :, None] == ids[:, None, :]


def after(ids: Tensor) -> Tensor:
    """True at keys that follow an earlier copy of the query."""
    followed = torch.zeros_like(same(ids))
    followed[:, :, 1:] = (same(ids) & (offset(ids) > 0))[:, :, :-1]
    return followed


def later(ids: Tensor) -> Tensor:
    """The queries that are not the first token: for the first there is only itself."""
    return torch.arange(ids.shape[1], device=ids.device)[None, :, None] > 0


ROLES: tuple[Role, ...] = (
    Role("previous", "looks at the token just before: what are we in the middle of?",
         lambda ids, marks: offset(ids) == 1),
    Role("itself", "looks at the token it stands on, and thinks about nothing else",
         lambda ids, marks: (offset(ids) == 0) & later(ids)),
    Role("same", "looks at earlier copies of the same token: where have I seen this?",
         lambda ids, marks: same(ids) & (offset(ids) > 0)),
    Role("first", "looks at the first token: a place to rest when nothing else matters",
         lambda ids, marks: (offset(ids) == torch.arange(ids.shape[1], device=ids.device)[:, None]) & later(ids)),
    Role("delimiter", "looks at spaces, line breaks and punctuation: where did this word, this line begin?",
         lambda ids, marks: marks[:, None, :].expand_as(same(ids)) & (offset(ids) >= 0) & later(ids)),
    Role("induction", "finds the last time this token came by and looks at what followed: the same again?",
         lambda ids, marks: after(ids), repeats=True),
)  # fmt: skip


def score(role: Role, pattern: Tensor, visible: Tensor, ids: Tensor, marks: Tensor) -> list[Score]:
    """The score of each head in a pattern (B, H, N, N); `visible` (B, N, N) is True where looking is allowed."""
    says = role.says(ids, marks) & visible
    rows = says.any(-1)  # (B, N) where the role can apply at all
    if not bool(rows.any()):
        return [Score(0.0, 0.0)] * pattern.shape[1]
    alike = visible / visible.sum(-1, keepdim=True).clamp(min=1)
    chance = float((alike * says).sum(-1)[rows].mean())
    values = (pattern * says[:, None]).sum(-1).transpose(1, 2)[rows].mean(0)  # (H,)
    return [Score(float(value), chance) for value in values]


def repeated(vocabulary: Tensor, length: int, batch: int = 4, seed: int = 0) -> Tensor:
    """(batch, 2·length) ids drawn at random and said twice: only who remembers can guess the second half.

    No id comes twice within a half, as long as the vocabulary allows (Olsson et al. 2022).
    """
    chance = torch.Generator().manual_seed(seed)
    rounds = -(-length // len(vocabulary))
    rows = [
        torch.cat([vocabulary[torch.randperm(len(vocabulary), generator=chance)] for _ in range(rounds)])[:length]
        for _ in range(batch)
    ]
    return torch.stack(rows).repeat(1, 2)
