"""Overrides: `trunk.depth=4` to a nested dict, by its dotted path; and merging of tables, the later one winning."""

import tomllib
from contextlib import suppress
from typing import Any

from regard.config.errors import ConfigError


def apply_override(given: dict[str, Any], line: str) -> Any:
    """Set one setting by its dotted path; missing tables on the way are created."""
    dotted, equals, value = line.partition("=")
    names = [name.strip() for name in dotted.split(".")]
    if not equals or not all(names):
        raise ConfigError(f"override {line!r}: expected setting=value, such as train.steps=500")
    for name in names[:-1]:
        if not isinstance(given.get(name), dict):
            given[name] = {}
        given = given[name]
    given[names[-1]] = parse_value(value.strip())
    return given[names[-1]]


def replace_setting(given: dict[str, Any], change: dict[str, Any], depth: int | None) -> None:
    """Replace the setting that a change names, `depth` tables down or at the leaves; a table is replaced as a whole."""
    [(name, value)] = change.items()
    if isinstance(value, dict) and depth != 0:
        if not isinstance(given.get(name), dict):
            given[name] = {}
        replace_setting(given[name], value, depth and depth - 1)
    else:
        given[name] = value


def merge_tables(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """Merge tables, the top one winning; a table of another `kind` replaces the one below."""
    joined = dict(base)
    for name, value in top.items():
        under = joined.get(name)
        if isinstance(value, dict) and isinstance(under, dict) and value.get("kind") in (None, under.get("kind")):
            value = merge_tables(under, value)
        joined[name] = value
    return joined


def parse_value(source: str) -> Any:
    """Parse a TOML value; anything else is a string, so that a shell needs no second quotes."""
    with suppress(ValueError, RecursionError):
        table = tomllib.loads(f"value = {source}")
        if len(table) == 1:  # a newline in the source could add more keys
            return table["value"]
    return source
