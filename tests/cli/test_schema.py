"""regard schema: what it allows is what the reader reads, checked by a validator of the words it uses."""

import json
import re
import tomllib

import pytest

from regard import config, zoo
from regard.cli.schema import recipe_schema
from regard.zoo.preset import SHORT_KEYS, preset_table

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
KNOWN = {"$schema", "$defs", "$ref", "title", "description", "default", "type", "enum", "properties", "items",
         "additionalProperties", "required", "oneOf", "anyOf"}  # fmt: skip


def valid(value, schema, parts):
    """JSON schema, as far as it is used here; a word that it does not know is a failure, not a pass."""
    assert schema.keys() <= KNOWN, schema.keys() - KNOWN
    inner = schema.get("properties", {})
    return all([
        "$ref" not in schema or valid(value, parts[schema["$ref"].removeprefix("#/$defs/")], parts),
        "type" not in schema or is_a(value, TYPES[schema["type"]]),
        "enum" not in schema or any(value == word and type(value) is type(word) for word in schema["enum"]),
        "anyOf" not in schema or any(valid(value, each, parts) for each in schema["anyOf"]),
        "oneOf" not in schema or sum(valid(value, each, parts) for each in schema["oneOf"]) == 1,
        "items" not in schema or not isinstance(value, list) or all(valid(v, schema["items"], parts) for v in value),
        not isinstance(value, dict) or all(name in value for name in schema.get("required", ())),
        not isinstance(value, dict) or all(valid(value[name], inner[name], parts) for name in value if name in inner),
        not isinstance(value, dict) or schema.get("additionalProperties", True) or value.keys() <= inner.keys(),
    ])  # fmt: skip


def is_a(value, kind):
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def allows(toml):
    schema = recipe_schema()
    return valid(tomllib.loads(toml), schema, schema["$defs"])


def reads(toml, folder):
    (folder / "given.toml").write_text(toml)
    try:
        return bool(zoo.read_recipe(folder / "given.toml"))
    except config.ConfigError:
        return False


def test_the_printed_schema_is_json(say):
    assert json.loads(say("schema").out) == recipe_schema()


@pytest.mark.parametrize("name", zoo.packaged_recipes())
def test_a_packaged_recipe_is_allowed(name):
    assert allows(zoo.packaged_recipes()[name].read_text())


@pytest.mark.parametrize("name", [name for name in config.PRESETS if "towers" not in preset_table(name)])
def test_a_recipe_written_out_whole_is_allowed(name):
    assert allows(config.to_toml(config.Recipe(model=zoo.preset(name))))


@pytest.mark.parametrize("toml", [
    '[model]\npreset = "gpt2"\ndim = 96\nheads = 3',
    '[model]\nposition = {kind = "learned"}',                       # its length is the context's
    '[model]\npreset = "gpt2"\nposition = {length = 99}',           # its kind is the preset's
    '[model]\nkv_heads = 2\nheads = 4\ndropout = 0.1',
    '[model.trunk]\nmask = ["causal", "causal & window(9)"]',
    '[train]\nminutes = 3\nsteps = "none"\n[train.optimizer]\nkind = "muon"',
    '[data]\nsource = ["a.txt", "b.txt"]\nvalidation = "c.txt"',
    '[tokenizer]\nkind = "bpe"\nvocab = 999',
])  # fmt: skip
def test_what_the_reader_reads_the_schema_allows(toml, tmp_path):
    assert reads(toml, tmp_path) and allows(toml)


@pytest.mark.parametrize("toml", [
    "[modell]\ndim = 96",
    "[model]\ndimm = 96",
    '[model]\npreset = "gpt3"',
    '[model]\ndim = "wide"',
    "[model]\ndepth = 2.5",
    '[model]\nposition = {kind = "learnt"}',
    '[tokenizer]\nkind = "bpe"\nbyte_fallback = true',
    "[train.optimizer]\nmomentum = 0.9",
    '[train]\nprecision = "fp16"',
    "[train]\ncompile = 1",
    '[tokenizer]\nkind = "file"',
])  # fmt: skip
def test_what_the_reader_refuses_by_shape_the_schema_refuses(toml, tmp_path):
    assert not reads(toml, tmp_path) and not allows(toml)


def test_every_short_word_of_a_model_is_there():
    model = recipe_schema()["$defs"]["Transformer"]["properties"]

    assert {"preset", *SHORT_KEYS} <= model.keys()
    assert model["dim"]["type"] == "integer" and re.search("trunk.dim", model["dim"]["description"])
