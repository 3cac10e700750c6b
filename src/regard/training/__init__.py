"""Training: a Run holds all state, `train` takes one optimizer step at a time, `fit` logs, evaluates and saves.

for step in regard.train(regard.Run.from_recipe("recipes/shakespeare.toml")):
    print(step.number, float(step.loss))
"""

from regard.training.api import fit, resume_fit
from regard.training.data import read_image_text, read_inputs, read_nodes, read_series
from regard.training.loop import TrainStep, train_steps
from regard.training.run import Run
from regard.training.trainer import FitResult
from regard.training.validation import ValidationScore, validate

__all__ = [
    "FitResult",
    "Run",
    "TrainStep",
    "ValidationScore",
    "fit",
    "read_image_text",
    "read_inputs",
    "read_nodes",
    "read_series",
    "resume_fit",
    "train_steps",
    "validate",
]
