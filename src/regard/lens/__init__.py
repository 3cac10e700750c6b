"""Interpretability: what attention heads do, ablation and pruning, receptive fields, nearest embeddings,
neurons, probes, words in context, steering vectors."""

from regard.lens.ablation import AblationRow, ablate, ablate_all, idle_heads, noise_threshold, prunable_heads
from regard.lens.attention_maps import AttentionView, attention_patterns, attention_views, why_not_watchable
from regard.lens.embeddings import closest_pairs, nearest_tokens, project_pca, solve_analogy, token_vectors
from regard.lens.gradient_reach import gradient_decay, jacobian_norms, receptive_field
from regard.lens.heads import HeadSummary, head_similarity, most_similar_heads, summarize_heads
from regard.lens.neuron_words import NeuronMatches, NeuronWords, neuron_words, search_neurons
from regard.lens.neurons import NeuronExamples, TokenExample, find_top_examples
from regard.lens.probes import ProbeResult, ProbeSweep, fit_probe, fit_probes
from regard.lens.pruning import prune_heads
from regard.lens.roles import ROLES, HeadRole, delimiter_ids, repeated_ids
from regard.lens.steering import SteeringVector, steering, steering_vector
from regard.lens.word_in_context import ContextComparison, ContextSimilarity, compare_contexts, context_similarity

__all__ = [
    "AblationRow",
    "AttentionView",
    "ContextComparison",
    "ContextSimilarity",
    "HeadRole",
    "HeadSummary",
    "NeuronExamples",
    "NeuronMatches",
    "NeuronWords",
    "ProbeResult",
    "ProbeSweep",
    "ROLES",
    "SteeringVector",
    "TokenExample",
    "ablate",
    "ablate_all",
    "attention_patterns",
    "attention_views",
    "closest_pairs",
    "compare_contexts",
    "context_similarity",
    "delimiter_ids",
    "find_top_examples",
    "fit_probe",
    "fit_probes",
    "gradient_decay",
    "head_similarity",
    "idle_heads",
    "jacobian_norms",
    "most_similar_heads",
    "nearest_tokens",
    "neuron_words",
    "noise_threshold",
    "project_pca",
    "prunable_heads",
    "prune_heads",
    "receptive_field",
    "repeated_ids",
    "search_neurons",
    "solve_analogy",
    "steering",
    "steering_vector",
    "summarize_heads",
    "token_vectors",
    "why_not_watchable",
]
