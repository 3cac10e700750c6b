"""Pair tables: what a pair of tokens is to a metric, for every query and key of a batch.

The attention of a head is summed over pairs with such a table as weights, so one matrix product measures a metric for
all heads at once. Layers that share their mask share the tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.lens.attention_maps import AttentionView
from regard.lens.roles import ROLES, HeadRole, available_facts

POSITIONS = 128  # pairs of positions below this are counted for the positional share
TEXT_ROLES = tuple(role for role in ROLES if not role.repeats)
REPEAT_ROLES = tuple(role for role in ROLES if role.repeats)
# The order of the columns in every accumulator; the roles have the names of `regard.lens.roles`.
METRICS = ("entropy", "relative", "distance", "sink", *(role.name for role in ROLES))


@dataclass(frozen=True, eq=False)
class PairTables:
    """Tables of one batch and mask, in float64; `names` are the metrics that have a meaning there.

    `pairs` has a column for each role, then the distance and whether there is one; `rows` the queries that count.
    """

    names: tuple[str, ...]
    pairs: Tensor  # (B, Q·K, R)
    counts: Tensor  # (B, roles) how many queries a role applies to
    rows: Tensor  # (B, Q) queries that see a token
    choice: Tensor  # (B, Q) queries that see more than one
    most: Tensor  # (B, Q) the entropy of looking at everything visible alike, in bits
    visible: Tensor  # (P, P) how many rows of the batch have this pair of positions, among queries with a choice
    own: bool


def pair_tables(view: AttentionView, roles: Sequence[HeadRole]) -> PairTables:
    """The tables of a view, whose pattern is not read."""
    names, columns, counts = list[str](), list[Tensor](), list[Tensor]()
    for role in roles:
        if not available_facts(view) >= role.needs:  # of sets
            continue
        says = role.says(view) & view.visible
        queries = says.any(-1) & view.choice
        names.append(role.name)
        columns.append(says & queries[..., None])
        counts.append(queries.sum(1))
    stacked = [column.double() for column in columns]
    if view.own and roles is not REPEAT_ROLES:
        far = (view.q.at[:, :, None] - view.k.at[:, None]).double().square().sum(-1).sqrt()  # (B, Q, K)
        there = (view.rows[..., None] & view.visible & ~far.isnan()).double()
        stacked += [far.nan_to_num() * there, there]
        names.append("distance")
    pairs = torch.stack([column.flatten(1) for column in stacked], -1) if stacked else view.visible.new_zeros(0)
    both = (view.visible & view.choice[..., None])[:, :POSITIONS, :POSITIONS]
    none = view.rows.new_zeros(len(view.rows), 0)
    return PairTables(
        tuple(names), pairs, torch.stack(counts, -1).double() if counts else none.double(), view.rows.double(),
        view.choice.double(), view.visible.sum(-1).clamp(min=2).double().log2(), both.sum(0).double(), view.own,
    )  # fmt: skip
