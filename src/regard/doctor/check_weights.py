"""Checks of weights: initialisation, dead layers and dead units.

Initialisation is judged by the loss against that of a uniform guess, and by the attention entropy against a newly
initialised model. A dead layer gets no gradient or no update; a dead unit is zero for every token.
"""

import math
import statistics
from typing import Any

import torch
from torch import nn

from regard import config
from regard.config.errors import name_some
from regard.core.hooks import looking
from regard.core.model import Transformer
from regard.data.batching import batch_to_device
from regard.doctor.case import DoctorCase, DoctorFinding, finding_note, finding_ok, finding_problem
from regard.doctor.probe_run import forward_outputs
from regard.lens.attention_maps import evaluation_mode
from regard.models.heads import LMHead
from regard.tasks.task import combine_losses
from regard.training.diagnostics import attention_entropies, has_attention_maps, layer_of
from regard.training.init.trainable import matching_parameters
from regard.training.reproducibility import get_rng_states, set_rng_states

NARROW = 0.3  # of the largest possible entropy
TRAINED = 0.05  # trained heads may have low entropy


def check_init(case: DoctorCase) -> DoctorFinding:
    loss, wide = first_batch_loss(case, case.model)
    if not math.isfinite(loss):
        return finding_problem(
            "the first loss is not finite: the weights are not finite, or far too large", suggest_init(case, 1.0)
        )
    return judge_fresh_model(case, loss, wide) if case.fresh else judge_trained_model(loss, wide)


def judge_fresh_model(case: DoctorCase, loss: float, wide: float | None) -> DoctorFinding:
    new = reinitialize_copy(case.model)
    usual, open = first_batch_loss(case, new)
    guess, times = uniform_loss(case), weight_scale_ratio(case.model, new)
    bound = 2 * (usual if guess is None else guess) + 1
    against = f"a new model's is {usual:.2f}" if guess is None else f"a uniform guess has {guess:.2f}"
    told = f"the first loss is {loss:.2f}, where {against}" + describe_entropy(wide)
    large = f"; the weights are {times:.3g} times as large as model.init={case.model.c.init} draws them" * (times > 2)
    if wide is not None and open is not None and wide < min(NARROW, 0.5 * open):  #: S160
        return finding_problem(
            f"{told}, and {open:.0%} in a new model: attention has collapsed{large}", suggest_init(case, times)
        )
    if loss > bound:
        return finding_problem(f"{told}: the initial weights are too large{large}", suggest_init(case, times))
    return finding_ok(told)


def judge_trained_model(loss: float, wide: float | None) -> DoctorFinding:
    told = f"the first loss is {loss:.3f}" + describe_entropy(wide)
    if wide is not None and wide < TRAINED:
        return finding_note(f"{told}: nearly all attention is on one token", "model.dropout=0.1")
    return finding_ok(told)


def describe_entropy(wide: float | None) -> str:
    return "" if wide is None else f"; the heads' attention entropy is {wide:.0%} of its maximum"


def suggest_init(case: DoctorCase, times: float) -> str:
    """The init with the usual small spread; or the model's own, where its weights do not have that spread."""
    init = case.model.c.init if times > 2 else "gpt2"
    return f"model.init={init}" + ", and weights as it draws them" * (init == case.model.c.init)


def first_batch_loss(case: DoctorCase, model: Transformer) -> tuple[float, float | None]:
    """The loss of the first batch without dropout, and the median attention entropy of the heads."""
    objective, there = case.run.objective, batch_to_device(case.first, case.run.device)
    with evaluation_mode(model):
        loss = float(combine_losses(objective.loss_sums(model, there), objective.count_parts(case.first)))
    heads = (
        []
        if not has_attention_maps(model)
        else [width for some in attention_entropies(model, there).values() for width in some]
    )
    seen: list[Any] = [width for width in heads if isinstance(width, float)]
    return loss, statistics.median(seen) if seen else None


def reinitialize_copy(model: Transformer) -> Transformer:
    """A newly initialised model of the same config."""
    device = next(model.parameters()).device
    before = get_rng_states(device)
    torch.manual_seed(0)
    made = type(model)(model.c).to(device)
    set_rng_states(before, device)
    return made


def uniform_loss(case: DoctorCase) -> float | None:
    """The loss of a uniform guess; None without classes."""
    heads = [part for part in case.model.modules() if isinstance(part, LMHead)]
    count = heads[0].out_features if heads else getattr(case.run.objective, "out", 0)
    return math.log(count) if count > 1 else None


