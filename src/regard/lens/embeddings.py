"""Token embeddings compared: nearest tokens, analogies, closest pairs and a PCA map.

Vectors are compared by cosine after taking away their mean: a direction that all tokens share says nothing.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.config.errors import ConfigError
from regard.lens.attention_maps import unwrap_model


def token_vectors(model: Any) -> Tensor:  # (V, D)
    """The model's token vectors, on the CPU."""
    tokens = getattr(getattr(unwrap_model(model), "embed", None), "tokens", None)
    if not isinstance(tokens, nn.Embedding):
        raise ConfigError("embed: this model has no table of token vectors; give one that reads ids of a vocabulary")
    return tokens.weight.detach().float().cpu()


def unit_vectors(table: Tensor) -> Tensor:
    return F.normalize(table - table.mean(0), dim=-1)


def nearest_tokens(table: Tensor, ids: Tensor, count: int = 5) -> tuple[Tensor, Tensor]:
    """The `count` nearest tokens of each id and their cosines, nearest first; none is its own neighbour."""
    every = unit_vectors(table)
    near = every[ids] @ every.mT  # (ids, V)
    near[torch.arange(len(ids)), ids] = -2.0  # below any cosine
    found = near.topk(min(count, len(table) - 1))
    return found.indices, found.values


def closest_pairs(table: Tensor, count: int) -> list[tuple[int, int, float]]:
    """The pairs of tokens that are most alike, closest first: two places in the table and their cosine."""
    every = unit_vectors(table)
    near = (every @ every.mT).tril(-1) - 3 * torch.ones(len(table), len(table)).triu()  # each pair once
    found = near.flatten().topk(min(count, len(table) * (len(table) - 1) // 2))
    places = [divmod(int(place), len(table)) for place in found.indices]
    return [(j, i, float(cosine)) for (i, j), cosine in zip(places, found.values, strict=True)]


def solve_analogy(table: Tensor, a: int, b: int, c: int, count: int = 5) -> list[int]:  #: S076
    """Analogy: a is to b as c is to what? The tokens nearest to b - a + c, best first, and none of the three."""
    wanted = F.normalize(table[b] - table[a] + table[c], dim=-1)
    near = F.normalize(table, dim=-1) @ wanted
    near[torch.tensor([a, b, c])] = -2.0
    return near.topk(min(count, len(table) - 3)).indices.tolist()


def project_pca(table: Tensor) -> tuple[Tensor, float]:
    """(V, 2): the vectors on the plane that shows most of their spread, and how much of it that is (PCA)."""
    centred = table - table.mean(0)
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    s = F.pad(s, (0, max(0, 2 - len(s))))
    u = F.pad(u, (0, max(0, 2 - u.shape[1])))
    shown = float(s[:2].square().sum() / s.square().sum().clamp(min=1e-12))
    return u[:, :2] * s[:2], shown
