"""Is attention an explanation? Rank correlation of attention with gradients, integrated gradients and occlusion.

    compare_explanations(model, prompts)              methods x methods, and each head against each method
        .table()  .head_table()  .effect_table()  .picture()  .sentence()

For every prompt each method orders the inputs by how much they matter, by absolute value, and the orders are compared:
Jain and Wallace 2019 did so for attention, gradients and leaving tokens out. Low agreement does not show that attention
explains nothing (Wiegreffe and Pinter 2019): the other methods are no ground truth, and they disagree with each other
too. High agreement does not show that a head is a cause; ablation does, so each head is taken away as well.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from regard.config.errors import ConfigError, DataError, did_you_mean
from regard.lens.ablation import ablate
from regard.lens.attention_maps import evaluation_mode, unwrap_model
from regard.lens.attribution.agreement_result import LEAST, ExplanationAgreement
from regard.lens.attribution.explained_score import ExplainedScore
from regard.lens.attribution.input_attribution import ATTRIBUTION_METHODS, AttributionSettings, read_settings
from regard.lens.attribution.rank_correlation import CORRELATIONS
from regard.lens.attribution.rollout import attention_rows
from regard.lens.prompt import Prompt, read_prompt

COMPARED = ("attention", "gradient", "gradient_x_input", "integrated_gradients", "occlusion")
ATTENTION = ("attention", "last_attention", "attention_rollout")
ABLATIONS = ("zero", "mean")
SIDES = {"input": 0, "source": 1}
PARTS = ("attn", "cross")  # the heads that look at each side


def compare_explanations(  #: S152
    model: Any, prompts: Sequence[str | Tensor | Sequence[int] | Prompt], *, methods: Sequence[str] = COMPARED,
    correlation: str = "spearman", side: Literal["input", "source"] = "input", target: str | int | None = None,
    position: int | None = None, ablation: str = "zero", **settings: Any,
) -> ExplanationAgreement:  # fmt: skip
    """Compare explanations over a data set of prompts: each explains the likeliest output, or the `target`.

    With side "source" of an encoder-decoder its source is ordered, by cross-attention. A causal model's later tokens
    and padding are left out. Beside its agreement stands what each head is worth: how much the explained score falls
    when the head gives zeros, or with `ablation` "mean" its mean over the prompt. `settings` are those of
    `attribute_inputs`.
    """
    check_comparison(prompts, methods, correlation, ablation)
    others = tuple(name for name in methods if name not in ATTENTION)
    chosen, model = read_settings(settings), unwrap_model(model)
    pairs, by_head, effects, heads = list[Tensor](), list[Tensor](), list[Tensor](), list[tuple[int, int]]()
    for prompt in prompts:
        read = read_prompt(model, prompt)
        with evaluation_mode(model):
            explained = ExplainedScore(model, read, target=target, position=position, score=chosen.score,
                                       batch_size=chosen.batch_size)  # fmt: skip
            found, rows, heads = explain_prompt(explained, methods, side, chosen)
            if found.shape[1] < LEAST:
                continue
            effects.append(head_effects(explained, side, heads, ablation))
        compare = CORRELATIONS[correlation]
        pairs.append(compare(found[:, None], found))
        picked = found[[methods.index(name) for name in others]]
        by_head.append(compare(rows[:, None], picked))
    if not pairs:
        raise DataError(f"prompts: none has {LEAST} inputs to bring into an order; give longer ones")
    return ExplanationAgreement(
        tuple(methods), others, tuple(heads), correlation, torch.stack(pairs), torch.stack(by_head),
        torch.stack(effects), chosen.score, ablation, len(prompts) - len(pairs),
    )  # fmt: skip


def check_comparison(prompts: Any, methods: Sequence[str], correlation: str, ablation: str) -> None:
    wanted = [(correlation, list(CORRELATIONS)), (ablation, list(ABLATIONS)),
              *((method, list(ATTRIBUTION_METHODS)) for method in methods)]  # fmt: skip
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
    place = SIDES.get(side, 2)
    if place >= len(explained.inputs):
        raise ConfigError(f"side: {side!r} is not there; it is input, or source of an encoder-decoder")
    inputs, keep = explained.inputs[place], visible_inputs(explained, place).cpu()
    found = [ATTRIBUTION_METHODS[name](explained, settings).values[place].double().cpu() for name in methods]
    rows, heads = list[Tensor](), list[tuple[int, int]]()
    for where, pattern in attention_rows(explained.model, explained.prompt, explained.readout()).items():
        _, layer, name = where.split(".")
        if name == PARTS[place]:
            rows.append(inputs.from_tokens(pattern).double().cpu())
            heads += [(int(layer), head) for head in range(len(pattern))]
    return torch.stack(found).abs()[:, keep], torch.cat(rows)[:, keep], heads


def head_effects(
    explained: ExplainedScore, side: str, heads: Sequence[tuple[int, int]], ablation: str
) -> Tensor:  # (heads,)
    """How much the explained score falls without each of these heads alone; below zero where it rises."""
    rows, part, without = [each.x for each in explained.inputs], PARTS[SIDES[side]], list[float]()
    for layer, head in heads:
        with ablate(explained.model, {f"trunk.{layer}.{part}": [head]}, mean=ablation == "mean"):
            without.append(float(explained.scores(rows)[0]))
    return explained.value - torch.tensor(without, dtype=torch.float64)


def visible_inputs(explained: ExplainedScore, place: int) -> Tensor:  # (count,)
    """The inputs that are real and, where every mask is causal, not after the explained place."""
    inputs = explained.inputs[place]
    tokens = inputs.tokens
    keep = torch.ones_like(tokens.order[0], dtype=torch.bool) if tokens.is_real is None else tokens.is_real[0]
    if place == 0 and not any(variants[False, False].ahead for variants in explained.model.trunk.masks):
        keep = keep & (tokens.order[0] <= tokens.order[0][explained.readout() > 0].max())
    return inputs.from_tokens(keep)
