"""Attention masks, which tokens attend to which: a tree of small frozen classes. True means that attending is allowed.

A mask is structure: it holds numbers, never tensors, and compares two TokenIndexes. One tree therefore serves as a
dense table, as a FlexAttention predicate, and as a form that kernels recognise. Speed is the kernels' concern.
"""

import ast
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.config.masks import MASKS, check_mask, check_mask_argument, parse_mask, parse_mask_call
from regard.core.tokens import TokenIndex, TokenLayout, sequence_tokens

MASK_TYPES: "dict[str, type[Mask]]" = {}


@dataclass(frozen=True)
class Mask:
    """Base class of masks: may query q attend to key k? Combined with &, | and ~; equal if built alike."""

    name: ClassVar[str] = ""
    reads: ClassVar[tuple[str, ...]] = ("order",)

    def __init_subclass__(cls, name: str = "") -> None:
        """Register a mask under its `name` in expressions; masks without one are combinations."""
        if name:
            cls.name, MASK_TYPES[name] = name, cls
            MASKS.setdefault(name, tuple(cls.__annotations__))

    def __post_init__(self) -> None:
        for field in fields(self):
            check_mask_argument(self.name, field.name, getattr(self, field.name))

    def allows(self, q: TokenIndex, k: TokenIndex) -> Tensor:
        raise NotImplementedError

    def __and__(self, other: "Mask") -> "Mask":
        if FULL in (self, other):
            return other if self == FULL else self
        return combine_masks(And, self, other)

    def __or__(self, other: "Mask") -> "Mask":
        return FULL if FULL in (self, other) else combine_masks(Or, self, other)

    def __invert__(self) -> "Mask":
        return Not(self)

    def __str__(self) -> str:
        numbers = [int(getattr(self, field.name)) for field in fields(self)]
        return self.name + (f"({', '.join(map(str, numbers))})" if numbers else "")

    @property
    def leaves(self) -> "tuple[Mask, ...]":
        """The simple masks that it is combined from."""
        return (self,)

    @property
    def tables(self) -> frozenset[str]:
        """The layout tables that the mask and its leaves read."""
        return frozenset(table for leaf in self.leaves for table in leaf.reads)

    @property
    def ahead(self) -> bool:
        """Whether a token may attend to a later one. A prefix does not count: its tokens must arrive in one call."""
        return not isinstance(self, Causal | Prefix)

    def table(self, q: TokenLayout, k: TokenLayout) -> Tensor:
        """(B, Q, K); an axis along which values only repeat has size 1: B without data, Q for padding."""
        b, i, j = (torch.arange(size, device=q.order.device) for size in (q.batch, q.count, k.count))
        b, i, j = b[:, None, None], i[None, :, None], j[None, None, :]
        return self.allows(TokenIndex(q, b, i), TokenIndex(k, b, j))

    def picture(self, tokens: TokenLayout | int) -> str:
        """The mask drawn for a terminal, one row for each query: ■ may attend, · may not."""
        places = sequence_tokens(torch.empty(1, tokens, 0)) if isinstance(tokens, int) else tokens
        table = self.table(places, places)[0].expand(places.count, places.count)
        return "\n".join(" ".join("■" if cell else "·" for cell in row) for row in table.tolist())


class Full(Mask, name="full"):
    reads = ()

    def allows(self, q: TokenIndex, k: TokenIndex) -> Tensor:
        return torch.ones_like(q.i * k.i, dtype=torch.bool)


class Causal(Mask, name="causal"):
    """Causal mask: a token attends to itself and to earlier tokens."""

    def allows(self, q: TokenIndex, k: TokenIndex) -> Tensor:  #: S020
        return k.order <= q.order


@dataclass(frozen=True)
class Prefix(Mask, name="prefix"):
    """Prefix-LM mask: causal, but all tokens attend to the first `length`, which attend to each other."""

    length: int

    def allows(self, q: TokenIndex, k: TokenIndex) -> Tensor:
        return (k.order < self.length) | (k.order <= q.order)


@dataclass(frozen=True)
class Window(Mask, name="window"):
    """Sliding window: up to `radius` tokens away on both sides; with `& causal`, only earlier ones."""

    radius: int

    def allows(self, q: TokenIndex, k: TokenIndex) -> Tensor:  #: S027
        return (q.order - k.order).abs() <= self.radius


