"""A kernel under examination: with weights of its own if it has any, on tokens of every kind that masks speak of."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard import config
from regard.config.names import called, did_you_mean
from regard.core.cache import Cache
from regard.core.kernels import KERNELS, Ask, How, plan
from regard.core.layers import Attention
from regard.core.masks import mask
from regard.core.model import Trunk
from regard.core.tokens import Places, line, raster

B, HEADS, D, E, N = 2, 6, 8, 5, 12  # sizes differ, so that a swapped axis shows; N fills a grid
MAPS = (("q", "k", "v", "out"), ("q", "v", "out"))  # some kernels have one vector for q and k


class Subject:
    """A kernel by its name and numbers, as a config says it."""

    def __init__(self, said: str) -> None:
        name, _ = called(said)
        if name not in KERNELS:
            there = ", ".join(KERNELS)
            raise config.ConfigError(f"no kernel {name!r}{did_you_mean(name, KERNELS)} there are {there}")
        self.said, self.kernel = said, KERNELS[name]

    def own(self, count: int, width: int = D, groups: int = HEADS) -> nn.Module | None:
        """The weights that a layer for so many tokens would keep for it, the same every time."""
        if self.kernel.weights is None:
            return None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return Attention(self.attention(width, groups), self.settings(count, width, groups), 0).own

    def attention(self, width: int, groups: int) -> config.Attention:
        """With the first set of maps that the kernel does not refuse."""
        for maps in MAPS:
            c = config.Attention(heads=HEADS, groups=groups, width=width, kernel=self.said, maps=maps)
            if not refusal(lambda: Attention(c, trunk(c, width, N), 0)):  # noqa: B023  called at once
                return c
        return config.Attention(heads=HEADS, groups=groups, width=width, kernel=self.said)

    def settings(self, count: int, width: int = D, groups: int = HEADS) -> config.Trunk:
        return trunk(self.attention(width, groups), width, count)

    def refuses(self, ask: Ask) -> str:
        return refusal(lambda: plan(self.said, ask))

    def __call__(self, heads: list[Tensor], ask: Ask, own: nn.Module | None = None) -> Tensor:
        """One call on q, k and v, with the kernel's own weights unless others are given."""
        q, k, v = heads
        own = self.own(k.shape[2], q.shape[3], k.shape[1]) if own is None else own
        how = How(q.shape[3] ** -0.5, own=own if own is None else own.to(q.dtype))
        return plan(self.said, ask, heads=q.shape[1]).run(q, k, v, how)

    def cached(self, x: Tensor, mask: str, pieces: list[int]) -> tuple[Tensor, Tensor]:
        """A trunk on this kernel over vectors (B, N, D): given piece by piece to a cache, and at once."""
        c = replace(self.settings(x.shape[1]), mask=mask)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            stack = Trunk(c).to(x.dtype).eval()
        cache = Cache(stack.entries(x.shape[0], x.shape[1], x), x.shape[0], x.shape[1], False, x)
        parts, begin = [], 0
        for size in pieces:
            tokens = line(x[:, begin : begin + size])
            if begin:
                tokens = replace(tokens, order=tokens.order + begin, plain=False)
            parts.append(stack(tokens, cache=cache).x)
            begin += size
        return torch.cat(parts, 1), stack(line(x)).x


def trunk(c: config.Attention, width: int, count: int) -> config.Trunk:
    """One layer that has learned `count` places, for kernels that fix their length by it."""
    return config.Trunk(dim=HEADS * width, depth=1, attention=c, dropout=config.NO_DROPOUT,
                        position=config.Learned(length=count))  # fmt: skip


def refusal(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except ValueError as problem:
        return str(problem)
    return ""


# ---------------------------------------------------------------- tokens


def plain() -> Places:
    return line(torch.empty(B, N, 0))


def padded() -> Places:
    """Two tokens of padding before the first row, four behind the second."""
    slot = torch.arange(N)
    real = torch.stack([slot >= 2, slot < N - 4])
    return Places(order=(real.cumsum(-1) - 1).clamp(min=0), real=real)


def packed() -> Places:
    order = torch.cat([torch.arange(5), torch.arange(N - 5)]).expand(B, N)
    return Places(order=order, document=(torch.arange(N) >= 5).long().expand(B, N))


def joined() -> Places:
    edges = torch.rand(B, N, N, generator=torch.Generator().manual_seed(0)) < 0.3
    return replace(plain(), edges=edges)


def image() -> Places:
    return raster(torch.empty(B, N, 0), (3, 4))


CASES: dict[str, Callable[[], Places]] = {
    "everything": plain, "causal": plain, "padding": padded, "causal & padding": padded, "causal & window(3)": plain,
    "causal & window(3) & padding": padded, "window(3) | landmarks(2)": plain, "causal & dilated(2, 2)": plain,
    "causal & documents": packed, "edges": joined, "cells(2, 1)": image,
}  # fmt: skip


def asking(case: str, dtype: torch.dtype = torch.float32, grad: bool = False) -> Ask:
    places = CASES[case]()
    return Ask(mask=mask(case), q=places, k=places, dtype=dtype, grad=grad)


def heads(count: int = N, groups: int = HEADS, dtype: torch.dtype = torch.float32, width: int = D) -> list[Tensor]:
    """q, k and v that want gradients, the same every time."""
    chance = torch.Generator().manual_seed(1)
    shapes = (HEADS, width), (groups, width), (groups, E)
    made = (torch.randn(B, many, count, wide, generator=chance, dtype=dtype) for many, wide in shapes)
    return [x.requires_grad_() for x in made]
