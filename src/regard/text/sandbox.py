"""Templates of strangers: rendered so that they reach nothing, never end late and never grow large.

Jinja's sandbox keeps a template away from Python's insides. It says nothing of `range(10**9)` in a loop in a loop, of
"a" * 10**12, or of a list that holds itself twice, sixty levels deep. So here what a template may call stands in closed
tables, and whatever takes time or room is paid for, from a purse that every rendering gets anew (`regard.text.purse`).
Who has spent all is told so in a sentence.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from regard.text.purse import (
    BINARY,
    GROWING,
    WIDE,
    Spent,
    few,
    grows,
    joined,
    made,
    pay,
    replaced,
    strung,
    turns,
    weighed,
    weight,
)

CALL = 10  # steps: a call takes so much longer than a turn of a loop
FILTERS = (
    "abs", "batch", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "groupby",
    "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr",
    "replace", "reverse", "round", "safe", "select", "selectattr", "slice", "sort", "string", "sum", "title", "tojson",
    "trim", "truncate", "unique", "upper", "wordcount",
)  # fmt: skip
LOOKS = ("count", "d", "default", "first", "items", "last", "length", "list", "map", "reject", "rejectattr", "reverse",
         "select", "selectattr")  # filters that read no further than a list's own length  # fmt: skip
ATONCE = ("length", "count", "d", "default", "first", "last")
METHODS = (
    "capitalize", "count", "endswith", "find", "get", "index", "isalnum", "isalpha", "isdigit", "islower", "isspace",
    "isupper", "items", "join", "keys", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace",
    "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase",
    "title", "upper", "values",
)  # fmt: skip


# ---------------------------------------------------------------- what a template may call


def paid(name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is paid for; the names that jinja has given it for what it wants to know go along."""
    knows = hasattr(filter, "jinja_pass_arg")

    @wraps(filter)
    def run(*given: Any, **named: Any) -> Any:
        about, value, more = given[:knows], given[knows], given[knows + 1 :]
        if name in LOOKS:
            pay(1 + (len(value) if isinstance(value, str | list | tuple | dict) and name not in ATONCE else 0))
        else:
            value = list(value) if isinstance(value, Iterator) else value
            grows(weight(value) * widest(name, [*more, *named.values()]))
        weighed([*more, *named.values()])
        if name == "replace":
            replaced(str(value), *(more + (*named.values(), "", ""))[:2])
        elif name == "join":
            joined(more[0] if more else named.get("d", ""), value)
        return made(filter(*about, value, *more, **named))

    return run


def widest(name: str, given: list[Any]) -> int:
    """How much longer a margin may make what it is put before."""
    if name not in ("indent", "tojson", "batch", "slice", "round"):
        return 1
    sizes = [each if isinstance(each, int) else len(each) for each in given if isinstance(each, int | str)]
    if max(sizes, default=0) > 100:
        raise Spent(f"{name} is asked for more than 100")
    return 1 + max(sizes, default=0)


def tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
           sort_keys: bool = False) -> str:  # fmt: skip
    """As people who write templates expect it: signs of HTML stay what they are."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def refuse(message: Any) -> None:
    """A template's own word for what it cannot render."""
    raise jinja2.TemplateError(str(message)[:400])


def now(form: str) -> str:
    if WIDE.search(form) or len(form) > 100:
        raise Spent(f"it writes the time as {form[:40]!r}, as wide as that says")
    return datetime.now().strftime(form)


class Plain(Namespace):
    """A namespace without names that begin with an underscore."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace has no {name!r}")
        super().__setitem__(name, value)


def dictionary(*given: Any, **named: Any) -> dict[Any, Any]:
    return dict(*given, **named)


class Generation(Extension):
    """{% generation %} ... {% endgeneration %} marks what the assistant says; it is rendered as it stands."""

    tags = {"generation"}

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


# ---------------------------------------------------------------- the room


class Payer(NodeTransformer):
    """Puts the paying into a template that was read."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        stands = sum(len(each.data) for each in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        node.iter = through(node.iter, "turns", nodes.Const(stands))
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = through(node.expr, "weighed")
        for each in node.ops:
            each.expr = through(each.expr, "weighed")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return through(nodes.List(node.nodes, lineno=node.lineno), "strung")

    def visit_made(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return through(node, "weighed") if getattr(node, "ctx", "load") == "load" else node

    visit_List = visit_Tuple = visit_Dict = visit_made


def through(node: Any, name: str, *given: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(given), [], None, None, lineno=node.lineno)


class Sandbox(ImmutableSandboxedEnvironment):
    """Where templates are rendered, inside of `purse`."""

    intercepted_binops = frozenset(BINARY)

    def __init__(self) -> None:
        blocks = dict(trim_blocks=True, lstrip_blocks=True)  # as those who write templates expect it
        super().__init__(**blocks, extensions=[loopcontrols, Generation], finalize=said, cache_size=0)
        known = {name: self.filters[name] for name in FILTERS} | {"tojson": tojson}
        self.filters = {name: paid(name, each) for name, each in known.items()}
        self.filters |= {"weighed": weighed, "strung": strung, "turns": turns}
        rows = {name: self.globals[name] for name in ("cycler", "joiner")}
        self.globals = {**rows, "range": few, "dict": dictionary, "namespace": Plain, "raise_exception": refuse,
                        "strftime_now": now}  # fmt: skip

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        Payer().visit(tree)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        closed = isinstance(obj, str | list | tuple | Mapping | int | float)
        return super().is_safe_attribute(obj, attr, value) and (attr in METHODS or not closed or not callable(value))

    def wrap_str_format(self, value: Any) -> None:
        """Formats are not in the table."""

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        return made(BINARY[operator](left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        pay(CALL)
        weighed([*args, *kwargs.values()])
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str) and obj.__name__ in GROWING:
            GROWING[obj.__name__](owner, *args)
        return made(super().call(context, obj, *args, **kwargs))


def said(value: Any) -> Any:
    """What a template says goes through here; a text that it says twice is paid for twice."""
    if isinstance(value, Undefined):
        if value._undefined_exception is SecurityError:
            value._fail_with_undefined_error()
        return value
    if isinstance(value, str | int | float | list | tuple | Mapping | None):
        pay(0, weight(value))
        return value
    raise Spent(f"it says a {type(value).__name__}, which is no text")
