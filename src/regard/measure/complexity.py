"""Attention beside its rivals: what a layer of each computes, how much must wait, and how far news travels.

    attention      every token asks every token: all at once, one step from anywhere to anywhere
    recurrent      each token waits for the one before it
    convolution    all at once, but news moves k-1 places on in a layer; further with holes that widen k times a layer

Operations are those of matrix products, 2 for each multiplication and addition, for layers d wide on n tokens
(Vaswani et al. 2017, table 1). Paths are in layers, or steps of a recurrent layer, from the first token to the last.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """Each quantity as an order of growth and as a number."""

    name: str
    operations: int
    operations_order: str
    sequential: int
    sequential_order: str
    path: int
    path_order: str


def complexity(n: int, d: int, kernel: int = 3, window: int | None = None) -> tuple[Layer, ...]:  #: S139
    """The rivals at this size; with a `window`, attention that sees so many places to each side as well."""
    maps, convolved = 8 * n * d * d, 2 * kernel * n * d * d
    rows = [Layer("attention", maps + 4 * n * n * d, "n²·d", 1, "1", 1, "1")]
    if window:
        near = maps + 4 * n * min(n, 2 * window + 1) * d
        rows.append(Layer(f"attention, window {window}", near, "r·n·d", 1, "1", -(-(n - 1) // window) or 1, "n/r"))
    return (
        *rows,
        Layer("recurrent", 4 * n * d * d, "n·d²", n, "n", n, "n"),
        Layer(f"convolution, kernel {kernel}", convolved, "k·n·d²", 1, "1", contiguous(n, kernel), "n/(k-1)"),
        Layer("convolution, dilated", convolved, "k·n·d²", 1, "1", dilated(n, kernel), "log_k n"),
    )


def contiguous(n: int, kernel: int) -> int:
    """Layers until the last token has seen the first: each sees k-1 places further back."""
    return max(1, -(-(n - 1) // (kernel - 1)))


def dilated(n: int, kernel: int) -> int:
    """The same with dilations 1, k, k², ...: after L layers a token sees itself and k^L - 1 places back."""
    layers = 1
    while kernel**layers < n:
        layers += 1
    return layers
