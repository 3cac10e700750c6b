"""Config reader: TOML or nested dicts to a tree of frozen dataclasses, checked as a whole, and back.

    file ── read_file ──►  config  ── to_dict ──►  nested dict  ── from_dict ──►  the same config
                                   ── to_toml ──►  TOML         ── read_file ──►  the same config

A setting is an int, float, bool, str, Literal, tuple[T, ...], another dataclass, or a union of these with one list at
most. Among several dataclasses the field `kind` chooses. TOML has no null: "none" means None where None is allowed.
A partial table keeps the rest of its default: with `mlp: MLP = MLP(hidden=256)`, `mlp.bias=false` keeps the 256.
Nothing is evaluated, and every error is a ConfigError that names the setting by its path.
"""

import inspect
import json
import reprlib
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from regard.config.aliases import canonical_value, class_aliases, suggest_word
from regard.config.errors import ConfigError, did_you_mean
from regard.config.overrides import apply_override, replace_setting

Config = TypeVar("Config")

SIMPLE: dict[Any, tuple[str, str, dict[str, Any]]] = {  # singular, plural, JSON schema
    int: ("a whole number", "whole numbers", {"type": "integer"}),
    float: ("a number", "numbers", {"type": "number"}),
    bool: ("true or false", "true and false", {"type": "boolean"}),
    str: ("a string in quotes", "strings", {"type": "string"}),
    NoneType: ("none", "nothing", {"enum": ["none", None]}),
}
WHOLE = range(-(2**63), 2**63)  # the integers that TOML guarantees


