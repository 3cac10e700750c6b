"""Layer comparison: hidden states of two models layer by layer, and the first address where they differ.

Our hidden states have addresses (`trunk.3.residual`). The reference has none: a module list whose calls match the
layers of our trunk in number and shape is taken for that trunk; inside a layer, the nearest hidden state of the
reference is taken for our activation. So no module names of the reference are needed.
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
    """The difference of both models at one of our addresses, and the module of the reference there."""

    where: str
    far: float
    theirs: str


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module of the reference: its first input and its first output (B, N, D)."""

    name: str
    given: Tensor
    made: Tensor


def compare_layers(ours: Any, reference: Any, probe: ProbeInput) -> list[LayerDifference]:
    """The differences at the input of each trunk and after each layer, in the order of computation.

    A trunk without a match in the reference is left out.
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
    """The first address where the difference exceeds `within`: the input of a trunk, or a tap inside a layer.

    Empty if all layers agree. A tap that is no module's output in the reference cannot be compared, and is skipped.
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
    """The largest difference, divided by the RMS of a vector where that exceeds 1; infinite if any is not finite."""
    a, b = (probe.select_real(x).double() for x in (ours, reference))
    size = b.square().mean(-1, keepdim=True).sqrt().clamp(min=1.0)
    return float(((a - b).abs() / size).nan_to_num(nan=torch.inf, posinf=torch.inf).max())


# ---------------------------------------------------------------- matching trunks


def match_calls(mine: list[Tensor], begin: Tensor, calls: list[ModuleCall], probe: ProbeInput) -> list[ModuleCall]:
    """The calls of the reference that match the layers of one of our trunks; of several candidates the nearest at its
    input."""
    lists: dict[str, list[ModuleCall]] = {}
    for call in calls:
        lists.setdefault(call.name.rpartition(".")[0], []).append(call)
    shapes = [begin.shape, *(x.shape for x in mine)]
    fit = {name: each for name, each in lists.items() if [each[0].given.shape, *(call.made.shape for call in each)]
           == shapes}  # fmt: skip
    outer = {name: each for name, each in fit.items() if not any(name.startswith(f"{other}.") for other in fit)}
    return min(outer.values(), key=lambda layers: relative_difference(begin, layers[0].given, probe), default=[])


# ---------------------------------------------------------------- activations of both


def our_activations(ours: Any, probe: ProbeInput, names: list[str]) -> Mapping[str, Tensor]:
    with looking(ours, *names) as seen, torch.no_grad():
        probe.asked_of(ours)
    return {name: seen[name] for name in names}


def reference_calls(reference: nn.Module, probe: ProbeInput, wanted: Callable[[str], bool]) -> list[ModuleCall]:
    """The calls of the selected modules, in order."""
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
    """The first tensor (B, N, D) in an output, however it is nested."""
    if isinstance(output, Tensor):
        return output.detach() if output.is_floating_point() and output.dim() == 3 else None
    if isinstance(output, dict):
        output = tuple(output.values())
    inner = output if isinstance(output, tuple | list) else ()
    return next((found for each in inner if (found := first_hidden_states(each)) is not None), None)
