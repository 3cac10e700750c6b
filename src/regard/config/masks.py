"""The mask expression language, parsed and checked: "causal & (window(64) | global_tokens(2))".

It walks Python's own syntax tree: names and integers from a closed table, `&`, `|`, `~` and brackets. Nothing is
evaluated. `regard.core.masks` turns the tree into masks; here it is only checked, so that a misspelt mask in a config
is found before torch is imported.
"""

import ast

from regard.config.aliases import CURRENT
from regard.config.errors import ConfigError, did_you_mean

MASKS: dict[str, tuple[str, ...]] = {
    "full": (),
    "causal": (),
    "prefix": ("length",),
    "window": ("radius",),
    "strided": ("step",),
    "dilated": ("radius", "step"),
    "blocks": ("size",),
    "global_tokens": ("count",),
    "padding": (),
    "documents": (),
    "edges": ("loops=1",),
    "window2d": ("size", "shift=0"),
}
CURRENT["mask"] = MASKS
LONGEST, DEEPEST, LARGEST = 1_000, 50, 2**31 - 1


def check_mask(text: str) -> None:
    """Raise ValueError with what is wrong in a mask expression."""
    if len(text) > LONGEST or sum(text.count(sign) for sign in "~(-+") > DEEPEST:
        raise ConfigError(f"mask: more than {LONGEST} characters or {DEEPEST} brackets and signs are no mask")
    check_mask_node(parse_mask(text), text)


def parse_mask(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConfigError(
            f"mask: cannot read {text!r}; write it like 'causal & (window(64) | global_tokens(2))'"
        ) from None


def check_mask_argument(mask: str, name: str, number: object) -> None:
    """Check that sizes and steps are at least 1, other numbers at least 0; non-numbers are left alone."""
    least = 1 if name in ("size", "step") else 0
    if isinstance(number, int) and not least <= number <= LARGEST:
        raise ConfigError(f"mask: {mask} takes a {name} of {least} or more, and less than 2^31, got {number}")


def check_mask_node(node: ast.expr, text: str) -> None:
    match node:
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr(), right=right):
            check_mask_node(left, text)
            check_mask_node(right, text)
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            check_mask_node(operand, text)
        case ast.Name() | ast.Call():
            parse_mask_call(node, text)
        case _:
            raise ConfigError(f"mask: {text!r} has something in it that is no mask; masks join with &, | and ~")


def parse_mask_call(node: ast.Name | ast.Call, text: str) -> tuple[str, tuple[int, ...]]:
    """The name and the numbers of one mask, such as ("window", (64,))."""
    target, given = (node.func, node.args) if isinstance(node, ast.Call) else (node, [])
    if not isinstance(target, ast.Name) or (isinstance(node, ast.Call) and node.keywords):
        raise ConfigError(f"mask: {text!r} has something in it that is not a mask such as window(64)")
    if target.id not in MASKS:
        known = ", ".join(map(mask_signature, MASKS))
        raise ConfigError(f"mask: no {target.id!r}{did_you_mean(target.id, MASKS)} there are {known}")
    wanted = MASKS[target.id]
    if not sum("=" not in name for name in wanted) <= len(given) <= len(wanted):
        raise ConfigError(f"mask: {target.id} takes {mask_signature(target.id)}, got {len(given)} numbers in {text!r}")
    numbers = []
    for name, argument in zip(wanted, given, strict=False):
        if not isinstance(argument, ast.Constant) or type(argument.value) is not int:
            raise ConfigError(f"mask: {target.id} takes whole numbers of zero or more, got {ast.unparse(argument)!r}")
        check_mask_argument(target.id, name.split("=")[0], argument.value)
        numbers.append(argument.value)
    return target.id, tuple(numbers)


def mask_signature(name: str) -> str:
    return f"{name}({', '.join(MASKS[name])})" if MASKS[name] else name
