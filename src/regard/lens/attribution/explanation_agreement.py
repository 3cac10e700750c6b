"""Is attention an explanation? Rank correlation of attention with gradients, integrated gradients and occlusion.

    compare_explanations(model, prompts)              methods x methods, and each head against each method
        .table()  .head_table()  .picture()  .sentence()

For every prompt each method orders the inputs by how much they matter, by absolute value, and the orders are compared:
Jain and Wallace 2019 did so for attention, gradients and leaving tokens out. Low agreement does not show that attention
explains nothing (Wiegreffe and Pinter 2019): the other methods are no ground truth, and they disagree with each other
too. High agreement does not show that a head is a cause; ablation does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from regard.config.errors import ConfigError, DataError, did_you_mean
from regard.lens.attention_maps import evaluation_mode, unwrap_model
from regard.lens.attribution.explained_score import ExplainedScore
from regard.lens.attribution.input_attribution import ATTRIBUTION_METHODS, AttributionSettings, read_settings
from regard.lens.attribution.rank_correlation import CORRELATIONS
from regard.lens.attribution.rollout import attention_rows
from regard.lens.prompt import Prompt, read_prompt
from regard.lens.result import LensResult, Picture, Table, Value

COMPARED = ("attention", "gradient", "gradient_x_input", "integrated_gradients", "occlusion")
ATTENTION = ("attention", "last_attention", "attention_rollout")
LEAST = 3  # inputs: fewer have hardly an order
SURE, FEW = 2, 8  # standard errors, and prompts below which they are not known well enough


@dataclass(frozen=True, eq=False)
class ExplanationAgreement(LensResult):
    """Correlations of every prompt: `pairs` of methods, and each head with each method that is not attention itself."""

    methods: tuple[str, ...]
    others: tuple[str, ...]  # the methods that are not made of attention
    heads: tuple[tuple[int, int], ...]  # layer and head
    correlation: str
    pairs: Tensor  # (prompts, methods, methods)
    by_head: Tensor  # (prompts, heads, others)
    skipped: int = 0  # prompts that are too short

    def table(self) -> Table:
        """Methods x methods: mean, spread (standard deviation over prompts), and how many prompts have a value."""
        found = summarize(self.pairs)
        rows = [
            (method, name, *map(to_value, values[i]))
            for i, method in enumerate(self.methods)
            for name, values in zip(("mean", "spread", "prompts"), found, strict=True)
        ]
        title = f"Do the methods order the inputs alike ({self.correlation}, absolute values)?"
        return Table(title, ("method", "of", *self.methods), tuple(rows), self.sentence())

    def head_table(self) -> Table:
        """Every head: its mean correlation with each method over the prompts, and the spread."""
        mean, spread, _ = summarize(self.by_head)
        rows: list[tuple[Value, ...]] = []
        for place, (layer, head) in enumerate(self.heads):
            both = zip(mean[place], spread[place], strict=True)
            rows.append((f"{layer}.{head}", *(to_value(value) for pair in both for value in pair)))
        columns = [name for method in self.others for name in (method, f"{method} spread")]
        title = f"Which head orders the inputs as the other methods do ({self.correlation})?"
        return Table(title, ("head", *columns), tuple(rows))

    def picture(self, method: str | None = None) -> Picture:
        """Layer x head: the mean correlation with one method, integrated gradients where they are there."""
        method = self.reference if method is None else method
        if method not in self.others:
            raise ConfigError(f"method: no {method!r} to compare heads with; there are {', '.join(self.others)}")
        depth, wide = (1 + max(pair[i] for pair in self.heads) for i in (0, 1))
        values = torch.full((depth, wide), torch.nan, dtype=torch.float64)
        values[tuple(torch.tensor(self.heads).T)] = summarize(self.by_head)[0][:, self.others.index(method)]
        title = f"Which head orders the inputs as {method.replace('_', ' ')} does?"
        rows, columns = [f"layer {place}" for place in range(depth)], [f"head {place}" for place in range(wide)]
        return Picture("grid", title, values, rows, columns, self.correlation, center=0.0)

    @property
    def reference(self) -> str:
        """The method that heads are held against."""
        return "integrated_gradients" if "integrated_gradients" in self.others else self.others[-1]

    # ---------------------------------------------------------------- in words

    def sentence(self) -> str:
        """What the numbers show here: attention against the others, its best head, and the others among themselves."""
        if "attention" not in self.methods:
            return self.head_sentence()
        mean, spread, _ = summarize(self.pairs[:, self.methods.index("attention")])
        parts = [f"{name.replace('_', ' ')} at {mean[self.methods.index(name)]:.2f} ± "
                 f"{spread[self.methods.index(name)]:.2f}" for name in self.others]  # fmt: skip
        return (f"Over {len(self.pairs)} prompts attention, averaged over layers and heads, agrees with "
                f"{', '.join(parts)} (mean ± standard deviation). {self.head_sentence()} {self.verdict()}")  # fmt: skip

    def head_sentence(self) -> str:
        """The best head: chosen on every other prompt and measured on the rest, since the best of many flatters."""
        values = self.by_head[:, :, self.others.index(self.reference)]
        halves = (values[::2], values[1::2]) if len(values) > 3 else (values, values)
        best = int(summarize(halves[0])[0].nan_to_num(-2.0).argmax())
        found = float(summarize(halves[1])[0][best])
        where = "on the other prompts" if len(values) > 3 else "on the prompts that it was chosen on"
        name = "{}.{}".format(*self.heads[best])
        return (f"The best of {len(self.heads)} heads for {self.reference.replace('_', ' ')} is {name}, at {found:.2f} "
                f"{where}.")  # fmt: skip

    def verdict(self) -> str:
        """Attention with the others, against the others with each other, each in its standard errors over prompts."""
        own, among = self.attention_agreement(), self.other_agreement()
        there = ~(own.isnan() | among.isnan())
        own, among = own[there], among[there]
        if len(own) < FEW:
            return f"A conclusion takes at least {FEW} prompts and two other methods."
        if own.mean() <= SURE * standard_error(own):
            return "Here attention orders the inputs no more like them than chance would."
        apart = own - among
        numbers = f"({own.mean():.2f} against {among.mean():.2f})"
        if apart.mean().abs() <= SURE * standard_error(apart):
            return f"Here attention agrees with them about as they agree with each other {numbers}."
        word = "less" if apart.mean() < 0 else "more"
        return f"Here attention agrees with them {word} than they agree with each other {numbers}."

    def attention_agreement(self) -> Tensor:  # (prompts,)
        """For each prompt, attention's mean correlation with the other methods."""
        columns = [self.methods.index(name) for name in self.others]
        return self.pairs[:, self.methods.index("attention"), columns].nanmean(1)

    def other_agreement(self) -> Tensor:  # (prompts,)
        """For each prompt, the mean correlation of the other methods with each other."""
        columns = torch.tensor([self.methods.index(name) for name in self.others])
        first, second = torch.triu_indices(len(columns), len(columns), 1)
        return self.pairs[:, columns[first], columns[second]].nanmean(1)


