"""Cost before a model runs: parameters, FLOPs, memory and time; and the explanation of a model as a table."""

from regard.measure.activations import ActivationMemory, activation_bytes, activation_memory
from regard.measure.calibration import CalibratedMachine, calibrate, load_calibration
from regard.measure.complexity import attention_growth, attention_share, layer_complexities
from regard.measure.estimate import ModelEstimate, ParameterEstimate, estimate_model, estimate_parameters
from regard.measure.explain import explain_model, kernel_plans
from regard.measure.fake_model import build_fake_model, can_fake, count_parameters
from regard.measure.flops import FlopCount, count_flops, rule_of_thumb
from regard.measure.hardware import CostTerms, HardwareDevice, find_device, known_devices
from regard.measure.memory import TrainingMemory, cache_memory, training_memory
from regard.measure.predict import StepPrediction, predict_step, process_bytes

__all__ = [
    "ActivationMemory",
    "CalibratedMachine",
    "CostTerms",
    "FlopCount",
    "HardwareDevice",
    "ModelEstimate",
    "ParameterEstimate",
    "StepPrediction",
    "TrainingMemory",
    "activation_bytes",
    "activation_memory",
    "attention_growth",
    "attention_share",
    "build_fake_model",
    "cache_memory",
    "calibrate",
    "can_fake",
    "count_flops",
    "count_parameters",
    "estimate_model",
    "estimate_parameters",
    "explain_model",
    "find_device",
    "kernel_plans",
    "known_devices",
    "layer_complexities",
    "load_calibration",
    "predict_step",
    "process_bytes",
    "rule_of_thumb",
    "training_memory",
]
