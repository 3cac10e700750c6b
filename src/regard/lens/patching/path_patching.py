"""Path patching: how much of an effect goes from one component straight into another (Wang et al. 2022,
Goldowsky-Dill et al. 2023).

    senders      embed, 0.3 (head 3 of block 0), 0.attn, 0.mlp, 1.cross, 1.cross.2
    receivers    1.2.q, 1.2.k, 1.2.v (what head 2 of block 1 reads), 1.cross.2.q, 1.mlp, final
                 1.attn.q, 1.attn.k, 1.attn.v, 1.cross.q (what all heads of block 1 read)

The receiver reads norm(stream + (what the sender adds in the one run - what it adds in the other)), and everything
else of its input is as in the run that is patched: no block between the two passes the change on. After the receiver
the model runs as it is. This needs a stream of plain sums, so a model with norms after the sum (post-norm) is refused.
A path of zero effect may still matter together with another one. Letters: S senders, R rows of one batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.core.hooks import HookEdit
from regard.core.model import Trunk
from regard.lens.attention_maps import evaluation_mode, find_attentions, unwrap_model
from regard.lens.patching.activation_patching import Direction, PatchGrid, PatchingResult, metric_ends, read_pair
from regard.lens.patching.logit_metrics import LogitFunction, LogitMetric, bind_metric
from regard.lens.patching.patched_runs import PatchedRuns, Progress, record_activations
from regard.lens.prompt import Prompt
from regard.lens.residual import find_trunk

ORDER = {"attn": 0, "cross": 1, "mlp": 2}  # of the sublayers of a block


@dataclass(frozen=True)
class Component:
    """A sender or a receiver by its parts. The embedding is of layer -1; `final` is of the layer after the last."""

    name: str
    layer: int
    part: str  # embed, attn, cross, mlp or final
    head: int | None = None
    reads: str = ""  # q, k or v of a receiving head

    @property
    def step(self) -> int:
        """The place in the order in which components run."""
        return 3 * self.layer + ORDER.get(self.part, 0)


@dataclass(frozen=True, eq=False)
class PathPatchingResult(PatchingResult):
    """The metric with every path patched: rows are senders, columns receivers; nan where no path leads there."""

    title = "Which component passes the difference straight to which?"

    @property
    def effects(self) -> Tensor:  # (senders, receivers)
        return self.effect("paths")


def patch_paths(
    model: Any, clean: str | Tensor | Sequence[int] | Prompt, corrupted: str | Tensor | Sequence[int] | Prompt, *,
    metric: LogitMetric | LogitFunction, receivers: Sequence[str] = ("final",), senders: Sequence[str] | None = None,
    direction: Direction = "denoise", progress: Progress | None = None,
) -> PathPatchingResult:  # fmt: skip
    """Path patching: the effect of each sender's direct path to each receiver, at all positions.

    `senders` are by default the embedding, every head and every MLP before the last receiver. Heads that share keys
    and values have one k and v: a path into the k of one is a path into that of its group.
    """
    check_plain_sums(model := unwrap_model(model))
    model, given, base = read_pair(model, clean, corrupted, direction)
    if not receivers:
        raise ConfigError("receivers: there are none; name the input of a head such as 1.2.k, an MLP, or final")
    ends = [parse_receiver(model, name) for name in one_or_more(receivers)]
    starts = [parse_sender(model, name) for name in one_or_more(senders or all_senders(model, ends))]
    check_order(starts if senders else [], ends)
    bound = bind_metric(model, base, metric)
    runs = PatchedRuns(model, base, bound, progress=progress)
    paths = [[start for start in starts if start.step < end.step] for end in ends]
    runs.total = sum(map(len, paths))
    raw = torch.full((len(starts), len(ends)), torch.nan, dtype=torch.float64)
    changes = SenderChanges(model, given, base)
    for column, (end, senders_of_it) in enumerate(zip(ends, paths, strict=True)):
        if senders_of_it:
            rows = [starts.index(start) for start in senders_of_it]
            raw[rows, column] = patch_receiver(runs, end, senders_of_it, changes).mean(1).cpu()
    grid = PatchGrid("paths", tuple(each.name for each in starts), tuple(each.name for each in ends), raw)
    ends_of_metric = metric_ends(model, given, bound, float(runs.value.mean()), direction)
    return PathPatchingResult(bound.name, direction, *ends_of_metric, (grid,))


def patch_receiver(
    runs: PatchedRuns, end: Component, starts: list[Component], changes: "SenderChanges"
) -> Tensor:  # (S, B)
    """The metric with each sender's change in what one receiver reads."""
    depth = runs.model.c.trunk.depth
    stream = f"trunk.{depth - 1}.residual" if end.part == "final" else stream_before(runs.model, end)
    inside = [f"trunk.{end.layer}.{end.part}.{name}" for name in ("qkv" if end.part == "attn" else "q") if end.reads]
    base = record_activations(runs.model, changes.base, stream, *inside)

    def edits(rows: slice) -> dict[str, HookEdit]:
        moved = torch.stack([changes.of(start).to(base[stream].dtype) for start in starts[rows]], 1)  # (B, R, N, D)
        x = (base[stream][:, None] + moved).flatten(0, 1)
        if end.part == "final":
            return {stream: lambda address, was: x.to(was.dtype)}
        norm = getattr(find_block(runs.model, end.layer), f"{end.part}_norm")
        frozen = {name: keep_others(base[name], runs.model, end, name) for name in inside}
        return {f"trunk.{end.layer}.{end.part}.input": lambda address, was: norm(x).to(was.dtype)} | frozen

    return runs.measure(len(starts), edits, min(end.layer, depth - 1) if runs.resumes else 0)


