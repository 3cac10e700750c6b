"""Study: a recipe, settings shared by all variants, and axes that vary, in all combinations.

    model.kernel=reference,local  train.context=64,128        2 x 2 variants, each trained from every seed

A comma separates values, except inside brackets or quotes. A single value is a setting of all variants. The key
`recipe` compares whole recipes. A built-in study is a TOML file in this package, with one or more parts; there a
variant may also be a line of several settings: "near: model.kernel=local; model.mask=causal & window(16)".
"""

import itertools
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.resources import files

from regard import config
from regard.config.errors import did_you_mean
from regard.config.fields import check_minimum
from regard.config.overrides import parse_value
from regard.zoo.recipe import read_recipe

RECIPE_KEY, VARIANT_KEY = "recipe", "variant"
MAX_TOKENS, QUICK_TOKENS = 131_072, 4096  # tokens of texts for timing; and with --quick
PAIRS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, kw_only=True)
class StudyTable:
    """One table of a study. `over` is the key on the x axis of a figure; `beyond` evaluates on texts so many times as
    long as in training; `quick` are settings for a run of a minute."""

    recipe: str
    name: str = ""
    title: str = ""
    settings: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    grid: tuple[str, ...] = ()
    over: str = ""
    beyond: tuple[int, ...] = ()
    quick: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for factor in self.beyond:
            check_minimum(2, beyond=factor)
        if self.over and self.over not in (VARIANT_KEY, *(key for key, _ in parse_axes(self.grid))):
            raise ValueError(f"over: {self.over} is not a key of the grid")


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """A study plan of one or more tables; `minutes` is its duration on two cores. The time of mixing is measured up to
    `longest` tokens."""

    title: str = ""
    about: str = ""
    minutes: float | None = None
    seeds: int = 3
    longest: int = MAX_TOKENS
    parts: tuple[StudyTable, ...] = ()

    def __post_init__(self) -> None:
        check_minimum(1, seeds=self.seeds)
        check_minimum(4, longest=self.longest)


@dataclass(frozen=True)
class StudyVariant:
    """A variant, one row of a table: its settings, and its recipe, or the error that refuses it."""

    name: str
    chosen: tuple[tuple[str, str], ...]  # key and value, as typed
    source: str
    changes: tuple[str, ...]
    recipe: config.Recipe | None = None
    problem: Exception | None = None

    @property
    def folder(self) -> str:
        return file_slug(self.name)

    def read(self, *more: str) -> config.Recipe:
        """The variant's recipe, with further overrides."""
        return read_recipe(self.source, [*self.changes, *more])


def file_slug(name: str) -> str:
    """A file name that is valid on every file system."""
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.") or "all"


def study_from_keys(recipe: str, changes: Iterable[str], seeds: int = 3) -> StudyPlan:
    """The study of a command line: a recipe and its keys."""
    lines = list(changes)
    for line in lines:
        key, equals, value = line.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise config.ConfigError(f"{line!r}: expected key=value or key=a,b,c, such as model.kernel=fused,local")
    keys = [line.partition("=")[0].strip() for line in lines]
    for key in keys:
        if keys.count(key) > 1:
            raise config.ConfigError(f"{key}: given twice; give its values once, as in {key}=a,b")
    return StudyPlan(seeds=seeds, parts=(StudyTable(recipe=recipe, grid=tuple(lines)),))


def builtin_studies() -> dict[str, str]:
    """The built-in studies by name, with their titles."""
    return {name: str(table.get("title", "")) for name, table in builtin_tables().items()}


def builtin_tables() -> dict[str, dict[str, object]]:
    found = files(__package__).joinpath("builtin").iterdir()
    named = sorted((each.name.removesuffix(".toml"), each) for each in found if each.name.endswith(".toml"))
    return {name: tomllib.loads(each.read_text(encoding="utf8")) for name, each in named}


