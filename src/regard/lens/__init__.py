"""Looking inside a trained model: what its heads do, and which of its tokens are alike."""

from regard.lens.embeddings import analogy, closest, neighbours, plane, vectors
from regard.lens.heads import Head, heads, patterns, refusal, similarity
from regard.lens.roles import ROLES, Role, repeated

__all__ = [
    "ROLES", "Head", "Role", "analogy", "closest", "heads", "neighbours", "patterns", "plane", "refusal", "repeated",
    "similarity", "vectors",
]  # fmt: skip
