"""What a model costs before it runs: parameters, arithmetic, memory, time; and the model explained as a table."""

from regard.measure.cost import Estimate, Prediction, estimate, predict
from regard.measure.explain import explain, plans
from regard.measure.flops import Flops, flops, rule
from regard.measure.ghost import ghost
from regard.measure.memory import Memory, activations, memory
from regard.measure.parameters import parameters

__all__ = [
    "Estimate", "Flops", "Memory", "Prediction", "activations", "estimate", "explain", "flops", "ghost", "memory",
    "parameters", "plans", "predict", "rule",
]  # fmt: skip
