"""Interpretability: what attention heads do, ablation and pruning, receptive fields, nearest embeddings."""

from regard.lens.ablation import AblationRow, ablate, ablate_all, idle_heads, noise_threshold, prunable_heads
from regard.lens.attention_maps import AttentionView, attention_patterns, attention_views, why_not_watchable
from regard.lens.attribution_patching import AttributionPatchingResult, PatchingComparison, attribute_patches
from regard.lens.causal_tracing import CausalTrace, EmbeddingNoise, causal_trace
from regard.lens.embeddings import closest_pairs, nearest_tokens, project_pca, solve_analogy, token_vectors
from regard.lens.gradient_reach import gradient_decay, jacobian_norms, receptive_field
from regard.lens.heads import HeadSummary, head_similarity, most_similar_heads, summarize_heads
from regard.lens.logit_metrics import LogitMetric, logit_difference, probability, target_loss
from regard.lens.patching import PatchGrid, PatchingResult, patch_activations
from regard.lens.path_patching import PathPatchingResult, patch_paths
from regard.lens.pruning import prune_heads
from regard.lens.roles import ROLES, HeadRole, delimiter_ids, repeated_ids

__all__ = [
    "AblationRow",
    "AttentionView",
    "AttributionPatchingResult",
    "CausalTrace",
    "EmbeddingNoise",
    "HeadRole",
    "HeadSummary",
    "LogitMetric",
    "PatchGrid",
    "PatchingComparison",
    "PatchingResult",
    "PathPatchingResult",
    "ROLES",
    "ablate",
    "ablate_all",
    "attention_patterns",
    "attention_views",
    "attribute_patches",
    "causal_trace",
    "closest_pairs",
    "delimiter_ids",
    "gradient_decay",
    "head_similarity",
    "idle_heads",
    "jacobian_norms",
    "logit_difference",
    "most_similar_heads",
    "nearest_tokens",
    "noise_threshold",
    "patch_activations",
    "patch_paths",
    "probability",
    "project_pca",
    "prunable_heads",
    "prune_heads",
    "receptive_field",
    "repeated_ids",
    "solve_analogy",
    "summarize_heads",
    "target_loss",
    "token_vectors",
    "why_not_watchable",
]