def load_study(name: str, changes: Iterable[str] = (), quick: bool = False) -> StudyPlan:
    """A built-in study; changes override the settings shared by its parts."""
    known = builtin_tables()
    if name not in known:
        raise config.ConfigError(f"{name}: no such study{did_you_mean(name, known)} there are {', '.join(known)}")
    found = config.from_dict(StudyPlan, known[name])
    more = tuple(changes)
    parts = tuple(replace(part, settings=(*part.settings, *(part.quick if quick else ()), *more), quick=())
                  for part in found.parts)  # fmt: skip
    found = replace(found, parts=parts)
    return replace(found, seeds=1, longest=QUICK_TOKENS) if quick else found


# ---------------------------------------------------------------- from keys to variants


def parse_axes(lines: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Each key with its values."""
    halves = (line.partition("=") for line in lines)
    return [(key.strip(), split_values(values)) for key, _, values in halves]


def split_values(source: str) -> list[str]:
    """Split at commas outside brackets and quotes: "window(8, 2),causal" is two values."""
    found, open, quote = [""], list[str](), ""
    for letter in source:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in PAIRS:
            open.append(PAIRS[letter])
        elif open and letter == open[-1]:
            open.pop()
        elif letter == "," and not open:
            found.append("")
            continue
        found[-1] += letter
    return [value.strip() for value in found if value.strip()]


def expand_variants(part: StudyTable) -> list[StudyVariant]:
    """Every combination of values, in the order given."""
    known = parse_axes(part.grid)
    for key, values in known:
        if len(set(values)) < len(values):
            raise config.ConfigError(f"{key}: a value is given twice in {','.join(values)}; give each once")
    several = [(key, values) for key, values in known if len(values) > 1]
    shared = [f"{key}={values[0]}" for key, values in known if len(values) == 1]
    short = shorten_keys([key for key, _ in several])
    made = []
    for line in part.variants or ("",):
        name, own = parse_named_variant(line)
        named = ((VARIANT_KEY, name),) if name else ()
        for choice in itertools.product(*(values for _, values in several)):
            chosen = tuple(zip(short, choice, strict=True))
            words = [*([name] if name else []), *(f"{short[key]}={value}" for key, value in chosen)]
            said = [*part.settings, *shared, *own, *(f"{key}={value}" for key, value in chosen)]
            made.append(build_variant(", ".join(words) or part.recipe, (*named, *chosen), said, part.recipe))
    return list(unique_folders(made))


def parse_named_variant(line: str) -> tuple[str, list[str]]:
    """The name and settings of a variant: "near: a=1; b=2"."""
    name, colon, rest = line.partition(":")
    if not colon or "=" in name:
        name, rest = line, line
    return name.strip(), [each.strip() for each in rest.split(";") if each.strip()]


def build_variant(name: str, chosen: tuple[tuple[str, str], ...], settings: list[str], recipe: str) -> StudyVariant:
    recipe = next((values[0] for key, values in parse_axes(settings) if key == RECIPE_KEY), recipe)
    changes = [line for line in settings if line.partition("=")[0].strip() != RECIPE_KEY]
    made = StudyVariant(name, chosen, str(parse_value(recipe)), tuple(changes))
    try:
        return replace(made, recipe=made.read())
    except (config.ConfigError, config.DataError) as problem:
        return replace(made, problem=problem)


def shorten_keys(keys: list[str]) -> dict[str, str]:
    """Shorten each key to as few of its last components as are unique; `kind` keeps the component before it."""
    found = {}
    for key in keys:
        words = (key.removesuffix(".kind") if "." in key else key).split(".")
        tails = (".".join(words[-count:]) for count in range(1, len(words) + 1))
        others = [f".{other.removesuffix('.kind')}" for other in keys if other != key]
        found[key] = next((tail for tail in tails if not any(other.endswith(f".{tail}") for other in others)), key)
    return found


def unique_folders(variants: list[StudyVariant]) -> Iterator[StudyVariant]:
    """Number folder names that a file system would not distinguish."""
    seen: set[str] = set()
    for variant in variants:
        count, name = 1, variant.name
        while variant.folder.lower() in seen:
            count += 1
            variant = replace(variant, name=f"{name} ({count})")
        seen.add(variant.folder.lower())
        yield variant
