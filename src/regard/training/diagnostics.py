"""Training diagnostics: gradient norms and update ratios by layer, attention entropy by head, at intervals in a run.

    {"loss": 2.31, "layers": {"embed": {"gradient": 0.41, "weight": 9.8, "update": 0.0012}, "trunk.0": {...}, ...},
     "heads": {"trunk.0.attn": [0.91, 0.33], ...}}

`gradient` and `weight` are norms; `update` is the size of the next optimizer step relative to the layer's weights, at
its learning rate. A head's number is its entropy divided by the maximum: 0 attends to one token, 1 to all visible
ones equally.

Measuring takes a step on a few rows and undoes it: weights, moments, gradients and RNG states are restored. The
result is a function of the run's state alone, so a resumed run reports the same.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from regard import lens
from regard.config.errors import name_some
from regard.data.batching import batch_to_device
from regard.lens.attention_maps import unwrap_model
from regard.lens.heads import relative_entropy
from regard.tasks.losses import MODEL_INPUTS
from regard.tasks.task import combine_losses
from regard.training.reproducibility import deterministic_sums, get_rng_states, set_rng_states
from regard.training.run import Run, unwrap_prefetch

ROWS = 4  # rows of the next batch that are measured
LONGEST = 256  # tokens of a row for attention maps, whose memory grows with the square
COLLAPSED = 0.05  # of the maximum entropy: every head of a layer attends to about one token
FAST, SLOW = 1e-1, 1e-6  # update ratios of a step beyond which there is a warning
Sizes = dict[str, dict[str, float | None]]


class TrainingDiagnostics:
    """Measures a run between its steps."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.last: dict[str, Any] = {}

    def look(self, step: int) -> dict[str, Any]:
        """The log entry after a step: numbers with four digits, non-finite ones as strings."""
        run, model = self.run, unwrap_model(self.run.model)
        batch = first_rows(
            unwrap_prefetch(run.data).batch(run.step * run.settings.gradient_accumulation), run.objective
        )
        parts, there = run.objective.count_parts(batch), batch_to_device(batch, run.device)
        with quiet_run(run), deterministic_sums(run.device):
            loss = combine_losses(run.objective.loss_sums(model, there), parts)
            loss.backward()
            layers = layer_norms(run)
        self.last = {"step": step, "loss": round_for_json(float(loss.detach())), "layers": layers,
                     "heads": attention_entropies(model, there) if has_attention_maps(model) else {}}  # fmt: skip
        return {name: value for name, value in self.last.items() if name != "step"}

    def warnings(self) -> list[str]:
        """Warnings about the last measurement."""
        if not self.last:
            return []
        return [f"step {self.last['step']:>11,}   {line}" for line in (*self.moving(), *self.looking())]

    def moving(self) -> Iterator[str]:
        layers, share = self.last["layers"], self.share()
        if broken := [name for name, size in layers.items() if isinstance(size["gradient"], str)]:
            yield f"the gradients of {name_some(broken)} are not finite; lower train.optimizer.lr"
        if still := [name for name, size in layers.items() if size["gradient"] == 0]:
            yield f"no gradient reaches {name_some(still)}, so nothing is learned there"
        moves = {name: size["update"] for name, size in layers.items() if isinstance(size["update"], float)}
        if fast := [name for name, update in moves.items() if update > FAST]:
            yield (f"a step moves {name_some(fast)} by {max(moves[name] for name in fast):.0%} of the weights; about "
                   "0.1% "
                   "is usual, so lower train.optimizer.lr")  # fmt: skip
        if slow := [name for name in moves if share and moves[name] / share < SLOW and name not in still]:
            yield (f"a step moves {name_some(slow)} by less than a millionth of the weights; raise train.optimizer.lr "
                   "if "
                   "the loss stands still")  # fmt: skip

    def looking(self) -> Iterator[str]:
        known = {where: heads for where, heads in self.last["heads"].items() if not any(type(w) is str for w in heads)}
        if narrow := [where for where, heads in known.items() if max(heads) < COLLAPSED]:
            yield (f"every head of {name_some(narrow)} attends to a single token; more dropout, a smaller model.init "
                   "or a "
                   "lower train.optimizer.lr may prevent this collapse")  # fmt: skip

    def share(self) -> float:
        """The current learning rate as a fraction of the peak."""
        now, most = lr_factor(self.run), peak_lr_factor(self.run)
        return now / most if most else 0.0


# ---------------------------------------------------------------- a step that is undone


@contextmanager
def quiet_run(run: Run) -> Iterator[None]:
    """Without dropout and compiled code; gradients, learning rates and RNG states are restored afterwards."""
    model, before = unwrap_model(run.model), get_rng_states(run.device)
    training = [part for part in model.modules() if part.training]
    grads = [(weight, weight.grad) for weight in model.parameters()]
    rates = [(group["lr"], group["lr"].clone()) for group in run.optimizer.groups()]
    try:
        model.eval()
        run.optimizer.zero_grad()
        with torch.compiler.set_stance("force_eager"), torch.enable_grad():
            yield
    finally:
        for part in training:
            part.training = True
        for weight, grad in grads:
            weight.grad = grad
        for rate, value in rates:
            rate.copy_(value)
        set_rng_states(before, run.device)