def compare_explanations(  #: S152
    model: Any, prompts: Sequence[str | Tensor | Sequence[int] | Prompt], *, methods: Sequence[str] = COMPARED,
    correlation: str = "spearman", side: Literal["input", "source"] = "input", target: str | int | None = None,
    position: int | None = None, **settings: Any,
) -> ExplanationAgreement:  # fmt: skip
    """Compare explanations over a data set of prompts: each explains the likeliest output, or the `target`.

    With side "source" of an encoder-decoder its source is ordered, by cross-attention. A causal model's later tokens
    and padding are left out. `settings` are those of `attribute_inputs`.
    """
    check_comparison(prompts, methods, correlation)
    others = tuple(name for name in methods if name not in ATTENTION)
    chosen, model = read_settings(settings), unwrap_model(model)
    pairs, by_head, heads = list[Tensor](), list[Tensor](), list[tuple[int, int]]()
    for prompt in prompts:
        read = read_prompt(model, prompt)
        with evaluation_mode(model):
            explained = ExplainedScore(model, read, target=target, position=position, score=chosen.score,
                                       batch_size=chosen.batch_size)  # fmt: skip
            found, rows, heads = explain_prompt(explained, methods, side, chosen)
        if found.shape[1] >= LEAST:
            compare = CORRELATIONS[correlation]
            pairs.append(compare(found[:, None], found))
            picked = found[[methods.index(name) for name in others]]
            by_head.append(compare(rows[:, None], picked))
    if not pairs:
        raise DataError(f"prompts: none has {LEAST} inputs to bring into an order; give longer ones")
    return ExplanationAgreement(
        tuple(methods), others, tuple(heads), correlation, torch.stack(pairs), torch.stack(by_head),
        len(prompts) - len(pairs),
    )  # fmt: skip


