"""JSON schema of a recipe, for editors that complete and check TOML.

It is the reader's own schema of config.Recipe, with what `zoo.read_recipe` allows besides: [model] may name a preset,
use the short keys, and leave out whatever the preset or the data determine.
"""

from collections.abc import Iterator
from typing import Any

from regard import config
from regard.zoo.preset import SHORT_KEYS, preset_table

Schema = dict[str, Any]
TOWERS = ("image", "sound", "graph", "series", "film", "text")  # usual names of towers


def recipe_schema() -> Schema:
    whole = config.json_schema(config.Recipe)
    parts: Schema = whole["$defs"]
    for name in reachable_parts("DualEncoder", parts):
        parts[name] = drop_required(parts[name])
    tables = parts["Recipe"]["properties"]
    tables["model"] = drop_required(tables["model"])
    short = {word: setting_schema(paths[0], "Transformer", parts) for word, paths in SHORT_KEYS.items()}
    towers = [name for name in config.PRESETS if "towers" in preset_table(name)]
    single = [name for name in config.PRESETS if name not in towers]
    parts["Transformer"]["properties"] |= {"preset": preset_schema(single), **short}
    each = {name: {"$ref": "#/$defs/Transformer", "description": "The tower that reads it."} for name in TOWERS}
    parts["DualEncoder"]["properties"] |= {"preset": preset_schema(towers), **each}
    return {"title": "A recipe of regard", **whole}


def preset_schema(names: list[str]) -> Schema:
    return {"enum": names, "description": "The model to begin from; what stands beside it changes it."}


def reachable_parts(name: str, parts: Schema) -> set[str]:
    """The definitions reachable from one."""
    found, new = set(), {name}
    while new:
        found |= new
        new = {part for known in new for part in referenced_parts(parts[known])} - found
    return found


def referenced_parts(schema: Any) -> set[str]:
    """The definitions that a schema refers to."""
    if isinstance(schema, dict):
        inner = {name for value in schema.values() for name in referenced_parts(value)}
        return inner | ({schema["$ref"].rpartition("/")[2]} if "$ref" in schema else set())
    return {name for item in schema for name in referenced_parts(item)} if isinstance(schema, list) else set()


def drop_required(schema: Any) -> Any:
    """Nothing is required, since a preset may set it. An incomplete table may then match several kinds: oneOf
    -> anyOf."""
    if isinstance(schema, dict):
        kept = {name: drop_required(value) for name, value in schema.items() if name not in ("required", "default")}
        return {("anyOf" if name == "oneOf" else name): value for name, value in kept.items()}
    return [drop_required(item) for item in schema] if isinstance(schema, list) else schema


def setting_schema(path: str, part: str, parts: Schema) -> Schema:
    """The schema of a setting by its dotted path, with a description."""
    found: list[Schema] = []
    for way in follow_path(path.split("."), part, parts):
        found += [way] if way not in found else []
    whole = found[0] if len(found) == 1 else {"anyOf": found}
    return whole | {"description": f"Stands for {path}."}


def follow_path(path: list[str], part: str, parts: Schema) -> Iterator[Schema]:
    """The schemas at a path, for each kind that has all of it."""
    inner = parts[part]["properties"].get(path[0])
    if inner is not None and len(path) == 1:
        yield inner
    elif inner is not None:
        for kind in sorted(referenced_parts(inner)):
            yield from follow_path(path[1:], kind, parts)
