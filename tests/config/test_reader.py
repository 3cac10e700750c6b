import json
import re
import tomllib
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import regard.config as library
from regard.config.errors import ConfigError
from regard.config.overrides import apply_override
from regard.config.reader import config_leaves, from_dict, json_schema, read_toml, to_dict, to_toml


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Turns q and k by their place."""

    kind: Literal["rotary"] = "rotary"
    base: float = 10_000.0
    axes: int = 1


@dataclass(frozen=True, kw_only=True)
class Alibi:
    """Subtracts a slope times the distance."""

    kind: Literal["alibi"] = "alibi"
    slopes: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Mlp:
    hidden: int
    activation: Literal["relu", "gelu"] = "gelu"
    inner: "Mlp | None" = None

    def __post_init__(self) -> None:
        if self.hidden == 0:
            raise ValueError("hidden: 0 is less than 1")
        if self.hidden == 13:
            raise ValueError("thirteen is unlucky")


@dataclass(frozen=True, kw_only=True)
class Trunk:
    """A stack of blocks."""

    depth: int
    heads: int | tuple[int, ...] = 4
    mask: str | tuple[str, ...] = "causal"
    position: Rotary | Alibi = Rotary(base=500.0)
    second: Rotary | Alibi | None = None
    mlp: Mlp = Mlp(hidden=256)
    dropout: float = 0.0
    share_layers: bool = False
    steps: Literal["auto"] | int = "auto"


@dataclass(frozen=True, kw_only=True)
class Model:
    """A whole model."""

    trunk: Trunk
    dim: int = 64
    note: str | None = None
    towers: tuple[Trunk, ...] = ()
    grid: tuple[tuple[Mlp, ...], ...] = ()


strings = st.text("aZ é😀'\"\\#=[]{}.,\n\r\t\b\x00\x1f\x7f\x85\u2028", max_size=9)
wholes = st.integers(-(2**63), 2**63 - 1)
numbers = st.floats(allow_nan=False)
rotaries = st.builds(Rotary, base=numbers, axes=wholes)
alibis = st.builds(Alibi, slopes=st.lists(numbers, max_size=3).map(tuple))
mlps = st.builds(Mlp, hidden=wholes.filter(lambda n: n not in (0, 13)), activation=st.sampled_from(["relu", "gelu"]))
mlps = mlps | st.builds(replace, mlps, inner=mlps)
trunks = st.builds(
    Trunk,
    depth=wholes,
    heads=wholes | st.lists(wholes, max_size=3).map(tuple),
    mask=strings | st.lists(strings, max_size=3).map(tuple),
    position=rotaries | alibis,
    second=st.none() | rotaries | alibis,
    mlp=mlps,
    dropout=numbers,
    share_layers=st.booleans(),
    steps=st.just("auto") | wholes,
)
models = st.builds(
    Model,
    trunk=trunks,
    dim=wholes,
    note=st.none() | strings,
    towers=st.lists(trunks, max_size=2).map(tuple),
    grid=st.lists(st.lists(mlps, max_size=2).map(tuple), max_size=2).map(tuple),
)


def planted(path: str, value: Any) -> dict[str, Any]:
    """The smallest model, with one value put in at a path."""
    whole: dict[str, Any] = {"trunk": {"depth": 1}}
    *parents, name = path.split(".")
    table = whole
    for parent in parents:
        table = table.setdefault(parent, {})
    table[name] = value
    return whole


def refusal(given: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        from_dict(Model, given)
    return str(caught.value)


@pytest.fixture
def file(tmp_path):
    """Writes a TOML file and names it."""

    def written(source: str | bytes) -> str:
        place = tmp_path / "model.toml"
        place.write_bytes(source if isinstance(source, bytes) else source.encode())
        return str(place)

    return written


def reading(path: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_toml(Model, path, overrides)
    return str(caught.value)


# ---------------------------------------------------------------- laws


@given(models)
def test_a_config_survives_its_tree(config):
    assert from_dict(Model, to_dict(config)) == config


@given(models)
def test_a_config_survives_json(config):
    assert from_dict(Model, json.loads(json.dumps(to_dict(config)))) == config


@given(models)
def test_a_config_survives_its_toml(config):
    assert from_dict(Model, tomllib.loads(to_toml(config))) == config


@given(models)
def test_a_tree_satisfies_the_schema(config):
    whole = json_schema(Model)

    assert accepts(whole, to_dict(config), whole)


@pytest.mark.parametrize("character", ["\x00", "\x1f", "\x7f", "\x85", '"', "\\", "\r\n", "\u2028", "😀", "'''", "#"])
def test_every_character_survives_toml(character):
    config = Model(trunk=Trunk(depth=1, mask=character))

    assert from_dict(Model, tomllib.loads(to_toml(config))) == config


@pytest.mark.parametrize("config", [library.Transformer(), library.DualEncoder(towers=(library.Transformer(),) * 2)])
def test_the_library_settings_survive_their_toml(config):
    assert from_dict(type(config), tomllib.loads(to_toml(config))) == config


# ---------------------------------------------------------------- what is accepted


def test_a_whole_number_is_a_number():
    assert from_dict(Rotary, {"base": 500}) == Rotary(base=500.0)


def test_the_word_none_and_a_null_are_none_where_none_is_allowed():
    assert from_dict(Model, {"trunk": {"depth": 1}, "note": "none"}).note is None
    assert from_dict(Model, {"trunk": {"depth": 1}, "note": None}).note is None


def test_the_word_none_is_a_string_where_none_is_not_allowed():
    assert from_dict(Trunk, {"depth": 1, "mask": "none"}).mask == "none"


def test_a_table_in_part_keeps_the_rest_of_its_default():
    config = from_dict(Trunk, {"depth": 1, "mlp": {"activation": "relu"}, "position": {"axes": 2}})

    assert config.mlp == Mlp(hidden=256, activation="relu")
    assert config.position == Rotary(base=500.0, axes=2)


def test_another_kind_starts_from_its_own_defaults():
    assert from_dict(Trunk, {"depth": 1, "position": {"kind": "alibi"}}).position == Alibi()


def test_kind_is_always_written():
    assert to_dict(Trunk(depth=1))["position"] == {"kind": "rotary", "base": 500.0, "axes": 1}


def test_lists_of_tables_are_written_as_tables():
    assert "[[towers]]\ndepth = 3" in to_toml(Model(trunk=Trunk(depth=1), towers=(Trunk(depth=3),)))


# ---------------------------------------------------------------- what is refused

ONE_OF_MODEL = "there are trunk, dim, note, towers, grid"
ONE_OF_TRUNK = "there are depth, heads, mask, position, second, mlp, dropout, share_layers, steps"
ONE_OF_KINDS = "there are rotary, alibi"
ANOTHER_KIND = "is a setting of kind 'alibi', but the kind here is 'rotary'; remove it or change the kind"

REFUSED = [
    ("dimm", 3, f"dimm: no such setting; did you mean 'dim'? {ONE_OF_MODEL}"),
    ("zzz", 3, f"zzz: no such setting; {ONE_OF_MODEL}"),
    ("a b", 3, f"'a b': no such setting; {ONE_OF_MODEL}"),
    ("trunk", 3, "trunk: expected a table of settings, got 3"),
    ("trunk", {}, "trunk.depth: missing; set it to a whole number"),
    ("trunk.depht", 3, f"trunk.depht: no such setting; did you mean 'depth'? {ONE_OF_TRUNK}"),
    ("trunk.depth", "six", "trunk.depth: expected a whole number, got 'six'"),
    ("trunk.depth", True, "trunk.depth: expected a whole number, got True"),
    ("trunk.depth", None, "trunk.depth: expected a whole number, got nothing"),
    ("trunk.depth", [], "trunk.depth: expected a whole number, got a list"),
    ("trunk.depth", {}, "trunk.depth: expected a whole number, got a table"),
    ("trunk.dropout", True, "trunk.dropout: expected a number, got True"),
    ("trunk.share_layers", 1, "trunk.share_layers: expected true or false, got 1"),
    ("trunk.mask", 3, "trunk.mask: expected a string in quotes or a list of strings, got 3"),
    ("trunk.heads", "x", "trunk.heads: expected a whole number or a list of whole numbers, got 'x'"),
    ("trunk.heads", [4, "x"], "trunk.heads[1]: expected a whole number, got 'x'"),
    ("trunk.steps", "aut", "trunk.steps: no 'aut'; did you mean 'auto'? there are auto, a whole number"),
    ("trunk.mlp.activation", "gelo", "trunk.mlp.activation: no 'gelo'; did you mean 'gelu'? there are relu, gelu"),
    ("trunk.mlp.activation", 3, "trunk.mlp.activation: expected relu or gelu, got 3"),
    ("trunk.mlp.inner", {}, "trunk.mlp.inner.hidden: missing; set it to a whole number"),
    ("trunk.position.kind", "rotory", f"trunk.position.kind: no 'rotory'; did you mean 'rotary'? {ONE_OF_KINDS}"),
    ("trunk.position.kind", 3, "trunk.position.kind: expected rotary or alibi, got 3"),
    ("trunk.position", "none", "trunk.position: expected a table of settings, got 'none'"),
    ("trunk.position.slopes", [], f"trunk.position.slopes: {ANOTHER_KIND}"),
    ("trunk.second.base", 3.0, "trunk.second.kind: missing; set it to rotary or alibi"),
    ("trunk.second", 3, "trunk.second: expected a table of settings or none, got 3"),
    ("towers", [{"depth": 1}, {"depht": 2}], f"towers[1].depht: no such setting; did you mean 'depth'? {ONE_OF_TRUNK}"),
]
FINER = [  # than a JSON schema can tell
    ("trunk.depth", 6.0, "trunk.depth: expected a whole number, got 6.0"),
    ("trunk.depth", 2**64, "trunk.depth: expected a whole number, got a number beyond 64 bits"),
    ("trunk.dropout", 10**400, "trunk.dropout: expected a number, got a number beyond 64 bits"),
    ("trunk.dropout", float("nan"), "trunk.dropout: expected a number, got nan"),
    ("trunk.mask", "\udcff", r"trunk.mask: expected a string in quotes or a list of strings, got '\udcff'"),
    ("trunk.mlp.hidden", 0, "trunk.mlp.hidden: 0 is less than 1"),
    ("trunk.mlp.hidden", 13, "trunk.mlp: thirteen is unlucky"),
]


@pytest.mark.parametrize(("path", "value", "sentence"), REFUSED + FINER)
def test_a_mistake_is_told_in_one_sentence(path, value, sentence):
    assert refusal(planted(path, value)) == sentence


def test_a_missing_setting_is_named():
    assert refusal({}) == "trunk: missing; set it to a table of settings"


def test_a_part_is_named_by_where_it_stands():
    with pytest.raises(ConfigError, match="^runs.first.dimm: no such setting"):
        from_dict(Model, {"dimm": 3}, "runs.first")


def test_what_is_not_a_table_is_no_config():
    assert refusal([1]) == "expected a table of settings, got a list"


def test_a_string_that_would_be_read_as_none_is_not_written():
    with pytest.raises(ConfigError, match="^note: 'none' would be read back as something else"):
        to_dict(Model(trunk=Trunk(depth=1), note="none"))


def test_a_config_built_with_a_wrong_type_is_not_written():
    with pytest.raises(ConfigError, match="^trunk.depth: expected a whole number, got 'six'"):
        to_toml(Model(trunk=Trunk(depth="six")))


@pytest.mark.parametrize("kind", [dict[str, int], tuple[int, int], Any])
def test_an_annotation_without_a_meaning_is_refused(kind):
    with pytest.raises(TypeError, match="a setting cannot be annotated"):
        from_dict(kind, {})


# ---------------------------------------------------------------- files


def test_a_file_is_read_with_its_byte_order_mark(file):
    assert read_toml(Model, file(b"\xef\xbb\xbftrunk = {depth = 3}")).trunk.depth == 3


def test_an_empty_file_is_all_defaults(file):
    assert read_toml(Rotary, file("")) == Rotary()


FILES = [
    ("# nothing yet\n", "the file holds no settings; trunk: missing; set it to a table of settings"),
    (b"dim = 3\nnote = '\xff'", "line 2 is not UTF-8; save the file as UTF-8"),
    ("dim = 3\ndim 4\n", r"not valid TOML: .+ \(at line 2, column 5\)"),
    ("dim = 3\ndim = 4\n", r"not valid TOML: .+ \(at line 2, column 8\)"),
    ("dim = 3\nheads = [\n4,\n\n", r"not valid TOML: .+ \(at line 3, where the file ends\)"),
    ("dim = " + "[" * 100_000, "the tables or lists are nested too deeply to read"),
]


@pytest.mark.parametrize(("source", "sentence"), FILES, ids=[sentence[:24] for _, sentence in FILES])
def test_a_file_that_cannot_be_used_is_named(file, source, sentence):
    path = file(source)

    assert re.fullmatch(f"{re.escape(path)}: {sentence}", reading(path))


@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 5000], ids=["decimal", "hexadecimal"])
def test_a_number_of_thousands_of_digits_is_refused(file, number):
    assert "\n" not in reading(file(f"dim = {number}"))


def test_a_missing_file_is_named(tmp_path):
    assert reading(f"{tmp_path}/no.toml") == (
        f"{tmp_path}/no.toml: no such file or directory; name a TOML file that can be read"
    )


def test_a_folder_is_not_a_file(tmp_path):
    assert reading(str(tmp_path)) == f"{tmp_path}: is a directory; name a TOML file that can be read"


# ---------------------------------------------------------------- overrides

OVERRIDES = [
    ("trunk.depth=4", Trunk(depth=4)),
    (" trunk.depth = 4 ", Trunk(depth=4)),
    ("trunk.mask=causal & window(8)", Trunk(depth=2, mask="causal & window(8)")),
    ('trunk.mask="causal"', Trunk(depth=2, mask="causal")),
    ("trunk.mask=a=b", Trunk(depth=2, mask="a=b")),
    ("trunk.mask=", Trunk(depth=2, mask="")),
    ("trunk.mask=3\nvalues = 4", Trunk(depth=2, mask="3\nvalues = 4")),
    ("trunk.mask=" + "[" * 100_000, Trunk(depth=2, mask="[" * 100_000)),
    ("trunk.heads=[4,4,2]", Trunk(depth=2, heads=(4, 4, 2))),
    ("trunk.share_layers=true", Trunk(depth=2, share_layers=True)),
    ("trunk.dropout=1e-3", Trunk(depth=2, dropout=0.001)),
    ("trunk.position.axes=2", Trunk(depth=2, position=Rotary(base=500.0, axes=2))),
    ("trunk.position.kind=alibi", Trunk(depth=2, position=Alibi())),
    ("trunk.second.kind=alibi", Trunk(depth=2, second=Alibi())),
    ("trunk={depth=5}", Trunk(depth=5)),
]


@pytest.mark.parametrize(("line", "trunk"), OVERRIDES, ids=[line[:30] for line, _ in OVERRIDES])
def test_an_override_sets_one_setting(file, line, trunk):
    assert read_toml(Model, file('[trunk]\ndepth = 2\nsecond = "none"'), [line]) == Model(trunk=trunk)


def test_the_last_override_wins(file):
    assert read_toml(Model, file(""), ["trunk.depth=4", "trunk.depth=5"]).trunk.depth == 5


def test_an_override_of_kind_leaves_no_defaults_of_the_old_kind(file):
    path = file("trunk = {depth = 2, position = {kind = 'rotary'}}")

    assert read_toml(Model, path, ["trunk.position.kind=alibi", "trunk.position.slopes=[1]"]).trunk.position == Alibi(
        slopes=(1.0,)
    )


def test_an_override_of_kind_refuses_settings_given_for_the_old_kind(file):
    path = file("trunk = {depth = 2, position = {base = 3.0}}")

    assert reading(path, "trunk.position.kind=alibi") == (
        "trunk.position.base: is a setting of kind 'rotary', but the kind here is 'alibi'; remove it or change the kind"
    )


def test_an_override_replaces_a_whole_table(file):
    path = file("trunk = {depth = 2, position = {base = 3.0}}")

    assert read_toml(Model, path, ['trunk.position={kind="alibi"}']).trunk.position == Alibi()


@pytest.mark.parametrize("line", ["depth", "=4", "trunk..depth=4", ".depth=4", "trunk.=4", ""])
def test_an_override_without_a_setting_or_a_value_is_refused(file, line):
    assert reading(file(""), line) == f"override {line!r}: expected setting=value, such as train.steps=500"


def test_an_override_below_a_number_is_refused(file):
    path = file("trunk = {depth = 2}")

    assert reading(path, "trunk.depth.size=4") == "trunk.depth: expected a whole number, got a table"


# ---------------------------------------------------------------- schema


def accepts(rule: dict[str, Any], value: Any, whole: dict[str, Any]) -> bool:
    """The corner of JSON schema that ours uses."""
    kinds = {"integer": int, "number": (int, float), "boolean": bool, "string": str, "array": list, "object": dict}
    if "$ref" in rule and not accepts(whole["$defs"][rule["$ref"].removeprefix("#/$defs/")], value, whole):
        return False
    if "type" in rule and not isinstance(value, kinds[rule["type"]]):
        return False
    if isinstance(value, bool) and rule.get("type") in ("integer", "number"):
        return False
    if "enum" in rule and value not in rule["enum"]:
        return False
    if "oneOf" in rule and sum(accepts(one, value, whole) for one in rule["oneOf"]) != 1:
        return False
    if "anyOf" in rule and not any(accepts(one, value, whole) for one in rule["anyOf"]):
        return False
    if "items" in rule and not all(accepts(rule["items"], item, whole) for item in value):
        return False
    if not set(rule.get("required", ())) <= set(value if isinstance(value, dict) else rule.get("required", ())):
        return False
    if rule.get("additionalProperties") is False and not value.keys() <= rule["properties"].keys():
        return False
    return all(accepts(one, value[name], whole) for name, one in rule.get("properties", {}).items() if name in value)


ACCEPTED = [
    ("dim", 3),
    ("note", None),
    ("trunk.position.axes", 2),
    ("trunk.position.kind", "alibi"),
    ("trunk.second", {"kind": "rotary"}),
    ("trunk.mlp.activation", "relu"),
    ("towers", [{"depth": 1}]),
]


@pytest.mark.parametrize(("path", "value"), ACCEPTED)
def test_the_schema_accepts_what_make_accepts(path, value):
    from_dict(Model, planted(path, value))

    assert accepts(json_schema(Model), planted(path, value), json_schema(Model))


@pytest.mark.parametrize(("path", "value"), [case[:2] for case in REFUSED])
def test_the_schema_refuses_what_make_refuses(path, value):
    assert not accepts(json_schema(Model), planted(path, value), json_schema(Model))


def test_the_schema_describes_parts_by_their_docstrings():
    parts = json_schema(Model)["$defs"]

    assert parts["Rotary"]["description"] == "Turns q and k by their place."
    assert parts["Mlp"]["description"] == ""


def test_the_schema_tells_defaults_as_they_are_written():
    known = json_schema(Model)["$defs"]["Trunk"]["properties"]

    assert known["position"]["default"] == {"kind": "rotary", "base": 500.0, "axes": 1}
    assert known["second"]["default"] == "none"
    assert "default" not in known["depth"]


def test_the_schema_of_the_library_settings_accepts_their_defaults():
    whole = json.loads(json.dumps(json_schema(library.DualEncoder)))

    assert accepts(whole, to_dict(library.DualEncoder(towers=(library.Transformer(),))), whole)


@pytest.mark.parametrize(("path", "value"), [
    ("train.optimizer.lr", "inf"), ("train.optimizer.lr", "nan"), ("train.optimizer.lr", "-1"),
    ("train.optimizer.lr", "1e39"), ("train.optimizer.weight_decay", "inf"), ("train.minutes", "inf"),
    ("train.epochs", "inf"),
])  # fmt: skip
def test_a_number_that_nothing_can_be_trained_with_is_refused_by_its_path(path, value):
    """An infinite learning rate was called a bug of this package."""
    kinds = ("adamw", "muon", "adafactor") if "lr" in path else ("adamw",)
    for kind in kinds:
        table = {"train": {"optimizer": {"kind": kind}}}
        apply_override(table, f"{path}={value}")
        with pytest.raises(ConfigError, match=rf"^{re.escape(path)}: .*(inf|nan|-1|1e\+39)"):
            from_dict(library.Recipe, table)


def test_the_leaves_of_a_config_are_its_settings_by_their_paths():
    towers = [{"dim": 3}, {"dim": 5}]
    leaves = dict(config_leaves({"trunk": {"dim": 6, "position": {"kind": "none"}}, "towers": towers}))

    assert leaves == {"trunk.dim": 6, "trunk.position.kind": "none", "towers": towers}
