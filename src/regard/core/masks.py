"""Who may look at whom: a tree of small frozen classes.

A mask is structure: it holds numbers and never tensors, and asks two Spots for what it needs to know. So one tree
serves three ways: as a dense table, as a FlexAttention predicate, and as something kernels recognise by its form.
True means that looking is allowed. A mask says what is meant; how fast that runs is the kernel's affair.
"""

import ast
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor

from regard.config.expressions import MASKS, call, check_mask, check_number, parse
from regard.core.tokens import Places, Spot, line


@dataclass(frozen=True)
class Mask:
    """May query q see key k? Masks join with & and |, turn with ~, and are equal when they are built alike."""

    reads: ClassVar[tuple[str, ...]] = ("order",)

    def __post_init__(self) -> None:
        for field in fields(self):
            check_number(type(self).__name__.lower(), field.name, getattr(self, field.name))

    def allows(self, q: Spot, k: Spot) -> Tensor:
        raise NotImplementedError

    def __and__(self, other: "Mask") -> "Mask":
        if EVERYTHING in (self, other):
            return other if self == EVERYTHING else self
        return join(And, self, other)

    def __or__(self, other: "Mask") -> "Mask":
        return EVERYTHING if EVERYTHING in (self, other) else join(Or, self, other)

    def __invert__(self) -> "Mask":
        return Not(self)

    def __str__(self) -> str:
        numbers = [int(getattr(self, field.name)) for field in fields(self)]
        return type(self).__name__.lower() + (f"({', '.join(map(str, numbers))})" if numbers else "")

    @property
    def leaves(self) -> "tuple[Mask, ...]":
        """The masks it is made of."""
        return (self,)

    @property
    def tables(self) -> frozenset[str]:
        """The tables that it reads, or its leaves do."""
        return frozenset(table for leaf in self.leaves for table in leaf.reads)

    @property
    def ahead(self) -> bool:
        """Whether a token may see a later one; who sees the first tokens both ways must be given them at once."""
        return not isinstance(self, Causal | Prefix)

    def table(self, q: Places, k: Places) -> Tensor:
        """(B, Q, K), or smaller where an axis would only repeat: one row of B without data, one of Q for padding."""
        b, i, j = (torch.arange(size, device=q.order.device) for size in (q.batch, q.count, k.count))
        return self.allows(Spot(q, b[:, None, None], i[None, :, None]), Spot(k, b[:, None, None], j[None, None, :]))

    def picture(self, tokens: Places | int) -> str:
        """The table drawn for a terminal, a row a query: ■ may look, · may not."""
        places = line(torch.empty(1, tokens, 0)) if isinstance(tokens, int) else tokens
        table = self.table(places, places)[0].expand(places.count, places.count)
        return "\n".join(" ".join("■" if cell else "·" for cell in row) for row in table.tolist())


class Everything(Mask):
    reads = ()

    def allows(self, q: Spot, k: Spot) -> Tensor:
        return torch.ones_like(q.i * k.i, dtype=torch.bool)


class Causal(Mask):
    """Nobody sees the future."""

    def allows(self, q: Spot, k: Spot) -> Tensor:  #: S020
        return k.order <= q.order


@dataclass(frozen=True)
class Prefix(Mask):
    """Causal, but everybody sees the first `length` tokens: read the question both ways, answer left to right."""

    length: int

    def allows(self, q: Spot, k: Spot) -> Tensor:
        return (k.order < self.length) | (k.order <= q.order)


@dataclass(frozen=True)
class Window(Mask):
    """Neighbours up to `radius` away, on both sides; with `& causal`, behind only."""

    radius: int

    def allows(self, q: Spot, k: Spot) -> Tensor:  #: S027
        return (q.order - k.order).abs() <= self.radius


@dataclass(frozen=True)
class Strided(Mask):
    """Every `step`-th token, counted from the query (Child et al. 2019)."""

    step: int

    def allows(self, q: Spot, k: Spot) -> Tensor:
        return (q.order - k.order) % self.step == 0


@dataclass(frozen=True)
class Blocks(Mask):
    """Blocks of `size` tokens that see only themselves."""

    size: int

    def allows(self, q: Spot, k: Spot) -> Tensor:
        return q.order // self.size == k.order // self.size


@dataclass(frozen=True)
class Landmarks(Mask):
    """The first `count` tokens see everybody and are seen by everybody (global tokens)."""

    count: int

    def allows(self, q: Spot, k: Spot) -> Tensor:
        return (k.order < self.count) | (q.order < self.count)


class Padding(Mask):
    """Only real tokens are seen. Joined by itself wherever the tokens say which are real."""

    reads = ("real",)

    def allows(self, q: Spot, k: Spot) -> Tensor:  #: S021
        return k.read("real")


