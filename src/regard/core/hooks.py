"""Hooks: `looking` records or edits activations by address while a model runs, and keeps their gradients.

These are ordinary branches, not torch hooks: without a hook the model runs no extra operation, and a compiled model
that has already run accepts a new one. Fused kernels keep running: the attention weights of a hooked head are computed
again from the kernel's own q, k, scale, bias and mask, for the chosen heads and rows. docs/looking.md lists addresses.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.errors import ConfigError, did_you_mean
from regard.core.kernels import AttentionArgs, Plan, attention_scores, attention_weights, mask_table, repeat_kv

HEADED = ("q", "k", "v", "scores", "pattern", "result", "head_out")  # (B, H, N, …); everything else is (B, N, …)
HookEdit = Callable[[str, Tensor], Tensor]
ReadGrad = Callable[[], Tensor | None]  # reads the gradient of a recorded tensor; None before backward
ROWS = 128


class RecordedLink:
    """Linked list of recorded tensors: a Python list that grows would cause a recompilation at every call."""

    def __init__(self, before: "RecordedLink | None" = None, x: Tensor | None = None, grad: ReadGrad | None = None):
        self.before, self.x, self.grad = before, x, grad


class Activations:
    """Recorded activations: `seen[address]` is the last tensor, `seen.all_calls(address)` has one for each call."""

    def __init__(self, names: Sequence[str]) -> None:
        self.last = {name: RecordedLink() for name in names}

    def add(self, name: str, x: Tensor, grad: ReadGrad | None = None) -> None:
        self.last[name] = RecordedLink(self.last[name], x, grad)

    def __getitem__(self, name: str) -> Tensor:
        return self.all_calls(name)[-1]

    def all_calls(self, name: str) -> list[Tensor]:
        link, found = self.last.get(name), list[Tensor]()
        while link is not None and link.x is not None:
            found.insert(0, link.x)
            link = link.before
        if not found:
            raise KeyError(f"nothing was recorded at {name!r}; recorded were {', '.join(self.last)}")
        return found

    def grad(self, name: str) -> Tensor:
        """The gradient of the last tensor, after backward, if `looking` was called with `grad=True`."""
        self[name]  # raises with the hooked addresses if this one is not hooked
        read = self.last[name].grad
        if read is None or (found := read()) is None:
            raise KeyError(f"no gradient at {name!r}: it takes looking(..., grad=True) and then backward")
        return found

    def __iter__(self) -> Iterator[str]:
        return (name for name, link in self.last.items() if link.x is not None)


class Hook:
    """The hook of one `looking` call: its addresses, heads and rows, and the edit if there is one."""

    def __init__(self, names: Sequence[str], heads: Sequence[int] | None, queries: slice | None, edit: HookEdit | None):
        self.names, self.edit = frozenset(names), edit
        self.heads = slice(None) if heads is None else list(heads)
        self.queries = queries or slice(None)
        self.run_kernel: Callable[..., Tensor] | None = None  # replaces Plan.run where a result is hooked
        self.grad, self.seen = False, Activations(names)

    def take(self, address: str, x: Tensor, heads: int) -> Tensor:
        """Record the chosen part of x, or replace it by the edited one."""
        where = self.where(address, x.shape[1], heads or x.shape[1])
        part = x[where]
        if self.edit is None:
            self.seen.add(address, part, self.keep_grad(address, x, where))
            return x
        new = self.edit(address, part)
        if not isinstance(new, Tensor) or new.shape != part.shape:
            raise ConfigError(f"edit at {address} must return a tensor of the shape it was given, {tuple(part.shape)}")
        out = x.clone()
        out[where] = new.to(x.dtype)
        return out

    def keep_grad(self, address: str, x: Tensor, where: tuple[Any, ...]) -> ReadGrad | None:
        """Make x keep its gradient, even if no earlier weight is trained; returns a function that reads its part."""
        if not self.grad:
            return None
        if not torch.is_grad_enabled():
            raise ConfigError(f"looking(grad=True): gradients are off at {address}; leave torch.no_grad() for this")
        x.requires_grad_().retain_grad()
        return lambda: None if x.grad is None else x.grad[where]

    def where(self, address: str, count: int, heads: int) -> tuple[Any, ...]:
        """The index of the chosen part; each of `count` key and value heads may serve several of `heads`."""
        name, chosen = address.rsplit(".", 1)[-1], self.heads
        if name not in HEADED:
            return (slice(None), self.queries)
        if isinstance(chosen, list):
            if not all(-heads <= head < heads for head in chosen):
                raise ConfigError(f"{address} has {heads} heads, and {chosen} were requested")
            chosen = [head % heads * count // heads for head in chosen]
        return (slice(None), chosen) if name in "kv" else (slice(None), chosen, self.queries)


class HookContext:
    """All hooks of one forward pass, at one address of the model."""

    def __init__(self, hooks: tuple[Hook, ...], where: str = "") -> None:
        self.hooks, self.where = hooks, where

    def at(self, step: str) -> "HookContext | None":
        """The context one level down, or None if no hook lies beneath: such blocks run without any hook code."""
        where = f"{self.where}.{step}" if self.where else step
        beneath = any(name.startswith(f"{where}.") for hook in self.hooks for name in hook.names)
        return HookContext(self.hooks, where) if beneath else None

    def apply(self, name: str, x: Tensor, heads: int = 0) -> Tensor:
        address = f"{self.where}.{name}" if self.where else name
        for hook in [hook for hook in self.hooks if address in hook.names]:
            x = hook.take(address, x, heads)
        return x

    def apply_by_head(self, name: str, result: Tensor, read_maps: Callable[[], Tensor], x: Tensor) -> Tensor:
        """Record or edit what each head adds to x through its own map (H, e, D), for chosen heads only."""
        address = f"{self.where}.{name}"
        for hook in [hook for hook in self.hooks if address in hook.names]:
            at = hook.where(address, result.shape[1], result.shape[1])
            maps = read_maps()[at[1]]
            parts = result.detach()[at] @ maps.detach() if hook.grad else result[at] @ maps
            if hook.edit is None:
                hook.seen.add(address, parts, hook.keep_grad(address, parts, ()))
                moved = parts - parts.detach() if hook.grad else None  # zero, with the gradient of parts
            else:
                moved = hook.edit(address, parts) - parts
            if moved is not None:
                x = x.clone()
                x[:, at[2]] += moved.sum(1)
        return x

    def attend_and_record(self, name: str, q: Tensor, k: Tensor, v: Tensor, plan: Plan, how: AttentionArgs) -> Tensor:
        """Attention that records or edits its scores or its pattern, if they are hooked."""
        names = [f"{self.where}.{name}.{what}" for what in ("scores", "pattern")]
        asked = [hook for hook in self.hooks if any(address in hook.names for address in names)]
        if asked and not plan.kernel.exact:
            raise ConfigError(f"kernel {plan.kernel.name!r} has no table of attention weights; watch q, k, v or result")
        if any(hook.edit is not None or hook.grad for hook in asked):
            table = plan.table(q, how.bias)
            weights = attention_weights(self.apply(f"{name}.scores", attention_scores(q, k, how.scale, table)))
            return F.dropout(self.apply(f"{name}.pattern", weights), how.dropout) @ repeat_kv(v, q)
        for hook in asked:
            for address in [name for name in names if name in hook.names]:
                heads, rows = hook.where(address, q.shape[1], q.shape[1])[1:]
                hook.seen.add(address, attention_table(address, heads, rows, q, k, plan, how))
        runs = [h.run_kernel for h in self.hooks if h.run_kernel and f"{self.where}.{name}.result" in h.names]
        return runs[-1](plan, q, k, v, how) if runs else plan.run(q, k, v, how)


def attention_table(name: str, heads: Any, rows: slice, q: Tensor, k: Tensor, plan: Plan, how: AttentionArgs) -> Tensor:
    """Scores or pattern of the chosen heads and query rows only, in chunks of rows that fit the CPU cache."""
    every, sure = range(q.shape[2])[rows], plan.spec.causal and how.bias is None
    heads = torch.arange(q.shape[1], device=q.device)[heads]
    q, k = q[:, heads].contiguous(), k[:, heads // (q.shape[1] // k.shape[1])].contiguous()
    wanted = name.endswith("pattern")
    out = q.new_empty(*q.shape[:2], len(every), k.shape[2])
    for start in range(0, len(every), ROWS):
        some = every[start : start + ROWS]
        last = max(some) + 1 if sure else k.shape[2]  # causal: later keys are masked for all of these rows
        index = torch.arange(q.shape[2], device=q.device)[rows][start : start + ROWS]
        table = mask_table(plan.spec, heads, index, how.bias, q.dtype)
        s = attention_scores(q[:, :, index], k[:, :, :last], how.scale, None if table is None else table[..., :last])
        out[:, :, start : start + ROWS, :last] = attention_weights(s, sure) if wanted else s
        out[:, :, start : start + ROWS, last:] = 0.0 if wanted else float("-inf")
    return out


@contextmanager
def looking(
    model: Any, *names: str, heads: Sequence[int] | None = None, queries: slice | None = None,
    edit: HookEdit | None = None, run_kernel: Callable[..., Tensor] | None = None, grad: bool = False,
) -> Iterator[Activations]:  # fmt: skip
    """Hook a model at addresses such as "trunk.3.attn.pattern" or "trunk.*.mlp.out".

    Without `edit` activations are recorded and outputs do not change; with it, `edit(address, tensor)` returns the
    replacement. `heads` and `queries` choose heads and token rows. Works on compiled models that have already run.
    Where a `result` is hooked, `run_kernel(plan, q, k, v, how)` replaces `plan.run`, for example to time or compare
    kernels. `grad`: `seen.grad(address)` has the gradient after backward; patterns and scores then use `reference`.
    """
    for wrapper in ("_orig_mod", "module"):
        model = getattr(model, wrapper, model)
    known = list(model.addresses())
    chosen: dict[str, None] = {}
    for name in names:
        found = [address for address in known if fnmatchcase(address, name)]
        if not found:
            raise ConfigError(f"no address {name!r}{did_you_mean(name, known)} model.addresses() lists {len(known)}")
        chosen.update(dict.fromkeys(found))
    if grad and edit:
        raise ConfigError("looking: edit or grad=True, not both; use two, one within the other")
    hook = Hook(list(chosen), heads, queries, edit)
    hook.run_kernel, hook.grad, model.hooks = run_kernel, grad, (*model.hooks, hook)
    try:
        with torch.compiler.set_stance("force_eager") if grad else nullcontext():
            yield hook.seen
    finally:
        model.hooks = tuple(each for each in model.hooks if each is not hook)
