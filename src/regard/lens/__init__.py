"""Looking inside a trained model: what its heads do, what it is without them, and which of its tokens are alike."""

from regard.lens.ablate import Ablated, ablation, idle, spare, threshold, without
from regard.lens.distance import decay, pulls, reached
from regard.lens.embeddings import analogy, closest, neighbours, plane, vectors
from regard.lens.heads import Head, heads, similarity, twins
from regard.lens.prune import prune
from regard.lens.roles import ROLES, Role, delimiters, repeated
from regard.lens.views import View, patterns, refusal, views

__all__ = [
    "ROLES", "Ablated", "Head", "Role", "View", "ablation", "analogy", "closest", "delimiters", "heads", "idle",
    "neighbours", "patterns", "plane", "prune", "refusal", "repeated", "similarity", "spare", "threshold", "twins",
    "decay", "pulls", "reached", "vectors", "views", "without",
]  # fmt: skip