def weight_scale_ratio(model: Transformer, new: Transformer) -> float:
    """The median ratio of the weights' RMS to that of newly initialised ones."""
    sizes = [(rms(mine), rms(other)) for mine, other in zip(model.parameters(), new.parameters(), strict=True)
             if mine.dim() > 1]  # fmt: skip
    return statistics.median([mine / other for mine, other in sizes if other] or [1.0])


def rms(weight: nn.Parameter) -> float:
    return float(weight.detach().float().square().mean().sqrt())


DEAD, MANY = 0.9, 0.5  # shares of the units of an MLP


def check_layers(case: DoctorCase) -> DoctorFinding:
    course, meant = case.course, frozen_parameters(case)
    names = [name for name, _ in case.model.named_parameters() if name not in meant]
    unreached = [name for name in names if name not in course.reached]
    unmoved = [name for name in names if name not in course.changed]
    steps = len(course.taken)
    if unreached:
        return finding_problem(f"no gradient reached {layer_list(unreached)} in {steps} steps: "
                               f"{dead_layer_reason(case, unreached)}",
                     f"train.freeze={freeze_names(unreached)} if that is meant")  # fmt: skip
    if len(unmoved) == len(names) and course.sound:
        return finding_problem(f"no weight moved in {steps} steps: the learning rate is {course.optimizer.base[-1]:g}",
                     "train.optimizer.lr=1e-3")  # fmt: skip
    if unmoved and course.sound:
        return finding_problem(f"{layer_list(unmoved)} did not move in {steps} steps, though gradients reach them",
                     "create the optimizer after the model, with all of its weights")  # fmt: skip
    said = "train.freeze" if case.settings.lora is None else "train.lora"
    kept = f"; {layer_list(sorted(meant))} are frozen by {said}" if meant else ""
    return finding_ok(f"gradients reach all {len(names)} weights, and every step moves them{kept}")


def frozen_parameters(case: DoctorCase) -> set[str]:
    """The names of frozen weights, all names of tied ones; with LoRA nearly all weights are frozen."""
    every = dict(case.model.named_parameters(remove_duplicate=False))
    chosen = {id(every[path]) for name in case.settings.freeze for path in matching_parameters(case.model, name)}
    if case.settings.lora is not None:
        chosen |= {id(weight) for weight in every.values() if not weight.requires_grad}
    return {path for path, weight in every.items() if id(weight) in chosen}


def dead_layer_reason(case: DoctorCase, names: list[str]) -> str:
    weights = dict(case.model.named_parameters())
    still = [name for name in names if not weights[name].requires_grad]
    return "they are frozen, and train.freeze does not name them" if still else "the loss does not depend on them"


def layer_list(names: list[str]) -> str:
    return name_some(dict.fromkeys(layer_of(name) for name in names))


def check_dead_units(case: DoctorCase) -> DoctorFinding | None:
    if not case.course.sound:
        return finding_note("weights are not finite after the probe", "correct the learning rate first")
    dead = dead_unit_shares(case)
    if not dead:
        return None
    where = max(dead, key=lambda name: dead[name])
    told = f"{dead[where]:.0%} of the units of {where} are zero for every token"
    if dead[where] > DEAD:
        return finding_problem(f"{told}: the layer is dead", "model.trunk.mlp.activation=gelu")
    return (
        finding_note(told, "model.trunk.mlp.activation=gelu") if dead[where] > MANY else finding_ok(f"at most {told}")
    )


def freeze_names(names: list[str]) -> str:
    """Layer names in the form of train.freeze."""
    return str([name.replace(".", ".blocks.", 1) if name[-1].isdigit() else name for name in
                dict.fromkeys(layer_of(name) for name in names)]).replace(" ", "")  # fmt: skip


def dead_unit_shares(case: DoctorCase) -> dict[str, float]:
    """For each MLP with a ReLU, the share of units that are zero for every token of a batch."""
    model, c = case.course.model, case.model.c
    trunks = {"trunk": c.trunk, **({} if c.encoder is None else {"encoder": c.encoder.trunk})}
    kinds = [side for side, trunk in trunks.items()
             if isinstance(trunk, config.Trunk) and trunk.mlp.kind != "none"
             and trunk.mlp.activation.startswith("relu")]  # fmt: skip
    if not kinds:
        return {}
    with evaluation_mode(model), looking(model, *(f"{side}.*.mlp.hidden" for side in kinds)) as seen:
        forward_outputs(model, batch_to_device(next(case.read()), case.run.device))
        return {name.removesuffix(".hidden"): float((seen[name] == 0).flatten(0, 1).all(0).float().mean())
                for name in seen}  # fmt: skip