def keep_others(value: Tensor, model: Any, end: Component, address: str) -> HookEdit:
    """Only the receiver, one head or all of them, reads the changed input: q, k and v of the rest stay as they are."""
    heads = find_attentions(model)[f"trunk.{end.layer}.{end.part}"].heads

    def edit(_: str, x: Tensor) -> Tensor:  # (B·R, H, N, d)
        was = value.repeat_interleave(len(x) // len(value), 0)
        if not address.endswith(f".{end.reads}"):
            return was
        if end.head is None:
            return x
        own = end.head * was.shape[1] // heads  # heads may share keys and values
        was[:, own] = x[:, own]
        return was

    return edit


def stream_before(model: Any, end: Component) -> str:
    """The address of the stream that a sublayer reads, before its norm."""
    if end.part == "attn":
        return f"trunk.{end.layer - 1}.residual" if end.layer else "trunk.embed"
    across = end.part == "mlp" and find_block(model, end.layer).cross is not None
    return f"trunk.{end.layer}.residual_{'cross' if across else 'attn'}"


class SenderChanges:
    """What each sender adds to the stream in one run, less what it adds in the other; one layer is kept at a time."""

    def __init__(self, model: Any, given: Prompt, base: Prompt) -> None:
        self.model, self.given, self.base = model, given, base
        self.address, self.difference = "", torch.empty(0)

    def of(self, start: Component) -> Tensor:  # (B, N, D)
        if start.part == "embed":
            return self.between("trunk.embed")
        where = f"trunk.{start.layer}.{start.part}"
        if start.head is None:
            return self.between(f"{where}.out")
        out, gathered = find_attentions(self.model)[where].out, self.between(f"{where}.result")
        alone = torch.zeros_like(gathered)
        alone[:, start.head] = gathered[:, start.head]
        flat, kind = alone.transpose(1, 2).flatten(-2), self.model.autocast()
        with evaluation_mode(self.model), torch.autocast(flat.device.type, kind, enabled=kind is not None):
            # a linear map, and its bias once more to be taken off
            change: Tensor = out(flat) - out(torch.zeros_like(flat))
        return change

    def between(self, address: str) -> Tensor:
        if address != self.address:
            first, second = (record_activations(self.model, run, address)[address] for run in (self.given, self.base))
            self.address, self.difference = address, first - second
        return self.difference


# ---------------------------------------------------------------- names of components


def parse_sender(model: Any, name: str) -> Component:
    """embed, 0.3, 0.attn, 0.mlp, 0.cross or 0.cross.3."""
    if name == "embed":
        return Component(name, -1, "embed")
    layer, *rest = name.split(".")
    part = "attn" if len(rest) == 1 and rest[0].isdecimal() else rest[0] if rest else ""
    head = rest[-1] if rest and rest[-1].isdecimal() else None
    known = part in ORDER and len(rest) == (2 if part == "cross" and head else 1)
    if not layer.isdecimal() or not known:
        raise ConfigError(f"senders: no {name!r}; write embed, 0.3 (a head), 0.attn, 0.mlp, 0.cross or 0.cross.3")
    return check_component(model, Component(name, int(layer), part, None if head is None else int(head)))


def parse_receiver(model: Any, name: str) -> Component:
    """0.3.q (of a head), 0.attn.q (of all heads), 0.cross.3.q, 0.cross.q, 0.mlp or final."""
    head, reads = "", ""
    match name.split("."):
        case ["final"]:
            return Component(name, model.c.trunk.depth, "final")
        case [layer, "mlp"]:
            part = "mlp"
        case [layer, ("attn" | "cross") as part, ("q" | "k" | "v") as reads]:
            pass
        case [layer, "cross" as part, head, ("q" | "k" | "v") as reads] if head.isdecimal():
            pass
        case [layer, head, ("q" | "k" | "v") as reads] if head.isdecimal():
            part = "attn"
        case _:
            layer = ""
    if not layer.isdecimal():
        raise ConfigError(f"receivers: no {name!r}; write 1.2.q, 1.2.k or 1.2.v (a head), 1.attn.k (all heads), "
                          "1.cross.2.q, 1.mlp or final")  # fmt: skip
    if part == "cross" and reads != "q":
        raise ConfigError(f"receivers: {name!r} does not read the stream; of cross-attention only q does")
    return check_component(model, Component(name, int(layer), part, int(head) if head else None, reads))


def check_component(model: Any, found: Component) -> Component:
    depth, attentions = model.c.trunk.depth, find_attentions(model)
    if found.layer >= depth:
        raise ConfigError(f"{found.name}: there is no block {found.layer}; the last of {depth} is {depth - 1}")
    where = f"trunk.{found.layer}.{found.part}"
    if found.part == "mlp" and find_block(model, found.layer).mlp is None:
        raise ConfigError(f"{found.name}: block {found.layer} has no feed-forward (trunk.mlp.kind is none)")
    if found.part != "mlp" and where not in attentions:
        raise ConfigError(f"{found.name}: block {found.layer} has no {found.part} with heads")
    if found.head is not None and found.head >= (heads := attentions[where].heads):
        raise ConfigError(f"{found.name}: {where} has {heads} heads, 0 to {heads - 1}")
    return found


def all_senders(model: Any, ends: list[Component]) -> list[str]:
    """The embedding, every head and every MLP that runs before the last receiver."""
    names = ["embed"]
    for layer in range(model.c.trunk.depth):
        for part in ("attn", "cross"):
            if attention := find_attentions(model).get(f"trunk.{layer}.{part}"):
                own = f"{layer}." if part == "attn" else f"{layer}.cross."
                names += [f"{own}{head}" for head in range(attention.heads)]
        names += [f"{layer}.mlp"] if find_block(model, layer).mlp is not None else []
    last = max(end.step for end in ends)
    return [name for name in names if parse_sender(model, name).step < last]


def find_block(model: Any, layer: int) -> Any:
    return model.trunk.blocks[layer % len(model.trunk.blocks)]


def one_or_more(names: Sequence[str]) -> Sequence[str]:
    return (names,) if isinstance(names, str) else names


def check_order(starts: list[Component], ends: list[Component]) -> None:
    for start in starts:
        if all(start.step >= end.step for end in ends):
            names = ", ".join(end.name for end in ends)
            raise ConfigError(f"senders: {start.name} does not run before {names}, so no path leads there")


def check_plain_sums(model: Any) -> None:
    """A direct path is defined by addition: the receiver reads a norm of a sum with the sender as one term."""
    trunk = find_trunk(model)
    if trunk.c.norm_placement == "post" or not trunk.c.residual or type(trunk) is not Trunk:
        why = "puts a norm after every sum" if trunk.c.norm_placement == "post" else "has no single stream of sums"
        raise ConfigError(f"path patching: this model {why}, so what a component adds does not reach another as a "
                          "term of a sum; use lens.patch_activations")  # fmt: skip