@torch.no_grad()
def layer_norms(run: Run) -> Sizes:
    """Norms of gradient and weights by layer, and the update ratio of the next step."""
    optimizer = run.optimizer
    optimizer.set_lr_factor(lr_factor(run))
    norm = torch.nn.utils.get_total_norm(optimizer.gradients())
    clip = math.inf if run.settings.max_grad_norm is None else run.settings.max_grad_norm
    names, rows = [], []
    for name, weight in optimizer.own.items():
        grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        rows.append(torch.stack([grad.norm(), weight.norm()]).float())
        names.append(name)
    scale = (clip / (norm + 1e-6)).clamp(max=1.0)
    moves = update_sizes(optimizer, scale)
    table = torch.stack(rows).square().cpu()
    found: dict[str, list[float]] = {}
    for name, (gradient, weight) in zip(names, table.tolist(), strict=True):
        row = found.setdefault(layer_of(name), [0.0, 0.0, 0.0])
        for place, size in enumerate((gradient, weight, moves.get(name, 0.0))):
            row[place] += size
    return {name: {"gradient": round_for_json(math.sqrt(a)), "weight": round_for_json(math.sqrt(b)),
                   "update": round_for_json(math.sqrt(c / b)) if b else None}
            for name, (a, b, c) in found.items()}  # fmt: skip


def update_sizes(optimizer: Any, scale: Tensor) -> dict[str, float]:
    """Squared update size of each weight; each is stepped alone and restored, which needs little memory."""
    optimizer.init_state()  # else a first step would leave its state here
    names = {id(weight): name for name, weight in optimizer.own.items()}
    grads = {id(weight): weight.grad for weight in optimizer.own.values() if weight.grad is not None}
    for weight in optimizer.own.values():
        weight.grad = None
    found: dict[str, Tensor] = {}
    for part in optimizer.parts:
        refused = getattr(part, "found_inf", None)  # by the guard, in the previous step
        part.found_inf = None if refused is None else torch.zeros_like(refused)
        for weight in [weight for group in part.param_groups for weight in group["params"] if id(weight) in grads]:
            before, state = weight.clone(), {key: held.clone() for key, held in part.state[weight].items()}
            weight.grad = grads.pop(id(weight)) * scale
            part.step()
            found[names[id(weight)]] = (weight - before).float().square().sum()
            weight.copy_(before)
            weight.grad = None
            for key, held in state.items():
                part.state[weight][key].copy_(held)
        part.found_inf = refused
    return dict(zip(found, torch.stack(list(found.values())).tolist(), strict=True)) if found else {}


def layer_of(name: str) -> str:
    """The layer of a weight: trunk.3 for trunk.blocks.3.attn.qkv.weight, trunk.positions for
    trunk.positions.0.tables.0."""
    words = name.removeprefix("module.").split(".")
    if words[0] not in ("trunk", "encoder"):
        return words[0]
    return f"{words[0]}.{words[2] if words[1] == 'blocks' else words[1]}"


def lr_factor(run: Run) -> float:
    """The learning rate factor of the next step."""
    return run.schedule(run.step + 1, run.progress)


def peak_lr_factor(run: Run) -> float:
    """The largest learning rate factor of the run."""
    warmup, steps = run.settings.schedule.warmup, run.settings.steps
    last = steps or max(1, 2 * warmup)
    asked = {1, min(warmup, last), min(warmup + 1, last), *(max(1, last * part // 16) for part in range(17))}
    return max(run.schedule(step, (step - 1) / last) for step in asked if step)


# ---------------------------------------------------------------- attention entropy


def attention_entropies(model: nn.Module, batch: Any) -> dict[str, list[float]]:
    """Each head's attention entropy divided by the maximum, by attention layer, on the first row."""
    asked = {name: shorten_row(table[:1], batch) for name, table in model_inputs(batch, model).items()}
    seen = lens.attention_views(model, asked.pop("ids"), **asked)
    return {view.where: [round_for_json(share) for share in relative_entropy(view).tolist()] for view in seen}  #: S156


def has_attention_maps(model: nn.Module) -> bool:
    """Whether this is a single model whose heads have attention weights."""
    return hasattr(model, "embed") and not lens.why_not_watchable(model)


def is_text_batch(batch: Any) -> bool:
    ids = batch["ids"] if isinstance(batch, dict) else batch
    return ids.dim() == 2 and not ids.is_floating_point()


def shorten_row(table: Tensor, batch: Any) -> Tensor:
    """The first tokens of a text row, or the last ones if it is padded on the left."""
    if not is_text_batch(batch):
        return table
    left = isinstance(batch, dict) and "real" in batch and not bool(batch["real"][0, 0])
    return table[:, -LONGEST:] if left else table[:, :LONGEST]


def model_inputs(batch: Any, model: nn.Module) -> dict[str, Tensor]:
    """The model inputs of a batch: the ids, and what its front end accepts by name."""
    if isinstance(batch, Tensor):
        return {"ids": batch[:, :-1]}
    takes = signature(unwrap_model(model).embed.forward).parameters.keys() - {"start"}  # `start` belongs to a cache
    return {name: table for name, table in batch.items() if name in ("ids", *MODEL_INPUTS) or name in takes}


def first_rows(batch: Any, objective: Any, rows: int = ROWS) -> Any:
    """The first rows of a batch; all rows if the first ones have no labels."""
    few = cut_rows(batch, rows)
    return few if any(part.count for part in objective.count_parts(few).values()) else batch


def cut_rows(batch: Any, rows: int) -> Any:
    return batch[:rows] if isinstance(batch, Tensor) else {name: table[:rows] for name, table in batch.items()}


def round_for_json(number: float) -> Any:
    """Four significant digits; non-finite numbers as strings, since JSON has no NaN."""
    return float(f"{number:.4g}") if math.isfinite(number) else str(number)
