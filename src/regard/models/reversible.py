"""Reversible trunk: the input of a layer is recomputed from its output, so only the last is kept (Gomez et al. 2017).

    (a, b)  ->  (b, a + f(b))          f is attention, then feed-forward, then the next block's attention, ...
    (b, c)  ->  (c - f(b), b)          the inverse, which is possible because b is kept

Two streams start as the same vectors and end as their mean. A training step therefore keeps two tensors for a trunk of
any depth, for a third more FLOPs: backward runs every sublayer again, with the same random numbers. The streams are in
fp32 whatever the weights' dtype, since the subtracted value must equal the added one. Without gradients, with a cache,
hooked or compiled it runs normally, and keeps the usual activations.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError
from regard.core.layers import Block, Scope, compute_dtype
from regard.core.model import TRUNKS, BlockCall, BlockRunner, Trunk


class ReversibleRunner(BlockRunner):
    """Runs the blocks on two streams."""

    def run(self, trunk: Trunk, x: Tensor, calls: list[BlockCall], keep: list[Tensor] | None) -> Tensor:
        plain = [call[1].watch is not None or call[2] != (None, None) for call in calls]
        forgets = torch.is_grad_enabled() and keep is None and not any(plain) and not torch.compiler.is_compiling()
        a = b = x.to(torch.promote_types(x.dtype, torch.float32))
        if forgets:
            chain = ReversibleChain(calls, trunk.positions, x.dtype)
            a, b = ReversibleFunction.apply(chain, a, b, *chain.inputs)  # type: ignore[no-untyped-call]
            calls = []
        for block, scope, past in calls:
            for name in sublayer_names(block):
                a, b = b, a + sublayer_output(block, name, b.to(x.dtype), scope, past[name == "cross"])
                a, b = (a, b) if name == "mlp" else hook_streams(scope, f"residual_{name}", a, b)
            a, b = hook_streams(scope, "residual", a, b)
            if keep is not None:
                middle = ((a + b) / 2).to(x.dtype)
                keep.append(middle if trunk.final_norm is None else trunk.final_norm(middle))
        return ((a + b) / 2).to(x.dtype)


class ReversibleTrunk(Trunk):
    """A trunk of kind "reversible": the same blocks, run on two streams."""

    runner = ReversibleRunner()

    def __init__(self, c: config.Trunk, init: str = "xavier") -> None:
        if c.norm_placement != "pre" or not c.residual:
            raise ConfigError(
                "trunk.kind 'reversible' adds to streams: set trunk.norm_placement = 'pre', trunk.residual = true"
            )
        super().__init__(c, init)


def sublayer_names(block: nn.Module) -> Iterator[str]:
    return (name for name in ("attn", "cross", "mlp") if getattr(block, name) is not None)


def sublayer_output(block: Any, name: str, x: Tensor, scope: Scope, past: Any = None) -> Tensor:
    """The output of one sublayer."""
    where = (scope,) if name == "mlp" else (scope, past)
    given = scope.tap(f"{name}.input", getattr(block, f"{name}_norm")(x))
    return block.drop(getattr(block, name)(given, *where))  # type: ignore[no-any-return]


def hook_streams(scope: Scope, name: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Apply hooks to the streams' mean; an edit shifts both."""
    if scope.watch is None:
        return a, b
    moved = scope.tap(name, (a + b) / 2) - (a + b) / 2
    return a + moved, b + moved


# ---------------------------------------------------------------- backward without stored activations


@dataclass(eq=False)
class ReversibleHalf:
    """One sublayer, and the tensors that its gradient reaches: its weights, and tensors from outside the trunk."""

    block: Block
    name: str
    scope: Scope
    tensors: list[Tensor]
    dtype: torch.dtype

    def __call__(self, x: Tensor) -> Tensor:
        return sublayer_output(self.block, self.name, x.to(self.dtype), self.scope).to(x.dtype)


