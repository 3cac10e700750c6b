"""Cases of a kernel check: an attention kernel, with its own weights if it has any, under every mask; and its growth.

Growth of time and memory is measured between two lengths.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError, did_you_mean, parse_call
from regard.core.cache import KVCache
from regard.core.kernels import KERNELS, AttentionArgs, AttentionSpec, make_plan
from regard.core.layers import Attention
from regard.core.masks import mask
from regard.core.model import Trunk
from regard.core.tokens import TokenLayout, grid_tokens, sequence_tokens
from regard.measure.complexity import fit_exponent, measure_growth
from regard.measure.peak_memory import peak_tensor_bytes

B, HEADS, D, E, N = 2, 6, 8, 5, 12  # all sizes differ, so that a swapped axis shows; N fills a grid
MAPS = (("q", "k", "v", "out"), ("q", "v", "out"))  # some kernels use one projection for q and k


class KernelSubject:
    """A kernel under test, given as in a config: a name with arguments."""

    def __init__(self, call: str) -> None:
        name, _ = parse_call(call)
        if name not in KERNELS:
            there = ", ".join(KERNELS)
            raise ConfigError(f"no kernel {name!r}{did_you_mean(name, KERNELS)} there are {there}")
        self.said, self.kernel = call, KERNELS[name]

    def kernel_weights(self, count: int, width: int = D, groups: int = HEADS) -> nn.Module | None:
        """The kernel's own weights in a layer for `count` tokens, with a fixed seed."""
        if self.kernel.weights is None:
            return None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return Attention(self.attention(width, groups), self.settings(count, width, groups), 0).own

    def attention(self, width: int, groups: int) -> config.Attention:
        """The attention config with the first set of projections that the kernel accepts."""
        for maps in MAPS:
            c = config.Attention(heads=HEADS, kv_heads=groups, head_dim=width, kernel=self.said, projections=maps)
            if not refusal_of(lambda: Attention(c, one_layer_trunk(c, width, N), 0)):  # noqa: B023  called at once
                return c
        return config.Attention(heads=HEADS, kv_heads=groups, head_dim=width, kernel=self.said)

    def settings(self, count: int, width: int = D, groups: int = HEADS) -> config.Trunk:
        return one_layer_trunk(self.attention(width, groups), width, count)

    def refuses(self, spec: AttentionSpec) -> str:
        return refusal_of(lambda: make_plan(self.said, spec))

    def __call__(self, heads: list[Tensor], spec: AttentionSpec, own: nn.Module | None = None) -> Tensor:
        """Run the kernel on q, k and v, with its own weights unless others are given."""
        q, k, v = heads
        own = self.kernel_weights(k.shape[2], q.shape[3], k.shape[1]) if own is None else own
        args = AttentionArgs(q.shape[3] ** -0.5, weights=own if own is None else own.to(q.dtype))
        return make_plan(self.said, spec, heads=q.shape[1]).run(q, k, v, args)

    def run_cached(self, x: Tensor, mask: str, pieces: list[int]) -> tuple[Tensor, Tensor]:
        """The outputs of a trunk with this kernel on vectors (B, N, D): in pieces through a KV cache, and at once."""
        c = replace(self.settings(x.shape[1]), mask=mask)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            stack = Trunk(c).to(x.dtype).eval()
        cache = KVCache(stack.entries(x.shape[0], x.shape[1], x), x.shape[0], x.shape[1], False, x)
        parts, begin = [], 0
        for size in pieces:
            tokens = sequence_tokens(x[:, begin : begin + size])
            if begin:
                tokens = replace(tokens, order=tokens.order + begin, is_plain=False)
            parts.append(stack(tokens, cache=cache).x)
            begin += size
        return torch.cat(parts, 1), stack(sequence_tokens(x)).x


def one_layer_trunk(c: config.Attention, width: int, count: int) -> config.Trunk:
    """A trunk of one layer with `count` learned positions, for kernels that fix their length by it."""
    return config.Trunk(dim=HEADS * width, depth=1, attention=c, dropout=config.NO_DROPOUT,
                        position=config.LearnedPosition(length=count))  # fmt: skip


