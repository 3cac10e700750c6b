"""Jinja sandbox for untrusted chat templates: no access to Python, limited time and memory.

Jinja's sandbox protects Python's internals. It does not limit `range(10**9)` in nested loops, "a" * 10**12, or a list
that contains itself twice, sixty levels deep. Here a template may call only what is in closed tables, and time and
memory are charged to a budget for each rendering (`regard.text.template_budget`). A template that exceeds it raises an
error of one sentence.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from functools import wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from regard.text.template_budget import (
    BINARY_OPERATORS,
    CHARGED_METHODS,
    ESCAPED,
    ITEM,
    LONGEST_NUMBER,
    QUOTED,
    READ,
    WIDE_FORMAT,
    BudgetExceeded,
    bounded_range,
    charge,
    charge_case,
    charge_join,
    charge_letters,
    charge_loop,
    charge_operands,
    charge_replace,
    charge_result,
    charge_slice,
    charge_split,
    charge_strip,
    charge_value,
    check_growth,
    join_charged,
    text_size,
)

CALL = 10  # steps: a call takes that much longer than a loop iteration
FILTERS = (
    "abs", "batch", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "groupby",
    "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr",
    "replace", "reverse", "round", "safe", "select", "selectattr", "slice", "sort", "string", "sum", "title", "tojson",
    "trim", "truncate", "unique", "upper", "wordcount",
)  # fmt: skip
LOOKS = ("count", "d", "default", "first", "items", "last", "length", "list", "map", "reject", "rejectattr", "reverse",
         "select", "selectattr")  # filters that read only the list's own length  # fmt: skip
ATONCE = ("length", "count", "d", "default", "first", "last")
SORTS = ("dictsort", "groupby", "sort", "unique", "max", "min")  # filters that compare items
WORDS = ("indent", "title", "wordcount")  # filters that split a text
CASES = ("capitalize", "lower", "title", "upper")
# Tests that look only at a value's type; others read all of it.
SEES = ("boolean", "callable", "defined", "divisibleby", "even", "false", "filter", "float", "integer", "iterable",
        "mapping", "none", "number", "odd", "sameas", "sequence", "string", "test", "true", "undefined")  # fmt: skip
TESTS = (*SEES, "!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan",
         "lower", "lt", "ne", "upper")  # fmt: skip
JINJAS = ("_loop_vars", "_block_vars")  # arguments that Jinja adds to every call in a loop or a block
DEEPEST = 64  # nesting of lists in JSON output
METHODS = (
    "capitalize", "count", "endswith", "find", "get", "index", "isalnum", "isalpha", "isdigit", "islower", "isspace",
    "isupper", "items", "join", "keys", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace",
    "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase",
    "title", "upper", "values",
)  # fmt: skip


# ---------------------------------------------------------------- what a template may call


def charged_filter(name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that charges the budget; jinja's attributes on the filter are preserved."""
    knows = hasattr(filter, "jinja_pass_arg")

    @wraps(filter)
    def run(*given: Any, **named: Any) -> Any:
        about, value, more = given[:knows], given[knows], given[knows + 1 :]
        value = to_list(value) if name not in LOOKS or isinstance(value, range) else value
        charge_value([*more, *named.values()])
        if name in LOOKS:
            charge(1 + (len(value) if isinstance(value, str | list | tuple | dict) and name not in ATONCE else 0))
        else:
            check_filter(name, value, more, named)
        return charge_result(filter(*about, value, *more, **named))

    return run


def to_list(value: Any) -> Any:
    """An iterator as a list, charged."""
    return list(charge_loop(value, ITEM)) if isinstance(value, Iterator | range) else value