class ReversibleChain:
    """The sublayers in order, on detached copies of outside tensors: `inputs` are the originals."""

    def __init__(self, steps: list[BlockCall], positions: nn.Module, dtype: torch.dtype) -> None:
        self.halves: list[ReversibleHalf] = []
        self.outside: dict[int, tuple[Tensor, Tensor]] = {}  # the original, and its detached copy in the trunk
        self.weights: dict[int, Tensor] = {}
        for block, scope, _ in steps:
            inner, made = self.detach_scope(scope)
            for name in sublayer_names(block):
                parts = [getattr(block, name), getattr(block, f"{name}_norm"), *([positions] * (name == "attn"))]
                own = [weight for part in parts for weight in part.parameters() if weight.requires_grad]
                self.weights |= {id(weight): weight for weight in own}
                self.halves.append(ReversibleHalf(block, name, inner, own + made, dtype))  # type: ignore[arg-type]
        self.inputs = [*self.weights.values(), *(original for original, _ in self.outside.values())]

    def detach_scope(self, scope: Scope) -> tuple[Scope, list[Tensor]]:
        """The scope with detached copies of its tensors that require gradients: positions, tables, the encoder's
        memory."""
        lean, plan = self.copy(scope.position.qk_offset), replace(scope.plan, ready=self.copy(scope.plan.ready))
        memory, place = self.copy(scope.memory), replace(scope.position, qk_offset=lean)
        made = [x for x in (lean, plan.ready, memory) if x is not None and x.requires_grad]
        return replace(scope, plan=plan, position=place, memory=memory), made

    def copy(self, x: Tensor | None) -> Tensor | None:
        if x is None or not x.requires_grad:
            return x
        return self.outside.setdefault(id(x), (x, x.detach().requires_grad_()))[1]

    def gradients(self, found: dict[int, Tensor]) -> list[Tensor | None]:
        """The gradients in the order of `inputs`."""
        copies = [copy for _, copy in self.outside.values()]
        return [found.get(id(tensor)) for tensor in (*self.weights.values(), *copies)]


class ReversibleFunction(torch.autograd.Function):
    """Autograd function of the streams: backward recomputes inputs and keeps no activations."""

    @staticmethod
    def forward(ctx: Any, chain: ReversibleChain, a: Tensor, b: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        ctx.chain, ctx.kind, ctx.chances = chain, a.device.type, []
        ctx.cast = compute_dtype(a) if torch.is_autocast_enabled(a.device.type) else None
        for half in chain.halves:
            ctx.chances.append(rng_states(a.device))
            a, b = b, a + half(b)
        ctx.save_for_backward(a, b)
        return a, b

    @staticmethod
    def backward(ctx: Any, da: Tensor, db: Tensor) -> tuple[Tensor | None, ...]:
        (a, b), found = ctx.saved_tensors, dict[int, Tensor]()
        for half, state in zip(reversed(ctx.chain.halves), reversed(ctx.chances), strict=True):
            with replay_rng(state, a.device), torch.enable_grad(), torch.autocast(ctx.kind, ctx.cast, bool(ctx.cast)):
                x = a.detach().requires_grad_()
                made = half(x)
            dx, *rest = torch.autograd.grad(made, [x, *half.tensors], db, allow_unused=True)
            for tensor, grad in zip(half.tensors, rest, strict=True):
                if grad is not None:
                    found[id(tensor)] = found[id(tensor)] + grad if id(tensor) in found else grad
            # the inverse of `a, b = b, a + half(b)`: the inputs of this half
            a, b = b - made.detach(), a  #: S119
            da, db = db, da + dx
        return None, da, db, *ctx.chain.gradients(found)


def rng_states(device: torch.device) -> list[Tensor]:
    """The RNG states of the CPU and the device."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


@contextmanager
def replay_rng(states: list[Tensor], device: torch.device) -> Iterator[None]:
    """Restore earlier RNG states; afterwards the present ones continue."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.set_rng_state(states[0])
        if device.type == "cuda":
            torch.cuda.set_rng_state(states[1], device)
        yield


TRUNKS["reversible"] = ReversibleTrunk
