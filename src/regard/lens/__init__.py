"""Interpretability: what attention heads do, ablation and pruning, receptive fields, nearest embeddings."""

from regard.lens.ablation import AblationRow, ablate, ablate_all, idle_heads, noise_threshold, prunable_heads
from regard.lens.attention_maps import AttentionView, attention_patterns, attention_views, why_not_watchable
from regard.lens.embeddings import closest_pairs, nearest_tokens, project_pca, solve_analogy, token_vectors
from regard.lens.explanation_agreement import ExplanationAgreement, compare_explanations
from regard.lens.gradient_reach import gradient_decay, jacobian_norms, receptive_field
from regard.lens.heads import HeadSummary, head_similarity, most_similar_heads, summarize_heads
from regard.lens.input_attribution import METHODS as ATTRIBUTION_METHODS
from regard.lens.input_attribution import InputAttribution, attribute_inputs
from regard.lens.prompt import Prompt, read_prompt
from regard.lens.pruning import prune_heads
from regard.lens.roles import ROLES, HeadRole, delimiter_ids, repeated_ids
from regard.lens.rollout import attention_rollout

__all__ = [
    "ATTRIBUTION_METHODS",
    "AblationRow",
    "AttentionView",
    "ExplanationAgreement",
    "HeadRole",
    "HeadSummary",
    "InputAttribution",
    "Prompt",
    "ROLES",
    "ablate",
    "ablate_all",
    "attention_patterns",
    "attention_rollout",
    "attention_views",
    "attribute_inputs",
    "closest_pairs",
    "compare_explanations",
    "delimiter_ids",
    "gradient_decay",
    "head_similarity",
    "idle_heads",
    "jacobian_norms",
    "most_similar_heads",
    "nearest_tokens",
    "noise_threshold",
    "project_pca",
    "prunable_heads",
    "prune_heads",
    "read_prompt",
    "receptive_field",
    "repeated_ids",
    "solve_analogy",
    "summarize_heads",
    "token_vectors",
    "why_not_watchable",
]