def check_comparison(prompts: Any, methods: Sequence[str], correlation: str) -> None:
    wanted = [(correlation, list(CORRELATIONS)), *((method, list(ATTRIBUTION_METHODS)) for method in methods)]
    for name, known in wanted:
        if name not in known:
            raise ConfigError(f"no {name!r} to compare{did_you_mean(name, known)} there are {', '.join(known)}")
    if all(name in ATTENTION for name in methods):
        raise ConfigError("methods: attention is compared with something else; name gradient_x_input or occlusion")
    if isinstance(prompts, str | Prompt) or not len(prompts):
        raise DataError("prompts: give a list of them, at least one")


def explain_prompt(
    explained: ExplainedScore, methods: Sequence[str], side: str, settings: AttributionSettings
) -> tuple[Tensor, Tensor, list[tuple[int, int]]]:
    """Absolute values of every method (methods, inputs) and of every head (heads, inputs), and which heads these are.

    Only inputs that the explained place can see, since what is hidden has nothing to be ordered by.
    """
    place = {"input": 0, "source": 1}.get(side, 2)
    if place >= len(explained.inputs):
        raise ConfigError(f"side: {side!r} is not there; it is input, or source of an encoder-decoder")
    inputs, keep = explained.inputs[place], visible_inputs(explained, place).cpu()
    found = [ATTRIBUTION_METHODS[name](explained, settings).values[place].double().cpu() for name in methods]
    part, rows, heads = ("attn", "cross")[place], list[Tensor](), list[tuple[int, int]]()
    for where, pattern in attention_rows(explained.model, explained.prompt, explained.readout()).items():
        _, layer, name = where.split(".")
        if name == part:
            rows.append(inputs.from_tokens(pattern).double().cpu())
            heads += [(int(layer), head) for head in range(len(pattern))]
    return torch.stack(found).abs()[:, keep], torch.cat(rows)[:, keep], heads


def visible_inputs(explained: ExplainedScore, place: int) -> Tensor:  # (count,)
    """The inputs that are real and, where every mask is causal, not after the explained place."""
    inputs = explained.inputs[place]
    tokens = inputs.tokens
    keep = torch.ones_like(tokens.order[0], dtype=torch.bool) if tokens.is_real is None else tokens.is_real[0]
    if place == 0 and not any(variants[False, False].ahead for variants in explained.model.trunk.masks):
        keep = keep & (tokens.order[0] <= tokens.order[0][explained.readout() > 0].max())
    return inputs.from_tokens(keep)


def summarize(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # (prompts, …) -> three of (…)
    """Mean, standard deviation and count over the prompts that have a value."""
    count = (~x.isnan()).sum(0)
    mean = x.nanmean(0)
    spread = ((x - mean).square().nansum(0) / (count - 1).clamp(min=1)).sqrt().masked_fill(count < 2, torch.nan)
    return mean, spread, count


def standard_error(x: Tensor) -> float:
    return float(x.std() / len(x) ** 0.5)


def to_value(x: Tensor) -> Value:
    return int(x) if not x.is_floating_point() else float(x)
