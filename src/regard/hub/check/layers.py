"""Hidden states of two models compared layer by layer, and the first place where they differ.

Ours are read by address (`trunk.3.residual`). The reference has no addresses: a list of its modules that was called as
often as a trunk of ours has layers, with vectors of the same shape, is that trunk; inside a layer, the hidden state of
theirs that comes nearest to an activation of ours is that activation. So no name of theirs is needed.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.core.hooks import looking
from regard.hub.check.reference import ProbeInput, mute_transformers

LAYER = re.compile(r"(.*)\.(\d+)\.residual")
TAPS = ("attn.out", "cross.out", "mlp.out", "residual")


@dataclass(frozen=True)
class LayerDifference:
    """How far apart both are at one of our addresses, and which module of theirs speaks there."""

    where: str
    far: float
    theirs: str


@dataclass(frozen=True)
class ModuleCall:
    """One call of one of their modules: the first vectors it was given, and those it made."""

    name: str
    given: Tensor
    made: Tensor


def compare_layers(ours: Any, reference: Any, probe: ProbeInput) -> list[LayerDifference]:
    """Where each stack begins and what each layer makes, in the order they run.

    A stack that theirs does not have in this form is left out.
    """
    names = [name for name in ours.addresses() if LAYER.fullmatch(name)]
    begins = [name.removesuffix("0.residual") + "embed" for name in names if name.endswith(".0.residual")]
    listed = {name for name, part in reference.named_modules() if isinstance(part, nn.ModuleList)}
    seen = our_activations(ours, probe, [*names, *begins])
    calls = reference_calls(reference, probe, lambda name: name.rpartition(".")[0] in listed)
    steps = []
    for stack in dict.fromkeys(LAYER.sub(r"\1", name) for name in names):
        mine = [seen[name] for name in names if LAYER.sub(r"\1", name) == stack]
        begin = seen[f"{stack}.embed"]
        if layers := match_calls(mine, begin, calls, probe):
            steps.append(LayerDifference(f"{stack}.embed", relative_difference(begin, layers[0].given, probe), ""))
            for i, (x, call) in enumerate(zip(mine, layers, strict=True)):
                steps.append(
                    LayerDifference(f"{stack}.{i}.residual", relative_difference(x, call.made, probe), call.name)
                )
    return steps


def first_difference(ours: Any, reference: Any, probe: ProbeInput, steps: list[LayerDifference], within: float) -> str:
    """The first address where both are further apart than that: a stack's beginning, or a tap inside a layer.

    Nothing where all layers agree. A tap that none of their modules makes alone cannot be told, and is passed over.
    """
    apart = next((step for step in steps if step.far > within), None)
    if apart is None or not apart.theirs:
        return "" if apart is None else apart.where
    layer, known = apart.where.removesuffix("residual"), set(ours.addresses())
    taps = [layer + tap for tap in TAPS if layer + tap in known]
    seen = our_activations(ours, probe, taps)
    calls = reference_calls(reference, probe, lambda name: name.startswith(f"{apart.theirs}."))
    for tap in taps:
        alike = [call.made for call in calls if call.made.shape == seen[tap].shape]
        if alike and min(relative_difference(seen[tap], made, probe) for made in alike) > within:
            return tap
    return apart.where


def relative_difference(ours: Tensor, reference: Tensor, probe: ProbeInput) -> float:
    """The largest difference, of large vectors as a part of their size; endless where something is no number."""
    a, b = (probe.select_real(x).double() for x in (ours, reference))
    size = b.square().mean(-1, keepdim=True).sqrt().clamp(min=1.0)
    return float(((a - b).abs() / size).nan_to_num(nan=torch.inf, posinf=torch.inf).max())


# ---------------------------------------------------------------- which stack of theirs is which of ours


def match_calls(mine: list[Tensor], begin: Tensor, calls: list[ModuleCall], probe: ProbeInput) -> list[ModuleCall]:
    """Their calls for the layers of one of our stacks; of several lists that would do, the one that begins nearest."""
    lists: dict[str, list[ModuleCall]] = {}
    for call in calls:
        lists.setdefault(call.name.rpartition(".")[0], []).append(call)
    shapes = [begin.shape, *(x.shape for x in mine)]
    fit = {name: each for name, each in lists.items() if [each[0].given.shape, *(call.made.shape for call in each)]
           == shapes}  # fmt: skip
    outer = {name: each for name, each in fit.items() if not any(name.startswith(f"{other}.") for other in fit)}
    return min(outer.values(), key=lambda layers: relative_difference(begin, layers[0].given, probe), default=[])


# ---------------------------------------------------------------- what both make on their way


def our_activations(ours: Any, probe: ProbeInput, names: list[str]) -> Mapping[str, Tensor]:
    with looking(ours, *names) as seen, torch.no_grad():
        probe.asked_of(ours)
    return {name: seen[name] for name in names}


def reference_calls(reference: nn.Module, probe: ProbeInput, wanted: Callable[[str], bool]) -> list[ModuleCall]:
    """The calls of those modules whose names are wanted, in order."""
    calls: list[ModuleCall] = []
    with hook_modules(reference, wanted, calls), torch.no_grad(), mute_transformers():
        reference(**probe.theirs)
    return calls


@contextmanager
def hook_modules(model: nn.Module, wanted: Callable[[str], bool], calls: list[ModuleCall]) -> Iterator[None]:
    def at(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            into, out = first_hidden_states((*given, *named.values())), first_hidden_states(output)
            if into is not None and out is not None:
                calls.append(ModuleCall(name, into, out))

        return hook

    parts = [(name, part) for name, part in model.named_modules() if wanted(name)]
    handles = [part.register_forward_hook(at(name), with_kwargs=True) for name, part in parts]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def first_hidden_states(output: Any) -> Tensor | None:
    """The first vectors (B, N, D) in an answer, whatever they are wrapped in."""
    if isinstance(output, Tensor):
        return output.detach() if output.is_floating_point() and output.dim() == 3 else None
    if isinstance(output, dict):
        output = tuple(output.values())
    inner = output if isinstance(output, tuple | list) else ()
    return next((found for each in inner if (found := first_hidden_states(each)) is not None), None)
