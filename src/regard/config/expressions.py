"""Masks written as text: "causal & (window(64) | landmarks(2))".

A walker over Python's own syntax tree: names and whole numbers from a closed table, `&`, `|`, `~` and brackets.
Nothing is ever evaluated. `regard.core.masks` turns the tree into masks; here it is only checked, so that a
misspelt mask in a config is caught before torch is imported.
"""

import ast

from regard.config.names import did_you_mean

MASKS: dict[str, tuple[str, ...]] = {
    "everything": (),
    "causal": (),
    "prefix": ("length",),
    "window": ("radius",),
    "strided": ("step",),
    "dilated": ("radius", "step"),
    "blocks": ("size",),
    "landmarks": ("count",),
    "padding": (),
    "documents": (),
    "edges": ("loops=1",),
    "cells": ("size", "shift=0"),
}
LIMIT = 1_000


def check_mask(text: str) -> None:
    """Raise a ValueError that says what is wrong with a mask expression."""
    walk(parse(text), text)


def parse(text: str) -> ast.expr:
    if len(text) > LIMIT:
        raise ValueError(f"mask: {len(text)} characters are too many; {LIMIT} is the limit")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"mask: cannot read {text!r}; write it like 'causal & (window(64) | landmarks(2))'") from None


def walk(node: ast.expr, text: str) -> None:
    match node:
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr(), right=right):
            walk(left, text)
            walk(right, text)
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            walk(operand, text)
        case ast.Name() | ast.Call():
            call(node, text)
        case _:
            raise ValueError(f"mask: {ast.unparse(node)!r} in {text!r} is not a mask; masks join with &, | and ~")


def call(node: ast.Name | ast.Call, text: str) -> tuple[str, tuple[int, ...]]:
    """The name and the numbers of one mask, such as ("window", (64,))."""
    target, given = (node.func, node.args) if isinstance(node, ast.Call) else (node, [])
    if not isinstance(target, ast.Name) or (isinstance(node, ast.Call) and node.keywords):
        raise ValueError(f"mask: {ast.unparse(node)!r} in {text!r} is not a mask such as window(64)")
    if target.id not in MASKS:
        known = ", ".join(map(spell, MASKS))
        raise ValueError(f"no mask {target.id!r}{did_you_mean(target.id, MASKS)} there are {known}")
    numbers = tuple(number(argument, target.id) for argument in given)
    wanted = MASKS[target.id]
    needed = sum("=" not in name for name in wanted)
    if not needed <= len(numbers) <= len(wanted):
        raise ValueError(f"mask: {target.id} takes {spell(target.id)}, got {len(numbers)} numbers in {text!r}")
    return target.id, numbers


def number(node: ast.expr, name: str) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError(f"mask: {name} takes whole numbers of zero or more, got {ast.unparse(node)!r}")


def spell(name: str) -> str:
    return f"{name}({', '.join(MASKS[name])})" if MASKS[name] else name
