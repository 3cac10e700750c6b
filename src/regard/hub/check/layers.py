"""Two models layer by layer, and the first place where they part.

Ours is looked at by address (`trunk.3.residual`). Theirs has no addresses: what was called in a list of modules as
often as a stack of ours has layers, with vectors of the same shape, is that stack; inside a layer, what of theirs
comes nearest to a tap of ours is that tap. So no name of theirs is needed.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.core.watch import looking
from regard.hub.check.questions import Question
from regard.hub.check.theirs import quiet

LAYER = re.compile(r"(.*)\.(\d+)\.residual")
TAPS = ("attn.out", "cross.out", "mlp.out", "residual")


@dataclass(frozen=True)
class Step:
    """How far apart both are at one of our addresses, and which module of theirs speaks there."""

    where: str
    far: float
    theirs: str


@dataclass(frozen=True)
class Call:
    """One call of one of their modules: the first vectors it was given, and those it made."""

    name: str
    given: Tensor
    made: Tensor


def walk(ours: Any, theirs: Any, asked: Question) -> list[Step]:
    """Where each stack begins and what each layer makes, in the order they run.

    A stack that theirs does not have in this form is left out.
    """
    names = [name for name in ours.addresses() if LAYER.fullmatch(name)]
    begins = [name.removesuffix("0.residual") + "embed" for name in names if name.endswith(".0.residual")]
    listed = {name for name, part in theirs.named_modules() if isinstance(part, nn.ModuleList)}
    seen = look(ours, asked, [*names, *begins])
    calls = listen(theirs, asked, lambda name: name.rpartition(".")[0] in listed)
    steps = []
    for stack in dict.fromkeys(LAYER.sub(r"\1", name) for name in names):
        mine = [seen[name] for name in names if LAYER.sub(r"\1", name) == stack]
        begin = seen[f"{stack}.embed"]
        if layers := matched(mine, begin, calls, asked):
            steps.append(Step(f"{stack}.embed", far(begin, layers[0].given, asked), ""))
            for i, (x, call) in enumerate(zip(mine, layers, strict=True)):
                steps.append(Step(f"{stack}.{i}.residual", far(x, call.made, asked), call.name))
    return steps


def first(ours: Any, theirs: Any, asked: Question, steps: list[Step], within: float) -> str:
    """The first address where both are further apart than that: a stack's beginning, or a tap inside a layer.

    Nothing where all layers agree. A tap that none of their modules makes alone cannot be told, and is passed over.
    """
    apart = next((step for step in steps if step.far > within), None)
    if apart is None or not apart.theirs:
        return "" if apart is None else apart.where
    layer, known = apart.where.removesuffix("residual"), set(ours.addresses())
    taps = [layer + tap for tap in TAPS if layer + tap in known]
    seen = look(ours, asked, taps)
    calls = listen(theirs, asked, lambda name: name.startswith(f"{apart.theirs}."))
    for tap in taps:
        alike = [call.made for call in calls if call.made.shape == seen[tap].shape]
        if alike and min(far(seen[tap], made, asked) for made in alike) > within:
            return tap
    return apart.where


def far(ours: Tensor, theirs: Tensor, asked: Question) -> float:
    """The largest difference, of large vectors as a part of their size; endless where something is no number."""
    a, b = (asked.counted(x).double() for x in (ours, theirs))
    size = b.square().mean(-1, keepdim=True).sqrt().clamp(min=1.0)
    return float(((a - b).abs() / size).nan_to_num(nan=torch.inf, posinf=torch.inf).max())


# ---------------------------------------------------------------- which stack of theirs is which of ours


def matched(mine: list[Tensor], begin: Tensor, calls: list[Call], asked: Question) -> list[Call]:
    """Their calls for the layers of one of our stacks; of several lists that would do, the one that begins nearest."""
    lists: dict[str, list[Call]] = {}
    for call in calls:
        lists.setdefault(call.name.rpartition(".")[0], []).append(call)
    shapes = [begin.shape, *(x.shape for x in mine)]
    fit = {name: each for name, each in lists.items() if [each[0].given.shape, *(call.made.shape for call in each)]
           == shapes}  # fmt: skip
    outer = {name: each for name, each in fit.items() if not any(name.startswith(f"{other}.") for other in fit)}
    return min(outer.values(), key=lambda layers: far(begin, layers[0].given, asked), default=[])


# ---------------------------------------------------------------- what both make on their way


def look(ours: Any, asked: Question, names: list[str]) -> Mapping[str, Tensor]:
    with looking(ours, *names) as seen, torch.no_grad():
        asked.asked_of(ours)
    return {name: seen[name] for name in names}


def listen(theirs: nn.Module, asked: Question, wanted: Callable[[str], bool]) -> list[Call]:
    """The calls of those modules whose names are wanted, in order."""
    calls: list[Call] = []
    with hooked(theirs, wanted, calls), torch.no_grad(), quiet():
        theirs(**asked.theirs)
    return calls


@contextmanager
def hooked(model: nn.Module, wanted: Callable[[str], bool], calls: list[Call]) -> Iterator[None]:
    def at(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], made: Any) -> None:
            into, out = vectors((*given, *named.values())), vectors(made)
            if into is not None and out is not None:
                calls.append(Call(name, into, out))

        return hook

    parts = [(name, part) for name, part in model.named_modules() if wanted(name)]
    handles = [part.register_forward_hook(at(name), with_kwargs=True) for name, part in parts]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def vectors(made: Any) -> Tensor | None:
    """The first vectors (B, N, D) in an answer, whatever they are wrapped in."""
    if isinstance(made, Tensor):
        return made.detach() if made.is_floating_point() and made.dim() == 3 else None
    if isinstance(made, dict):
        made = tuple(made.values())
    inner = made if isinstance(made, tuple | list) else ()
    return next((found for each in inner if (found := vectors(each)) is not None), None)