def check_filter(name: str, value: Any, more: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Charge for the input of a filter, and refuse results that would be too large, before it runs."""
    letters = text_size(value, QUOTED)
    charge(letters // (READ * QUOTED))
    check_growth(letters * margin_width(name, [*more, *named.values()]))
    if name in CASES:
        charge_case(value)
    if name == "replace":
        charge_replace(str(value), *(more + (*named.values(), "", ""))[:2])
    elif name == "join":
        charge_join(more[0] if more else named.get("d", ""), value)
    elif name == "trim":
        charge_strip(value, *more, *named.values())
    elif name in WORDS and isinstance(value, str):
        charge_split(value)
    elif name in SORTS and not isinstance(value, str):
        charge(8 * len(value) if hasattr(value, "__len__") else 1)
    elif name in (*SORTS, "batch", "slice"):
        charge_letters(value, 64 if name in SORTS else 8)  # as for a list
    elif name in ("int", "float") and isinstance(value, str) and len(value) > LONGEST_NUMBER:
        raise BudgetExceeded(f"it converts a text of {len(value):,} letters to a number")
    elif name == "sum" and isinstance(named.get("start", more[1] if len(more) > 1 else 0), list | tuple):
        raise BudgetExceeded("it sums lists, each of which is copied again for the next")


def charged_test(name: str, test: Callable[..., Any]) -> Callable[..., Any]:
    """A test that charges the budget, by the size of its input."""
    knows = hasattr(test, "jinja_pass_arg")

    @wraps(test)
    def run(*given: Any, **named: Any) -> Any:
        charge()
        if name not in SEES:
            letters = sum(text_size(each, QUOTED) for each in (*given[knows:], *named.values()))
            charge(letters // (READ * QUOTED))
            check_growth(letters)
        return test(*given, **named)

    return run


def margin_width(name: str, given: list[Any]) -> int:
    """The maximum factor by which padding or indenting lengthens a text."""
    if name in ("e", "escape"):
        return ESCAPED
    if name not in ("indent", "tojson", "batch", "slice", "round"):
        return 1
    sizes = [each if isinstance(each, int) else len(each) for each in given if isinstance(each, int | str)]
    if max(sizes, default=0) > 100:
        raise BudgetExceeded(f"{name} has an argument of more than 100")
    return 1 + max(sizes, default=0)


def tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
           sort_keys: bool = False) -> str:  # fmt: skip
    """JSON as templates expect it, without HTML escapes."""
    between = separators if isinstance(separators, list | tuple) else ()
    wide = 0 if indent is None else indent if isinstance(indent, int) else len(indent)
    if any(not isinstance(each, str) or len(each) > DEEPEST for each in between) or wide > DEEPEST:
        raise BudgetExceeded(f"it writes JSON with more than {DEEPEST} letters between two parts")
    check_growth(text_size([value], QUOTED) * (1 + sum(map(len, between)) + wide * nesting_depth(value)))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def nesting_depth(value: Any) -> int:
    """The nesting depth of lists and dicts, DEEPEST at most."""
    level, deep = [value], 0
    while level := [each for each in level if isinstance(each, Mapping | list | tuple)]:
        deep += 1
        if deep > DEEPEST:
            raise BudgetExceeded(f"it writes JSON nested more than {DEEPEST} deep")
        level = [part for each in level for part in (each.values() if isinstance(each, Mapping) else each)]
    return deep


def raise_exception(message: Any) -> None:
    """Raise a template's own error."""
    check_growth(text_size(message, QUOTED))
    raise jinja2.TemplateError(str(message)[:400])


def strftime_now(form: str) -> str:
    if WIDE_FORMAT.search(form) or len(form) > 100:
        raise BudgetExceeded(f"it formats the time as {form[:40]!r}, which is too wide")
    return datetime.now().strftime(form)


class SafeNamespace(Namespace):
    """A namespace without names that start with an underscore."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace has no {name!r}")
        super().__setitem__(name, value)


def make_dict(*given: Any, **named: Any) -> dict[Any, Any]:
    return dict(*given, **named)


class GenerationTag(Extension):
    """{% generation %} ... {% endgeneration %} marks the assistant's text; it is rendered unchanged."""

    tags = {"generation"}

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


# ---------------------------------------------------------------- the environment


class BudgetTransformer(NodeTransformer):
    """Inserts the charges into a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        stands = sum(len(each.data) for each in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        node.iter = filter_node(node.iter, "turns", nodes.Const(stands))
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = filter_node(node.expr, "weighed")
        for each in node.ops:
            each.expr = filter_node(each.expr, "weighed")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        parts = (node.arg.start, node.arg.stop, node.arg.step)
        given = [nodes.Const(None, lineno=node.lineno) if part is None else part for part in parts]
        return filter_node(node.node, "sliced", *given)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return filter_node(nodes.List(node.nodes, lineno=node.lineno), "strung")

    def visit_made(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return filter_node(node, "weighed") if getattr(node, "ctx", "load") == "load" else node

    visit_List = visit_Tuple = visit_Dict = visit_made

    def visit_given(self, node: Any) -> nodes.Node:
        """Arguments after a star are expanded before the call."""
        self.generic_visit(node)
        if node.dyn_args is not None:
            node.dyn_args = filter_node(node.dyn_args, "turns", nodes.Const(ITEM))
        return node  # type: ignore[no-any-return]

    visit_Call = visit_Filter = visit_Test = visit_given


def filter_node(node: Any, name: str, *given: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(given), [], None, None, lineno=node.lineno)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The sandboxed Jinja environment of templates; they are rendered within `template_budget.render_budget`."""

    intercepted_binops = frozenset(BINARY_OPERATORS)

    def __init__(self) -> None:
        blocks = dict(trim_blocks=True, lstrip_blocks=True)  # as authors of templates expect it
        super().__init__(**blocks, extensions=[loopcontrols, GenerationTag], finalize=charge_output, cache_size=0)
        known = {name: self.filters[name] for name in FILTERS} | {"tojson": tojson}
        self.filters = {name: charged_filter(name, each) for name, each in known.items()}
        self.filters |= {"weighed": charge_value, "strung": join_charged, "turns": charge_loop, "sliced": charge_slice}
        seen: dict[str, Any] = self.tests
        self.tests = {name: charged_test(name, seen[name]) for name in TESTS}
        self.longest = 0  # characters of template source
        rows = {name: self.globals[name] for name in ("cycler", "joiner")}
        self.globals = {
            **rows,
            "range": bounded_range,
            "dict": make_dict,
            "namespace": SafeNamespace,
            "raise_exception": raise_exception,
            "strftime_now": strftime_now,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        self.longest = max(self.longest, len(source))
        BudgetTransformer().visit(tree)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        closed = isinstance(obj, Collection | int | float)
        return super().is_safe_attribute(obj, attr, value) and (attr in METHODS or not closed or not callable(value))

    def wrap_str_format(self, value: Any) -> None:
        """String formatting methods are not in the table."""

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        charge_operands(left, right)
        return charge_result(BINARY_OPERATORS[operator](left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        charge(CALL)
        if isinstance(obj, LoopContext):  # recursive loops
            return charge_result(
                super().call(context, obj, *(charge_loop(each, self.longest) for each in args), **kwargs)
            )
        args = tuple(to_list(each) if isinstance(each, Iterator) else each for each in args)
        given = [*args, *(each for name, each in kwargs.items() if name not in JINJAS)]
        charge_value(given)
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            return self.of_text(context, obj, owner, given, (args, kwargs))
        if isinstance(owner, Collection) and not isinstance(owner, Mapping):
            charge_value(owner)
        return charge_result(super().call(context, obj, *args, **kwargs))

    def of_text(
        self, context: Context, obj: Any, owner: str, given: list[Any], call_args: tuple[Any, dict[str, Any]]
    ) -> Any:
        """A string method, charged by its input's length and by its result."""
        charge(len(owner) // READ)
        if isinstance(owner, Markup):
            check_growth(ESCAPED * (len(owner) + text_size(given)))
        if obj.__name__ in CHARGED_METHODS:
            CHARGED_METHODS[obj.__name__](owner, *given)
        found = super().call(context, obj, *call_args[0], **call_args[1])
        charge(0, text_size(found) if isinstance(found, list | tuple) else 0)
        return charge_result(found)


def charge_output(value: Any) -> Any:
    """Charge for output; repeated text counts each time."""
    if isinstance(value, Undefined):
        if value._undefined_exception is SecurityError:
            value._fail_with_undefined_error()
        return value
    if isinstance(value, str | int | float | list | tuple | Mapping | None):
        charge(0, text_size(value, QUOTED))
        return value
    raise BudgetExceeded(f"it outputs a {type(value).__name__}, which is not text")
