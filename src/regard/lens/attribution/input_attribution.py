"""Input attribution: how much each token, or each patch of an image, speaks for one output.

    attribute_inputs(model, "the cat sat on the")                          for the likeliest next token
    attribute_inputs(model, ids, target=17, score="probability")           for one you name
    attribute_inputs(translator, "le chat", source="the cat")              both sides of an encoder-decoder
    attribute_inputs(vit, images[:1], method="occlusion").picture()        patches

    gradient               norm of the score's gradient with respect to the token's vector      Simonyan et al. 2014
    gradient_x_input       that gradient times the vector, less its baseline
    integrated_gradients   the same along the way from a baseline         Sundararajan, Taly and Yan 2017
    occlusion              the score, less the score without the token    Zeiler and Fergus 2014
    attention              attention of the explained place, mean over layers and heads; last_attention of one layer
    attention_rollout      attention multiplied through the layers        Abnar and Zuidema 2020

None says why. A gradient is the slope at one point; integrated gradients and occlusion depend on their baseline, which
is no text that the model was trained on; attention is where a model looks and not what it makes of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError, did_you_mean
from regard.lens.attention_maps import evaluation_mode, unwrap_model
from regard.lens.attribution.explained_inputs import Baseline
from regard.lens.attribution.explained_score import ExplainedScore, ScoreKind
from regard.lens.attribution.integrated_gradients import integrate_gradients
from regard.lens.attribution.rollout import attention_rows, mean_row, roll_out
from regard.lens.prompt import Prompt, read_prompt
from regard.lens.result import LensResult, Picture, Table, Value


@dataclass(frozen=True)
class AttributionSettings:
    """What may be set beside method and target. `tolerance` and `max_steps` bound the path of integrated gradients."""

    score: ScoreKind = "logit"
    baseline: Baseline = None  # "zero", "mean", "mask", "pad", or a token; by itself what suits the method
    tolerance: float = 0.01
    max_steps: int = 2048
    batch_size: int = 16

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.max_steps < 1 or not self.tolerance > 0:
            raise ConfigError("batch_size and max_steps are at least 1, and tolerance is above zero")

    def or_else(self, default: str) -> Baseline:
        return default if self.baseline is None else self.baseline


@dataclass(frozen=True, eq=False)
class Attributions:
    """What a method says of the inputs, one tensor for each side, with how it was found."""

    values: list[Tensor]
    baseline_score: float = float("nan")
    error: float = float("nan")
    steps: int = 0
    settled: bool = True


@dataclass(frozen=True, eq=False)
class InputAttribution(LensResult):
    """One number for each input; of an encoder-decoder also for each of its source.

    `score` is the explained output of the whole input and `baseline_score` that of the baseline. `error` is how far
    integrated gradients are from their difference, as a share of it; `settled` is False where `max_steps` came before
    the tolerance.
    """

    method: str
    target: int
    target_label: str
    kind: str
    position: int | None
    score: float
    labels: tuple[str, ...]
    values: Tensor  # (N,)
    source_labels: tuple[str, ...] = ()
    source_values: Tensor | None = None  # (S,)
    grid: tuple[int, ...] | None = None
    baseline_score: float = float("nan")
    error: float = float("nan")
    steps: int = 0
    settled: bool = True

    @property
    def rows(self) -> list[tuple[str, str, float]]:
        """Side, label and value of every input, the source first."""
        source = [] if self.source_values is None else self.source_values.tolist()
        sides = (("source", self.source_labels, source), ("input", self.labels, self.values.tolist()))
        return [(side, *each) for side, labels, values in sides for each in zip(labels, values, strict=True)]

    def table(self) -> Table:
        total = sum(abs(value) for *_, value in self.rows) or 1.0
        rows: list[tuple[Value, ...]] = [(*row, abs(row[2]) / total) for row in self.rows]
        return Table(self.title, ("side", "token", "attribution", "share"), tuple(rows), self.note)

    @property
    def title(self) -> str:
        place = "" if self.position is None else f" at token {self.position}"
        return f"How much does each input speak for {self.target_label!r}{place} ({self.method}, {self.kind})?"

    @property
    def note(self) -> str:
        if self.error != self.error:
            return f"The {self.kind} is {self.score:.4g}."
        cap = "" if self.settled else " They are not as exact as tolerance says; give more max_steps."
        return (f"The {self.kind} is {self.score:.4g}, that of the baseline {self.baseline_score:.4g}; attributions "
                f"sum to the difference within {self.error:.2%} ({self.steps:,} gradients).{cap}")  # fmt: skip

    def picture(self) -> Picture | None:
        signed = self.method in ("gradient_x_input", "integrated_gradients", "occlusion")
        center = 0.0 if signed else None
        if self.grid is not None and self.source_values is None and len(self.grid) == 2:
            values = self.values.view(self.grid)
            rows, columns = (tuple(map(str, range(size))) for size in self.grid)
            return Picture("grid", self.title, values, rows, columns, self.kind, center=center)
        values = torch.tensor([[value for *_, value in self.rows]])
        return Picture("bars", self.title, values, (self.method,), tuple(label for _, label, _ in self.rows), self.kind)


def attribute_inputs(
    model: Any, prompt: str | Tensor | Sequence[int] | Prompt, *, method: str = "integrated_gradients",
    target: str | int | None = None, position: int | None = None, source: str | Tensor | None = None, **settings: Any,
) -> InputAttribution:  # fmt: skip
    """Attribute one output to the inputs of a model, by one of ATTRIBUTION_METHODS.

    `target` is a token, a class or their number, by itself the likeliest; `position` the place of a token's output, by
    itself the mask or the last one. `settings` are those of `AttributionSettings`: score, baseline, batch_size, and how
    exactly integrated gradients sum to the difference of input and baseline.
    """
    if method not in ATTRIBUTION_METHODS:
        raise ConfigError(f"method: no attribution {method!r}{did_you_mean(method, ATTRIBUTION_METHODS)} "
                          f"there are {', '.join(ATTRIBUTION_METHODS)}")  # fmt: skip
    chosen, model = read_settings(settings), unwrap_model(model)
    read = read_prompt(model, prompt, source=source)
    with evaluation_mode(model):
        explained = ExplainedScore(
            model, read, target=target, position=position, score=chosen.score, batch_size=chosen.batch_size,
            slopes=method in ("gradient", "gradient_x_input"),
        )
        found = ATTRIBUTION_METHODS[method](explained, chosen)
    first, *rest = explained.inputs
    values = [each.detach().cpu() for each in found.values]
    return InputAttribution(
        method, explained.target, explained.target_label, chosen.score, explained.position, explained.value,
        first.labels, values[0], rest[0].labels if rest else (), values[1] if rest else None, first.grid,
        found.baseline_score, found.error, found.steps, found.settled,
    )  # fmt: skip


def read_settings(settings: dict[str, Any]) -> AttributionSettings:
    known = [each.name for each in fields(AttributionSettings)]
    for name in settings:
        if name not in known:
            raise ConfigError(f"no setting {name!r}{did_you_mean(name, known)} there are {', '.join(known)}")
    return AttributionSettings(**settings)


# ---------------------------------------------------------------- the methods


def gradient(explained: ExplainedScore, settings: AttributionSettings) -> Attributions:
    sides = zip(explained.inputs, explained.slopes, strict=True)
    sums = [side.sum_inputs(slope.double().square()) for side, slope in sides]
    return Attributions([each[0].sqrt() for each in sums])


def gradient_x_input(explained: ExplainedScore, settings: AttributionSettings) -> Attributions:
    bases = [side.baseline(settings.or_else("zero")) for side in explained.inputs]
    sides = zip(explained.inputs, explained.slopes, bases, strict=True)
    return Attributions([side.sum_inputs(slope * (side.x - base))[0] for side, slope, base in sides])


def path_integral(explained: ExplainedScore, settings: AttributionSettings) -> Attributions:
    bases = [side.baseline(settings.or_else("mean")) for side in explained.inputs]  # not zero: docs say why
    found = integrate_gradients(explained, bases, tolerance=settings.tolerance, max_steps=settings.max_steps)
    values = found.parts.split([side.count for side in explained.inputs])
    return Attributions(list(values), found.baseline_score, found.error, found.steps, found.settled)


def occlusion(explained: ExplainedScore, settings: AttributionSettings) -> Attributions:
    """One input at a time; the others of the side and the other side as they are."""
    values = list[Tensor]()
    for place, side in enumerate(explained.inputs):
        base, drops = side.baseline(settings.baseline), list[Tensor]()
        for some in torch.arange(side.count, device=side.x.device).split(explained.batch_size):
            # the whole input goes along in every batch: rounding depends on its size, and what is unseen is worth zero
            rows = [each.x.expand(1 + len(some), *each.x.shape[1:]) for each in explained.inputs]
            rows[place] = torch.cat([side.x, side.occlude(some, base)])
            scores = explained.scores(rows).double()
            drops.append(scores[0] - scores[1:])
        values.append(torch.cat(drops))
    return Attributions(values)


def mean_attention(explained: ExplainedScore, settings: AttributionSettings, last: bool = False) -> Attributions:
    rows = attention_rows(explained.model, explained.prompt, explained.readout())
    found = [mean_row(rows, part, last) for part in ("attn", "cross")]
    sides = zip(explained.inputs, found, strict=False)
    return Attributions([side.from_tokens(row) for side, row in sides if row is not None])


def last_attention(explained: ExplainedScore, settings: AttributionSettings) -> Attributions:
    return mean_attention(explained, settings, last=True)


def rollout_row(explained: ExplainedScore, settings: AttributionSettings) -> Attributions:
    shares = roll_out(explained.model, explained.prompt)
    row = explained.readout().to(shares) @ shares
    values = row.split([side.tokens.count for side in explained.inputs])
    return Attributions([side.from_tokens(value) for side, value in zip(explained.inputs, values, strict=True)])


ATTRIBUTION_METHODS: dict[str, Callable[[ExplainedScore, AttributionSettings], Attributions]] = {
    "gradient": gradient, "gradient_x_input": gradient_x_input, "integrated_gradients": path_integral,
    "occlusion": occlusion, "attention": mean_attention, "last_attention": last_attention,
    "attention_rollout": rollout_row,
}  # fmt: skip
