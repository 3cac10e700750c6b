"""What a model costs before it runs: parameters, arithmetic, memory, time; and the model explained as a table."""

from regard.measure.activations import Activations, activations, held
from regard.measure.calibrate import calibrate
from regard.measure.complexity import complexity
from regard.measure.cost import Count, Estimate, count, estimate
from regard.measure.devices import Device, device, devices
from regard.measure.explain import explain, plans
from regard.measure.flops import Flops, flops, rule
from regard.measure.ghost import ghost, tellable
from regard.measure.growth import growth, share
from regard.measure.machine import Machine, machine
from regard.measure.memory import Memory, cache, memory
from regard.measure.parameters import parameters
from regard.measure.predict import Prediction, predict, process
from regard.measure.spend import Terms

__all__ = [
    "Activations", "Count", "Device", "Estimate", "Flops", "Machine", "Memory", "Prediction", "Terms", "activations",
    "cache", "calibrate", "complexity", "count", "device", "devices", "estimate", "explain", "flops", "ghost", "growth",
    "held", "machine", "memory", "parameters", "plans", "predict", "process", "rule", "share",
    "tellable",
]  # fmt: skip
