"""The JSON schema of a recipe, for editors that complete and check TOML while one types.

It is the reader's own schema of config.Recipe, with what `zoo.read_recipe` allows besides: [model] may name a preset,
may use the short words, and may leave out whatever the preset or the text will say.
"""

from typing import Any

from regard import config
from regard.zoo.presets import SHORT, table

Schema = dict[str, Any]


def recipe_schema() -> Schema:
    whole = config.schema(config.Recipe)
    parts: Schema = whole["$defs"]
    for name in reachable("Transformer", parts):
        parts[name] = loosened(parts[name])
    short = {word: setting(paths[0], "Transformer", parts) for word, paths in SHORT.items()}
    single = [name for name in config.PRESETS if "towers" not in table(name)]
    preset = {"enum": single, "description": "The model to begin from; what stands beside it changes it."}
    parts["Transformer"]["properties"] |= {"preset": preset, **short}
    return {"title": "A recipe of regard", **whole}


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
    *tables, last = path.split(".")
    for name, inner in zip(tables, [*tables[1:], last], strict=True):  # among several kinds, the one that has it
        kinds = sorted(named(parts[part]["properties"][name]))
        part = next(kind for kind in kinds if inner in parts[kind]["properties"])
    found: Schema = parts[part]["properties"][last]
    return found | {"description": f"Stands for {path}."}