class Documents(Mask):
    """Packed documents do not see each other. Joined by itself wherever the tokens carry documents."""

    reads = ("document",)

    def allows(self, q: Spot, k: Spot) -> Tensor:
        return q.read("document") == k.read("document")


@dataclass(frozen=True)
class Edges(Mask):
    """Neighbours in a graph, and with `loops` each node itself."""

    loops: int = 1
    reads = ("edges", "order")

    def allows(self, q: Spot, k: Spot) -> Tensor:  #: S026
        if q.places.edges is None:
            raise ValueError("the mask reads 'edges', and these tokens carry none; give edges= to the front end")
        joined = q.places.edges[q.b, q.i, k.i]
        return joined | (q.i == k.i) if self.loops else joined & (q.i != k.i)


@dataclass(frozen=True)
class Cells(Mask):
    """Square windows of an image: `size` a side, moved by `shift` (Swin: cells(7) and cells(7, 3) in turn)."""

    size: int
    shift: int = 0
    reads = ("at",)

    def allows(self, q: Spot, k: Spot) -> Tensor:
        same = torch.ones_like(q.i * k.i, dtype=torch.bool)
        for mine, theirs in zip(q.axes, k.axes, strict=True):
            same = same & ((mine - self.shift) // self.size == (theirs - self.shift) // self.size)
        return same


@dataclass(frozen=True)
class Several(Mask):
    """Masks joined by one sign: flat, sorted and without repeats, so that equal meaning is equal form."""

    terms: tuple[Mask, ...]
    sign: ClassVar[str]
    joined: ClassVar[Callable[[Tensor, Tensor], Tensor]]
    of: ClassVar[Callable[[Iterable[bool]], bool]]

    def allows(self, q: Spot, k: Spot) -> Tensor:
        return reduce(type(self).joined, [term.allows(q, k) for term in self.terms])

    def __str__(self) -> str:
        return f" {self.sign} ".join(f"({term})" if isinstance(term, Several) else str(term) for term in self.terms)

    @property
    def leaves(self) -> tuple[Mask, ...]:
        return tuple(leaf for term in self.terms for leaf in term.leaves)

    @property
    def ahead(self) -> bool:
        return type(self).of(term.ahead for term in self.terms)


class And(Several):
    sign, joined, of = "&", operator.and_, all


class Or(Several):
    sign, joined, of = "|", operator.or_, any


@dataclass(frozen=True)
class Not(Mask):
    term: Mask

    def allows(self, q: Spot, k: Spot) -> Tensor:
        return ~self.term.allows(q, k)

    def __invert__(self) -> Mask:
        return self.term

    def __str__(self) -> str:
        return f"~({self.term})" if isinstance(self.term, Several) else f"~{self.term}"

    @property
    def leaves(self) -> tuple[Mask, ...]:
        return self.term.leaves


def join(kind: type[And] | type[Or], *masks: Mask) -> Mask:
    terms = {term for mask in masks for term in (mask.terms if isinstance(mask, kind) else (mask,))}
    return terms.pop() if len(terms) == 1 else kind(tuple(sorted(terms, key=str)))


EVERYTHING, CAUSAL, PADDING, DOCUMENTS = Everything(), Causal(), Padding(), Documents()
NAMED: dict[str, type[Mask]] = {}


def enter(kind: type[Mask]) -> type[Mask]:
    """Let expressions say a mask by its class's name, in small letters."""
    NAMED[kind.__name__.lower()] = kind
    MASKS.setdefault(kind.__name__.lower(), tuple(field.name for field in fields(kind)))
    return kind


for kind in (Everything, Causal, Prefix, Window, Strided, Blocks, Landmarks, Padding, Documents, Edges, Cells):
    enter(kind)


def dilated(radius: int, step: int) -> Mask:
    """`radius` neighbours on each side, `step` apart."""
    return Window(radius * step) & Strided(step)


def mask(text: str) -> Mask:
    """The mask that a config writes as text, such as "causal & (window(64) | landmarks(2))"."""
    check_mask(text)
    return build(parse(text), text)


def build(node: ast.expr, text: str) -> Mask:
    match node:
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return build(left, text) & build(right, text)
        case ast.BinOp(left=left, right=right):
            return build(left, text) | build(right, text)
        case ast.UnaryOp(operand=operand):
            return ~build(operand, text)
        case ast.Name() | ast.Call():
            name, numbers = call(node, text)
            return dilated(*numbers) if name == "dilated" else NAMED[name](*numbers)
    raise AssertionError(f"{text!r} was checked before")
