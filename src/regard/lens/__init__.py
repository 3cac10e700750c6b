"""Interpretability: logit lens, attribution, patching, circuits, neurons, probes, steering, head roles, ablation."""

from regard.lens.ablation import AblationRow, ablate, ablate_all, idle_heads, noise_threshold, prunable_heads
from regard.lens.attention_maps import AttentionView, attention_patterns, attention_views, why_not_watchable
from regard.lens.attribution.agreement_result import ExplanationAgreement
from regard.lens.attribution.direct_attribution import attribute_logit
from regard.lens.attribution.explanation_agreement import compare_explanations
from regard.lens.attribution.input_attribution import ATTRIBUTION_METHODS, InputAttribution, attribute_inputs
from regard.lens.attribution.logit_parts import LogitAttribution, LogitPart
from regard.lens.attribution.rollout import attention_rollout
from regard.lens.circuits.attention_circuits import CompositionScores, composition_scores, ov_matrix, qk_matrix
from regard.lens.circuits.factored_matrix import CircuitMatrix
from regard.lens.circuits.induction import InductionCircuit, InductionHead, find_induction_circuit
from regard.lens.circuits.score_terms import ScoreTerms, decompose_scores
from regard.lens.circuits.vocabulary_circuits import WordEffects, copying_score, ov_words
from regard.lens.embeddings import closest_pairs, nearest_tokens, project_pca, solve_analogy, token_vectors
from regard.lens.features.neuron_words import NeuronMatches, NeuronWords, neuron_words, search_neurons
from regard.lens.features.neurons import NeuronExamples, TokenExample, find_top_examples
from regard.lens.features.probes import ProbeResult, ProbeSweep, fit_probe, fit_probes
from regard.lens.features.steering import SteeringVector, steering, steering_vector
from regard.lens.features.word_in_context import (
    ContextComparison,
    ContextSimilarity,
    compare_contexts,
    context_similarity,
)
from regard.lens.gradient_reach import gradient_decay, jacobian_norms, receptive_field
from regard.lens.head_census.census_result import Census
from regard.lens.head_census.run_census import census
from regard.lens.heads import HeadSummary, head_similarity, most_similar_heads, summarize_heads
from regard.lens.patching.activation_patching import PatchGrid, PatchingResult, patch_activations
from regard.lens.patching.attribution_patching import AttributionPatchingResult, PatchingComparison, attribute_patches
from regard.lens.patching.causal_tracing import CausalTrace, EmbeddingNoise, causal_trace
from regard.lens.patching.logit_metrics import LogitMetric, logit_difference, probability, target_loss
from regard.lens.patching.path_patching import PathPatchingResult, patch_paths
from regard.lens.prompt import Prompt, read_prompt
from regard.lens.prompt_scan import Finding, ScanResult, scan
from regard.lens.pruning import prune_heads
from regard.lens.roles import ROLES, HeadRole, delimiter_ids, repeated_ids
from regard.lens.stream.logit_lens import LogitLens, logit_lens
from regard.lens.stream.tuned_lens import TunedLens, tune_lens

__all__ = [
    "ATTRIBUTION_METHODS",
    "AblationRow",
    "AttentionView",
    "AttributionPatchingResult",
    "CausalTrace",
    "Census",
    "CircuitMatrix",
    "CompositionScores",
    "ContextComparison",
    "ContextSimilarity",
    "EmbeddingNoise",
    "ExplanationAgreement",
    "Finding",
    "HeadRole",
    "HeadSummary",
    "InductionCircuit",
    "InductionHead",
    "InputAttribution",
    "LogitAttribution",
    "LogitLens",
    "LogitMetric",
    "LogitPart",
    "NeuronExamples",
    "NeuronMatches",
    "NeuronWords",
    "PatchGrid",
    "PatchingComparison",
    "PatchingResult",
    "PathPatchingResult",
    "ProbeResult",
    "ProbeSweep",
    "Prompt",
    "ROLES",
    "ScanResult",
    "ScoreTerms",
    "SteeringVector",
    "TokenExample",
    "TunedLens",
    "WordEffects",
    "ablate",
    "ablate_all",
    "attention_patterns",
    "attention_rollout",
    "attention_views",
    "attribute_inputs",
    "attribute_logit",
    "attribute_patches",
    "causal_trace",
    "census",
    "closest_pairs",
    "compare_contexts",
    "compare_explanations",
    "composition_scores",
    "context_similarity",
    "copying_score",
    "decompose_scores",
    "delimiter_ids",
    "find_induction_circuit",
    "find_top_examples",
    "fit_probe",
    "fit_probes",
    "gradient_decay",
    "head_similarity",
    "idle_heads",
    "jacobian_norms",
    "logit_difference",
    "logit_lens",
    "most_similar_heads",
    "nearest_tokens",
    "neuron_words",
    "noise_threshold",
    "ov_matrix",
    "ov_words",
    "patch_activations",
    "patch_paths",
    "probability",
    "project_pca",
    "prunable_heads",
    "prune_heads",
    "qk_matrix",
    "read_prompt",
    "receptive_field",
    "repeated_ids",
    "scan",
    "search_neurons",
    "solve_analogy",
    "steering",
    "steering_vector",
    "summarize_heads",
    "target_loss",
    "token_vectors",
    "tune_lens",
    "why_not_watchable",
]