@dataclass(frozen=True)
class Strided(Mask, name="strided"):
    """Strided mask: every `step`-th token, counted from the query (Child et al. 2019)."""

    step: int

    def allows(self, q: TokenIndex, k: TokenIndex) -> Tensor:
        return (q.order - k.order) % self.step == 0


@dataclass(frozen=True)
class Blocks(Mask, name="blocks"):
    """Block-diagonal mask: consecutive blocks of `size` tokens, attention only within a block."""

    size: int

    def allows(self, q: TokenIndex, k: TokenIndex) -> Tensor:
        return q.order // self.size == k.order // self.size


@dataclass(frozen=True)
class GlobalTokens(Mask, name="global_tokens"):
    """Global tokens: the first `count` attend to all tokens and all attend to them (Longformer)."""

    count: int

    def allows(self, q: TokenIndex, k: TokenIndex) -> Tensor:
        return (k.order < self.count) | (q.order < self.count)


class Padding(Mask, name="padding"):
    """Padding mask: only real tokens are attended to. Applied automatically wherever tokens have `is_real`."""

    reads = ("is_real",)

    def allows(self, q: TokenIndex, k: TokenIndex) -> Tensor:  #: S021
        return k.read("is_real")


class Documents(Mask, name="documents"):
    """Document mask: no attention between packed documents. Applied automatically where tokens have `document`."""

    reads = ("document",)

    def allows(self, q: TokenIndex, k: TokenIndex) -> Tensor:
        return q.read("document") == k.read("document")


@dataclass(frozen=True)
class Combined(Mask):
    """Masks combined by & or |: flattened, sorted, without repeats, so that masks of equal meaning compare equal."""

    terms: tuple[Mask, ...]
    sign: ClassVar[str]
    joined: ClassVar[Callable[[Tensor, Tensor], Tensor]]
    of: ClassVar[Callable[[Iterable[bool]], bool]]

    def allows(self, q: TokenIndex, k: TokenIndex) -> Tensor:
        return reduce(type(self).joined, [term.allows(q, k) for term in self.terms])

    def __str__(self) -> str:
        return f" {self.sign} ".join(f"({term})" if isinstance(term, Combined) else str(term) for term in self.terms)

    @property
    def leaves(self) -> tuple[Mask, ...]:
        return tuple(leaf for term in self.terms for leaf in term.leaves)

    @property
    def ahead(self) -> bool:
        return type(self).of(term.ahead for term in self.terms)


class And(Combined):
    sign, joined, of = "&", operator.and_, all


class Or(Combined):
    sign, joined, of = "|", operator.or_, any


@dataclass(frozen=True)
class Not(Mask):
    term: Mask

    def allows(self, q: TokenIndex, k: TokenIndex) -> Tensor:
        return ~self.term.allows(q, k)

    def __invert__(self) -> Mask:
        return self.term

    def __str__(self) -> str:
        return f"~({self.term})" if isinstance(self.term, Combined) else f"~{self.term}"

    @property
    def leaves(self) -> tuple[Mask, ...]:
        return self.term.leaves


def combine_masks(kind: type[And] | type[Or], *masks: Mask) -> Mask:
    terms = {term for mask in masks for term in (mask.terms if isinstance(mask, kind) else (mask,))}
    return terms.pop() if len(terms) == 1 else kind(tuple(sorted(terms, key=str)))


FULL, CAUSAL, PADDING, DOCUMENTS = Full(), Causal(), Padding(), Documents()


def dilated_window(radius: int, step: int) -> Mask:
    """Dilated sliding window: `radius` tokens on each side, `step` apart."""
    return Window(radius * step) & Strided(step)


def mask(text: str) -> Mask:
    """Parse a mask expression of a config, such as "causal & (window(64) | global_tokens(2))"."""
    check_mask(text)
    return build_mask(parse_mask(text), text)


def build_mask(node: ast.expr, text: str) -> Mask:
    match node:
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return build_mask(left, text) & build_mask(right, text)
        case ast.BinOp(left=left, right=right):
            return build_mask(left, text) | build_mask(right, text)
        case ast.UnaryOp(operand=operand):
            return ~build_mask(operand, text)
        case ast.Name() | ast.Call():
            name, numbers = parse_mask_call(node, text)
            if name not in MASK_TYPES and name != "dilated":
                raise ConfigError(f"mask: {name} is registered by its attention kernel; import regard.attention")
            return dilated_window(*numbers) if name == "dilated" else MASK_TYPES[name](*numbers)
    raise AssertionError(f"{text!r} was checked before")
