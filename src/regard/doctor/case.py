"""DoctorCase, the view of a run for the checks, and DoctorFinding: a verdict, its evidence and a remedy.

The probe trains a copy of the model, so the run is not changed. Evidence is one sentence, a remedy is what to type.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from torch import Tensor

from regard import config
from regard.core.model import Transformer
from regard.doctor.probe_run import ProbeRun, randomize_model
from regard.lens.attention_maps import unwrap_model
from regard.text.tokenizer import Tokenizer
from regard.training.diagnostics import model_inputs, peak_lr_factor
from regard.training.run import Run, unwrap_prefetch

FEW = 8  # rows of a batch, where the configured size does not fit
LR_RAMP = 10  # steps of warm-up to the peak learning rate: the run's own warm-up may be longer than the probe


def no_report(line: str) -> None:
    """The default `progress`: does nothing."""


class DoctorCase:
    """The view of a run for the checks. `log` are the lines of its log.jsonl, if it has one; `progress` is called with
    status lines.

    `need` is the predicted memory of a step; where it does not fit, batches are smaller here.
    """

    def __init__(
        self, run: Run, steps: int, log: Sequence[dict[str, Any]] = (), progress: Callable[[str], object] = no_report
    ) -> None:
        model = unwrap_model(run.model)
        if not isinstance(model, Transformer):
            raise config.ConfigError(f"the doctor examines single models of regard.build, not a {type(model).__name__}")
        own = None if model.c.encoder is None else model.c.encoder.embed
        if isinstance(model.c.embed, config.MultimodalEmbedding) or not isinstance(own, config.TextEmbedding | None):
            raise config.ConfigError("the doctor examines models with one kind of input, and this one has several; "
                                     "train it for a few steps, and read its report")  # fmt: skip
        self.run, self.model, self.steps, self.log, self.progress = run, model, steps, log, progress
        self.need: Any = None

    @property
    def settings(self) -> config.Train:
        return self.run.settings

    @property
    def fresh(self) -> bool:
        """Whether the weights are untrained: step 0, and no pretrained initialisation."""
        return self.run.step == 0 and self.settings.init_from is None

    @property
    def textual(self) -> bool:
        """Whether the input is text."""
        return isinstance(self.model.c.embed, config.TextEmbedding)

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.run.tokenizer

    @property
    def data(self) -> Any:
        """The source of batches; of smaller ones, where the configured size does not fit."""
        made = unwrap_prefetch(self.run.data)
        if self.need is None or self.need.fits or not hasattr(made, "size"):
            return made
        made = copy.copy(made)
        made.size = 1 if self.need.smaller is None else min(FEW, self.need.smaller.rows)
        return made

    @property
    def causal(self) -> bool:
        """Whether labels must not be visible to the model."""
        return bool(getattr(self.run.objective, "causal", False))

    def batch(self, number: int) -> Any:
        """A micro-batch, by its index in the run."""
        return self.data.batch(number)

    def numbers(self, step: int) -> range:
        """The indices of the micro-batches of a step."""
        many = self.settings.gradient_accumulation
        return range(step * many, (step + 1) * many)

    @cached_property
    def first(self) -> Any:
        return self.batch(self.numbers(self.run.step)[0])

    def read(self, count: int = 8) -> Iterator[dict[str, Tensor]]:
        """The model inputs of the first micro-batches."""
        start = self.numbers(self.run.step)[0]
        return (model_inputs(self.batch(start + place), self.model) for place in range(count))

    @cached_property
    def factors(self) -> list[float]:
        """The learning rate factors of the probe: a short warm-up to the run's peak, or the current factor in the
        middle of a run."""
        run, most = self.run, peak_lr_factor(self.run)
        if run.step == 0:
            return [most * min(1.0, (step + 1) / LR_RAMP) for step in range(self.steps)]
        now = run.schedule(run.step + 1, run.progress)
        return [max(now, most / 100)] * self.steps

    @cached_property
    def course(self) -> ProbeRun:
        """The probe run: some training steps in memory."""
        return ProbeRun(self).run(self.factors, self.progress)

    @cached_property
    def lively(self) -> Transformer:
        """The model's structure with random weights, in which no part has zero effect."""
        return randomize_model(self.model, self.course.model)


Verdict = Literal["fine", "look", "wrong"]


@dataclass(frozen=True)
class DoctorFinding:
    """The result of a check. `fine`: nothing to do. `look`: worth knowing, perhaps intended. `wrong`: a fault of the
    training."""

    check: str
    verdict: Verdict
    evidence: str
    remedy: str = ""
    ends: bool = False  # no further check is possible before this is fixed


def finding_ok(evidence: str) -> DoctorFinding:
    return DoctorFinding("", "fine", evidence)


def finding_note(evidence: str, remedy: str = "") -> DoctorFinding:
    return DoctorFinding("", "look", evidence, remedy)


def finding_problem(evidence: str, remedy: str, ends: bool = False) -> DoctorFinding:
    return DoctorFinding("", "wrong", evidence, remedy, ends)