def refusal_of(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except ValueError as problem:
        return str(problem)
    return ""


# ---------------------------------------------------------------- tokens


def plain_layout() -> TokenLayout:
    return sequence_tokens(torch.empty(B, N, 0))


def padded_layout() -> TokenLayout:
    """Two padding tokens before the first row, four after the second."""
    slot = torch.arange(N)
    real = torch.stack([slot >= 2, slot < N - 4])
    return TokenLayout(order=(real.cumsum(-1) - 1).clamp(min=0), is_real=real)


def packed_layout() -> TokenLayout:
    order = torch.cat([torch.arange(5), torch.arange(N - 5)]).expand(B, N)
    return TokenLayout(order=order, document=(torch.arange(N) >= 5).long().expand(B, N))


def graph_layout() -> TokenLayout:
    edges = torch.rand(B, N, N, generator=torch.Generator().manual_seed(0)) < 0.3
    return replace(plain_layout(), edges=edges)


def image_layout() -> TokenLayout:
    return grid_tokens(torch.empty(B, N, 0), (3, 4))


KERNEL_CASES: dict[str, Callable[[], TokenLayout]] = {
    "full": plain_layout,
    "causal": plain_layout,
    "padding": padded_layout,
    "causal & padding": padded_layout,
    "causal & window(3)": plain_layout,
    "causal & window(3) & padding": padded_layout,
    "window(3) | global_tokens(2)": plain_layout,
    "causal & dilated(2, 2)": plain_layout,
    "causal & documents": packed_layout,
    "edges": graph_layout,
    "window2d(2, 1)": image_layout,
}


def build_spec(case: str, dtype: torch.dtype = torch.float32, grad: bool = False) -> AttentionSpec:
    places = KERNEL_CASES[case]()
    return AttentionSpec(mask=mask(case), q=places, k=places, dtype=dtype, grad=grad)


def random_qkv(count: int = N, groups: int = HEADS, dtype: torch.dtype = torch.float32, width: int = D) -> list[Tensor]:
    """q, k and v that require gradients, with a fixed seed."""
    chance = torch.Generator().manual_seed(1)
    shapes = (HEADS, width), (groups, width), (groups, E)
    made = (torch.randn(B, many, count, wide, generator=chance, dtype=dtype) for many, wide in shapes)
    return [x.requires_grad_() for x in made]


MASKS = ("causal", "full", "causal & window(64)", "window(64) | global_tokens(4)")
WIDTH, SHORTEST, TURNS = 16, 256, 2
ENOUGH = 0.3  # seconds: after a call that takes longer, no longer lengths are tried


@dataclass(frozen=True)
class KernelGrowth:
    """The growth exponents of time and memory, log2 of the cost ratio for a doubled length, at the largest lengths
    measured."""

    mask: str
    counts: tuple[int, int]
    time: float
    memory: float
    trained: bool


def measure_kernel_growth(subject: KernelSubject, longest: int) -> KernelGrowth | str:
    """The growth exponents under the first mask that the kernel accepts, or the reason why it accepts none."""
    refusals = {text: subject.refuses(build_length_spec(text, SHORTEST, False)) for text in MASKS}
    text = next((text for text, refused in refusals.items() if not refused), None)
    if text is None:
        return refusals["causal"]
    trained = not subject.refuses(build_length_spec(text, SHORTEST, True))
    refused = ""

    def cost(count: int) -> tuple[float, float] | None:
        nonlocal refused
        refused = subject.refuses(build_length_spec(text, count, trained))
        return None if refused else measure_call(subject, text, count, trained)

    counts, costs = measure_growth(cost, SHORTEST, max(longest, 2 * SHORTEST), ENOUGH)
    if len(costs) < 2:
        return refused
    seconds, held = (fit_exponent(counts, spent, last=2) for spent in zip(*costs, strict=True))
    return KernelGrowth(text, (counts[-2], counts[-1]), seconds, held, trained)


def build_length_spec(text: str, count: int, grad: bool) -> AttentionSpec:
    places = sequence_tokens(torch.empty(1, count, 0))
    return AttentionSpec(mask=mask(text), q=places, k=places, grad=grad)


def measure_call(subject: KernelSubject, text: str, count: int, trained: bool) -> tuple[float, float]:
    """Seconds of a call, the best of several, and its peak of bytes beyond the inputs."""
    chance = torch.Generator().manual_seed(0)
    given = [torch.randn(1, HEADS, count, WIDTH, generator=chance).requires_grad_(trained) for _ in range(3)]
    own, spec = subject.kernel_weights(count, WIDTH), build_length_spec(text, count, trained)

    def call() -> None:
        out = subject(given, spec, own)
        if trained:
            torch.autograd.grad(out.sum(), given, allow_unused=True)

    with torch.set_grad_enabled(trained):
        held = peak_tensor_bytes(call)
        return min(time_call(call) for _ in range(TURNS)), float(held)


def time_call(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