def read_toml(cls: type[Config], path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read a config from a TOML file, after overrides such as "trunk.depth=4" or "trunk.mask=causal & window(8)"."""
    given = canonical_tree(cls, parse_toml(read_file(path), path))
    for line in overrides:
        change = dict[str, Any]()
        value = apply_override(change, line)
        depth = line.partition("=")[0].count(".") if isinstance(value, dict) else None
        replace_setting(given, canonical_tree(cls, change), depth)
    try:
        return from_dict(cls, given)
    except ConfigError as problem:
        if given:
            raise
        raise ConfigError(f"{path}: the file holds no settings; {problem}") from None


def read_file(path: str | Path) -> str:
    try:
        if Path(path).exists() and not (Path(path).is_file() or Path(path).is_dir()):
            raise ValueError("not a regular file")  # reading a pipe or a device may never end
        return Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = problem.object.count(b"\n", 0, problem.start) + 1
        raise ConfigError(f"{path}: line {line} is not UTF-8; save the file as UTF-8") from None
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise ConfigError(f"{path}: {reason.lower()}; name a TOML file that can be read") from None


def parse_toml(source: str, path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(source)
    except RecursionError:
        raise ConfigError(f"{path}: the tables or lists are nested too deeply to read") from None
    except ValueError as problem:
        last = source.rstrip().count("\n") + 1
        reason = str(problem).replace("at end of document", f"at line {last}, where the file ends")
        raise ConfigError(f"{path}: not valid TOML: {reason}") from None


def from_dict(cls: type[Config], tree: Any, path: str = "") -> Config:
    """Build the config of a nested dict; `path` is its place in a larger one."""
    made: Config = convert_value(cls, canonical_tree(cls, tree, path), path)
    return made


def canonical_tree(kind: Any, given: Any, path: str = "") -> Any:
    """The input with aliases of settings and kinds replaced by our names (`regard.config.aliases`).

    A table may be incomplete, as in overrides: without a `kind`, an alias is resolved by all kinds that know it, if
    they agree. Errors are left for the reader to report.
    """
    allowed = union_members(kind)
    if isinstance(given, list | tuple):
        items = [get_args(option)[0] for option in allowed if get_origin(option) is tuple]
        return [canonical_tree(items[0], item, path) for item in given] if items else given
    classes: list[Any] = [option for option in allowed if is_dataclass(option)]
    if not isinstance(given, dict) or not classes:
        return given
    if isinstance(word := given.get("kind"), str):
        kinds = {known: cls for cls in classes for known in get_args(field_types(cls).get("kind", ()))}
        given = {**given, "kind": (word := canonical_value("kind", word, kinds))}
        classes = [kinds[word]] if word in kinds else classes
    found = {name: value for name, value in given.items() if not alias_target(name, classes)}
    for alias in [name for name in given if name not in found]:
        set_by_alias(found, alias, alias_target(alias, classes), given[alias], path)
    return {name: canonical_setting(name, value, classes, join_path(path, name)) for name, value in found.items()}


def alias_target(name: Any, classes: list[Any]) -> str:
    """Our name for a setting of one of these classes, as a path from their table; "" if it is ours or unknown."""
    if any(name in field_types(cls) for cls in classes):
        return ""
    targets = {class_aliases(cls.__name__).get(name, "") for cls in classes} - {""}
    return targets.pop() if len(targets) == 1 else ""


def set_by_alias(found: dict[str, Any], alias: str, ours: str, value: Any, path: str) -> None:
    *tables, leaf = ours.split(".")
    for name in tables:
        inner = found.get(name, {})
        if not isinstance(inner, dict):
            raise path_error(join_path(path, alias), f"it is a setting of {name}, which is no table here")
        found[name] = found = dict(inner)
    if leaf in found:
        raise path_error(join_path(path, alias), f"it is another name of {ours}, and both are given; keep one")
    found[leaf] = value


def canonical_setting(name: str, value: Any, classes: list[Any], path: str) -> Any:
    """The value of one setting, with aliases replaced."""
    kinds = [field_types(cls)[name] for cls in classes if name in field_types(cls)]
    if not kinds:
        return value
    if isinstance(value, str):
        choices = [word for kind in kinds for option in union_members(kind) for word in get_args(option)
                   if get_origin(option) is Literal]  # fmt: skip
        return canonical_value(name, value, choices or None)
    if name == "mask" and isinstance(value, list | tuple):
        return [canonical_value(name, each) if isinstance(each, str) else each for each in value]
    return canonical_tree(Union[tuple(kinds)], value, path)  # noqa: UP007  of types that are known while it runs


def convert_value(kind: Any, given: Any, path: str, default: Any = None) -> Any:
    """Convert the input to the annotation `kind`."""
    allowed = union_members(kind)
    parts = [option for option in allowed if is_dataclass(option)]
    lists = [option for option in allowed if get_origin(option) is tuple]
    if NoneType in allowed and given in (None, "none"):
        return None
    if parts and isinstance(given, dict):
        return build_dataclass(select_kind(parts, given, path, default), given, path, default, parts)
    if lists and isinstance(given, list | tuple):
        return tuple(convert_value(get_args(lists[0])[0], item, f"{path}[{place}]") for place, item in enumerate(given))
    for option in allowed:
        if accepts_value(option, given):
            return float(given) if option is float else given
    raise path_error(path, explain_wrong_type(kind, given))


EXTRA_KINDS: dict[Any, list[Any]] = {}  # users' config classes, by the built-in class in whose unions they are accepted


def register_kind(cls: type, beside: type) -> None:
    """Accept your own frozen dataclass, with a `kind`, wherever `beside` is accepted in a union."""
    EXTRA_KINDS[beside] = [each for each in EXTRA_KINDS.get(beside, []) if each.__name__ != cls.__name__] + [cls]


def union_members(kind: Any) -> tuple[Any, ...]:
    """The members of a union, with those registered beside them; any other type is a union of one."""
    several = get_origin(kind) in (Union, UnionType)
    found = get_args(kind) if several else (kind,)
    found += tuple(own for option in found if several for own in EXTRA_KINDS.get(option, ()))
    for option in found:
        listed = get_origin(option) is tuple and get_args(option)[1:] == (...,)
        if not (listed or option in SIMPLE or get_origin(option) is Literal or is_dataclass(option)):
            raise TypeError(f"a setting cannot be annotated {option}; what it can be stands on top of {__name__}")
    return found


def accepts_value(option: Any, given: Any) -> bool:
    if get_origin(option) is Literal:
        return any(given == word and type(given) is type(word) for word in get_args(option))
    if type(given) is int:
        return option in (int, float) and given in WHOLE
    if type(given) is str:  # a lone surrogate, from undecodable bytes on a command line, could not be saved
        return option is str and given.encode(errors="ignore").decode() == given
    return type(given) is option and given == given  # refuse NaN, which is not even equal to itself


def select_kind(parts: list[Any], given: dict[str, Any], path: str, default: Any) -> Any:
    """The dataclass that `kind` names; without a kind, the default's."""
    if len(parts) == 1:
        return parts[0]
    kinds = {word: part for part in parts for word in get_args(field_types(part)["kind"])}
    if "kind" in given:
        return kinds[convert_value(Literal[*kinds], given["kind"], join_path(path, "kind"))]
    if type(default) in parts:
        return type(default)
    raise path_error(join_path(path, "kind"), f"missing; set it to {' or '.join(kinds)}")


def build_dataclass(cls: Any, given: dict[str, Any], path: str, default: Any, parts: list[Any]) -> Any:
    """Build a dataclass from its table; missing settings come from `default`, if that has the same kind."""
    kinds = field_types(cls)
    start = {name: getattr(default, name) for name in kinds} if type(default) is cls else field_defaults(cls)
    values = dict(start)
    for name, value in given.items():
        if name not in kinds:
            raise path_error(join_path(path, name), explain_unknown_key(name, cls, parts, path))
        values[name] = convert_value(kinds[name], value, join_path(path, name), start.get(name))
    for name in kinds:
        if name not in values:
            raise path_error(join_path(path, name), f"missing; set it to {' or '.join(describe_type(kinds[name]))}")
    try:
        return cls(**values)
    except ValueError as problem:  # "depth: 0 is less than 1" becomes "trunk.depth: 0 is less than 1"
        own = path and str(problem).partition(":")[0].partition(".")[0] in kinds
        raise ConfigError(f"{path}.{problem}") if own else path_error(path, str(problem)) from problem


@cache
def field_types(cls: Any) -> dict[str, Any]:
    """The annotation of each field; cached, since it is needed for every part of every config."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def field_defaults(cls: Any) -> dict[str, Any]:
    fixed = {field.name: field.default for field in fields(cls) if field.default is not MISSING}
    return fixed | {f.name: f.default_factory() for f in fields(cls) if f.default_factory is not MISSING}


def join_path(path: str, name: str) -> str:
    known = name if str(name).isidentifier() else repr(name)
    return f"{path}.{known}" if path else known


def path_error(path: str, message: str) -> ConfigError:
    return ConfigError(f"{path}: {message}" if path else message)


def explain_unknown_key(name: str, cls: Any, parts: list[Any], path: str = "") -> str:
    """Why a table has no such setting: it belongs to another kind, or is a typing error."""
    for part in parts:
        if name in field_types(part):
            theirs, ours = (" or ".join(get_args(field_types(one)["kind"])) for one in (part, cls))
            return f"is a setting of kind {theirs!r}, but the kind here is {ours!r}; remove it or change the kind"
    names = list(field_types(cls))
    if ours := suggest_word(str(name), names, path):
        return ours
    return f"no such setting{did_you_mean(str(name), names)} there are {', '.join(names)}"


def explain_wrong_type(kind: Any, given: Any) -> str:
    expected = describe_type(kind)
    if type(given) is str and any(get_origin(option) is Literal for option in union_members(kind)):
        return f"no {reprlib.repr(given)}{did_you_mean(given, expected)} there are {', '.join(expected)}"
    if type(given) is int and given not in WHOLE:
        return f"expected {' or '.join(expected)}, got a number beyond 64 bits"
    got = {dict: "a table", list: "a list", NoneType: "nothing"}.get(type(given)) or reprlib.repr(given)
    return f"expected {' or '.join(expected)}, got {got}"


def describe_type(kind: Any) -> list[str]:
    """The allowed input in words, one for each choice."""
    found: list[str] = []
    for option in union_members(kind):
        if option in SIMPLE:
            found.append(SIMPLE[option][0])
        elif get_origin(option) is Literal:
            found.extend(str(word) for word in get_args(option))
        elif get_origin(option) is tuple:
            item = get_args(option)[0]
            found.append(f"a list of {SIMPLE[item][1]}" if item in SIMPLE else "a list")
        else:
            found.append("a table of settings")
    return list(dict.fromkeys(found))


def to_dict(config: Any, path: str = "") -> dict[str, Any]:
    """The config as nested dicts of plain values, defaults included; raises for values that would not read back
    equal."""
    written = {}
    cls: Any = type(config)
    for name, kind in field_types(cls).items():
        value, place = getattr(config, name), join_path(path, name)
        written[name] = to_plain(value, place)
        if convert_value(kind, written[name], place) != value:
            raise path_error(place, f"{reprlib.repr(value)} would be read back as something else; choose another value")
    return written


def to_plain(value: Any, path: str = "") -> Any:
    if is_dataclass(value):
        return to_dict(value, path)
    if isinstance(value, tuple):
        return [to_plain(item, f"{path}[{place}]") for place, item in enumerate(value)]
    return "none" if value is None else value


def config_leaves(table: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Each setting of nested tables by its dotted path; a list is one value."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from config_leaves(value, join_path(path, name))
        else:
            yield join_path(path, name), value


def to_toml(config: Any) -> str:
    """The config as TOML, defaults included."""
    return "\n".join(toml_lines(to_dict(config))).lstrip("\n") + "\n"


def toml_lines(table: dict[str, Any], path: str = "") -> Iterator[str]:
    """A table's own settings first, then its nested tables: TOML cannot return to a table after a [header]."""
    inner = {name: value for name, value in table.items() if isinstance(value, dict) or holds_tables(value)}
    yield from (f"{name} = {toml_literal(value)}" for name, value in table.items() if name not in inner)
    for name, value in inner.items():
        place = join_path(path, name)
        for item in value if isinstance(value, list) else [value]:
            yield from ("", f"[[{place}]]" if isinstance(value, list) else f"[{place}]")
            yield from toml_lines(item, place)


def holds_tables(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(isinstance(item, dict) for item in value)


def toml_literal(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name} = {toml_literal(item)}' for name, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(toml_literal(item) for item in value)}]"
    if isinstance(value, float):
        return repr(value)  # spells inf as TOML does
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML escapes what JSON does, and DEL


def json_schema(cls: Any) -> dict[str, Any]:
    """JSON schema (draft 2020-12) of the tables that `from_dict` accepts."""
    parts: dict[str, Any] = {}
    whole = schema_of_type(cls, parts)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole, "$defs": parts}


def schema_of_type(kind: Any, parts: dict[str, Any], default: Any = None) -> dict[str, Any]:
    """The schema of one annotation. `required` is here and not in $defs, since it depends on the default."""
    members = [option for option in union_members(kind) if is_dataclass(option)]
    chooses = ["kind"] if len(members) > 1 else []
    shapes = []
    for option in union_members(kind):
        filled = option not in members or type(default) is option
        needed = (
            [] if filled else chooses + [name for name in field_types(option) if name not in field_defaults(option)]
        )
        shapes.append(schema_of_member(option, parts) | ({"required": needed} if needed else {}))
    return shapes[0] if len(shapes) == 1 else {"oneOf" if members else "anyOf": shapes}


def schema_of_member(option: Any, parts: dict[str, Any]) -> dict[str, Any]:
    if option in SIMPLE:
        return SIMPLE[option][2]
    if get_origin(option) is Literal:
        return {"enum": list(get_args(option))}
    if get_origin(option) is tuple:
        return {"type": "array", "items": schema_of_type(get_args(option)[0], parts)}
    if option.__name__ not in parts:
        parts[option.__name__] = {}  # placeholder, in case the class contains itself
        parts[option.__name__] = schema_of_dataclass(option, parts)
    return {"$ref": f"#/$defs/{option.__name__}"}


def schema_of_dataclass(cls: Any, parts: dict[str, Any]) -> dict[str, Any]:
    kinds, known, about = field_types(cls), field_defaults(cls), inspect.cleandoc(cls.__doc__)
    properties = {name: schema_of_type(kind, parts, known.get(name)) for name, kind in kinds.items()}
    return {
        "type": "object",
        "description": "" if about.startswith(f"{cls.__name__}(") else about,  # the docstring that dataclass generates
        "properties": {n: p | ({"default": to_plain(known[n])} if n in known else {}) for n, p in properties.items()},
        "additionalProperties": False,
    }
