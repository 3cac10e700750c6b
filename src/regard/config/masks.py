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
LONGEST, DEEPEST, LARGEST = 1_000, 50, 2**31 - 1


def check_mask(text: str) -> None:
    """Raise a ValueError that says what is wrong with a mask expression."""
    if len(text) > LONGEST or sum(text.count(sign) for sign in "~(-+") > DEEPEST:
        raise ValueError(f"mask: more than {LONGEST} characters or {DEEPEST} brackets and signs are no mask")
    walk(parse(text), text)


def parse(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"mask: cannot read {text!r}; write it like 'causal & (window(64) | landmarks(2))'") from None


def check_number(mask: str, name: str, number: object) -> None:
    """Sizes and steps are at least one, other numbers at least zero; what is no number is not checked."""
    least = 1 if name in ("size", "step") else 0
    if isinstance(number, int) and not least <= number <= LARGEST:
        raise ValueError(f"mask: {mask} takes a {name} of {least} or more, and less than 2^31, got {number}")


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
            raise ValueError(f"mask: {text!r} has something in it that is no mask; masks join with &, | and ~")


def call(node: ast.Name | ast.Call, text: str) -> tuple[str, tuple[int, ...]]:
    """The name and the numbers of one mask, such as ("window", (64,))."""
    target, given = (node.func, node.args) if isinstance(node, ast.Call) else (node, [])
    if not isinstance(target, ast.Name) or (isinstance(node, ast.Call) and node.keywords):
        raise ValueError(f"mask: {text!r} has something in it that is not a mask such as window(64)")
    if target.id not in MASKS:
        known = ", ".join(map(spell, MASKS))
        raise ValueError(f"mask: no {target.id!r}{did_you_mean(target.id, MASKS)} there are {known}")
    wanted = MASKS[target.id]
    if not sum("=" not in name for name in wanted) <= len(given) <= len(wanted):
        raise ValueError(f"mask: {target.id} takes {spell(target.id)}, got {len(given)} numbers in {text!r}")
    numbers = []
    for name, argument in zip(wanted, given, strict=False):
        if not isinstance(argument, ast.Constant) or type(argument.value) is not int:
            raise ValueError(f"mask: {target.id} takes whole numbers of zero or more, got {ast.unparse(argument)!r}")
        check_number(target.id, name.split("=")[0], argument.value)
        numbers.append(argument.value)
    return target.id, tuple(numbers)


def spell(name: str) -> str:
    return f"{name}({', '.join(MASKS[name])})" if MASKS[name] else name
