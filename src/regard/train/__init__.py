"""Training: a Run holds all state, `train` advances it by one optimizer step at a time, `fit` does the rest around it.

    for step in regard.train(regard.Run.from_recipe("recipes/shakespeare.toml")):
        print(step.number, float(step.loss))

The room is called as its main verb: `regard.train(run)` is `regard.train.train(run)`.
"""

import sys
from collections.abc import Iterator
from types import ModuleType

from regard.train import forecasting as forecasting
from regard.train import mixing as mixing
from regard.train import nodes as nodes
from regard.train import painting as painting
from regard.train import sensing as sensing
from regard.train.evaluate import Score, evaluate
from regard.train.fit import fit, resume
from regard.train.fitting import Result
from regard.train.loop import Step, train
from regard.train.run import Run

__all__ = ["Result", "Run", "Score", "Step", "evaluate", "fit", "resume", "train"]


class Room(ModuleType):
    def __call__(self, run: Run) -> Iterator[Step]:
        """Advance the run by one optimizer step at a time until it is over."""
        return train(run)


sys.modules[__name__].__class__ = Room
