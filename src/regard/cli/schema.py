"""The JSON schema of a recipe, for editors that complete and check TOML while one types.

It is the reader's own schema of config.Recipe, with what `zoo.read_recipe` allows besides: [model] may name a preset,
may use the short words, and may leave out whatever the preset or the text will say.
"""

from collections.abc import Iterator
from typing import Any

from regard import config
from regard.zoo.presets import SHORT, table

Schema = dict[str, Any]
TOWERS = ("image", "sound", "graph", "series", "film", "text")  # what towers are usually called


def recipe_schema() -> Schema:
    whole = config.schema(config.Recipe)
    parts: Schema = whole["$defs"]
    for name in reachable("Towers", parts):
        parts[name] = loosened(parts[name])
    tables = parts["Recipe"]["properties"]
    tables["model"] = loosened(tables["model"])
    short = {word: setting(paths[0], "Transformer", parts) for word, paths in SHORT.items()}
    towers = [name for name in config.PRESETS if "towers" in table(name)]
    single = [name for name in config.PRESETS if name not in towers]
    parts["Transformer"]["properties"] |= {"preset": preset(single), **short}
    each = {name: {"$ref": "#/$defs/Transformer", "description": "The tower that reads it."} for name in TOWERS}
    parts["Towers"]["properties"] |= {"preset": preset(towers), **each}
    return {"title": "A recipe of regard", **whole}


def preset(names: list[str]) -> Schema:
    return {"enum": names, "description": "The model to begin from; what stands beside it changes it."}


def reachable(name: str, parts: Schema) -> set[str]:
    """The part, and the parts it is made of."""
    found, new = set(), {name}
    while new:
        found |= new
        new = {part for known in new for part in named(parts[known])} - found
    return found


def named(schema: Any) -> set[str]:
    """The parts that a schema refers to."""
    if isinstance(schema, dict):
        inner = {name for value in schema.values() for name in named(value)}
        return inner | ({schema["$ref"].rpartition("/")[2]} if "$ref" in schema else set())
    return {name for item in schema for name in named(item)} if isinstance(schema, list) else set()


def loosened(schema: Any) -> Any:
    """Nothing required: a preset has said it. So a table in part may fit several kinds, and `oneOf` is `anyOf`."""
    if isinstance(schema, dict):
        kept = {name: loosened(value) for name, value in schema.items() if name not in ("required", "default")}
        return {("anyOf" if name == "oneOf" else name): value for name, value in kept.items()}
    return [loosened(item) for item in schema] if isinstance(schema, list) else schema


def setting(path: str, part: str, parts: Schema) -> Schema:
    """The schema of a setting by its dotted path, with a word on what it stands for."""
    found: list[Schema] = []
    for way in followed(path.split("."), part, parts):
        found += [way] if way not in found else []
    whole = found[0] if len(found) == 1 else {"anyOf": found}
    return whole | {"description": f"Stands for {path}."}


def followed(path: list[str], part: str, parts: Schema) -> Iterator[Schema]:
    """Where a path leads, for each of the kinds that have all of it."""
    inner = parts[part]["properties"].get(path[0])
    if inner is not None and len(path) == 1:
        yield inner
    elif inner is not None:
        for kind in sorted(named(inner)):
            yield from followed(path[1:], kind, parts)
