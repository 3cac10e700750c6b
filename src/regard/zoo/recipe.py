"""Recipes: a TOML file or the name of a packaged one, with overrides, read into a config.Recipe."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from regard import config
from regard.config.names import did_you_mean
from regard.config.reader import contents, override, parsed
from regard.zoo.presets import described, laid_over, spelt, table
from regard.zoo.towers import of_towers, raised

PRECISIONS = ("fp32", "mixed", "bf16")
BOTH_WAYS = ("masked", "classify", "regress", "tag", "answer")  # asked of models that see what comes before and after
ONE_WAY = ("text", "pixels", "masked_pixels", "mixed", "")  # front ends of models that tell what comes next
UNKNOWN = 1  # a vocabulary of one: the tokenizer will say
HERE = Path(__file__).resolve()
FOLDERS = (HERE.parents[1] / "recipes", HERE.parents[3] / "recipes")  # in an installed package, in a checkout


def recipes() -> dict[str, Path]:
    """The packaged recipes by name."""
    return {path.stem: path for folder in FOLDERS for path in sorted(folder.glob("*.toml"))}


def read_recipe(path: str | Path, overrides: Iterable[str] = ()) -> config.Recipe:
    """The recipe in a TOML file, or the packaged one of that name, after overrides such as "model.depth=6"."""
    given, changes = parsed(contents(found(path)), path), dict[str, Any]()
    if not given:
        raise config.ConfigError(f"{path}: the file holds no settings; write some, or name a packaged recipe")
    for line in overrides:
        override(changes, line)
    return config.make(config.Recipe, filled(given, changes))


def describe_kind_changes(path: str | Path, overrides: Iterable[str]) -> list[str]:
    """What changes with the kind of an optimizer or a schedule: a table of another kind replaces the recipe's own, so
    its settings are not those of the file any more, but the usual ones of the new kind."""
    lines, changes, told = list(overrides), dict[str, Any](), list[str]()
    for line in lines:
        override(changes, line)
    asked = {name: inside(changes, "train", name) for name in ("optimizer", "schedule")}
    if not any("kind" in table for table in asked.values()) or not found(path).is_file():  # a pipe is read only once
        return told
    before, after = (config.tree(read_recipe(path, some).train) for some in ([], lines))
    for name, typed in asked.items():
        old, new = before[name], after[name]
        if old["kind"] == new["kind"]:
            continue
        moved = [f"{key} is {new[key]} (was {old[key]})" for key in new
                 if key in old and key not in typed and new[key] != old[key]]  # fmt: skip
        fresh = [f"{key} is {new[key]}" for key in new if key not in old and key not in typed]
        if moved or fresh:
            told.append(f"train.{name}.kind: {new['kind']}, and the recipe has {old['kind']}; with the kind "
                        f"{', '.join(moved + fresh)}; say train.{name}.{next(iter((*moved, *fresh))).split()[0]}=... "
                        "for another value")  # fmt: skip
    return told


def read_model(given: dict[str, Any], task: str = "next") -> config.Transformer:
    """The model that a recipe with this table of it would have, for a task."""
    made = config.make(config.Recipe, filled({"model": given, "task": {"kind": task}}, {})).model
    assert isinstance(made, config.Transformer)
    return made


def found(path: str | Path) -> Path:
    """A file first, then a name; a run's folder stands for its config.toml."""
    path, known = Path(path), recipes()
    if path.is_dir() and (path / "config.toml").is_file():
        return path / "config.toml"
    if path.is_dir() and str(path) in known:  # a folder that is no run hides nothing
        return known[str(path)]
    if path.exists() or str(path) not in known:
        if not path.exists():
            near = did_you_mean(path.stem, known)
            raise config.ConfigError(f"{path}: no such recipe{near} packaged are {', '.join(known) or 'none'}")
        return path
    return known[str(path)]


def filled(given: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The file's tables with the changes laid over them, and what follows from the rest: the model's whole table, its
    precision, the places it must know, its vocabulary.
    """
    tables = [table.get(name, {}) for table in (given, changes) for name in ("model", "train")]
    if not all(isinstance(table, dict) for table in tables):
        return laid_over(given, changes)  # the reader says what is wrong
    model, train, model_changes, train_changes = tables
    if of_towers(laid_over(model, model_changes)):
        return raised(given, changes, filled)
    encoder = two_sided(laid_over(model, model_changes))
    asked = laid_over(spelt(model, "model", encoder), spelt(model_changes, "model", encoder))
    whole, train = described(asked, "model"), laid_over(train, train_changes)
    task = inside(laid_over(given, changes), "task")
    if kind_of(whole) not in ("text", "mixed") and (longest := tokens(inside(whole, "embed"))):
        train = {"context": longest, **train}
    settle_words(whole, asked)
    settle_looks(whole, asked, task)
    settle_places(whole, asked, train.get("context", config.Train().context))
    settle_head(whole, asked, task)
    if train.get("precision") in PRECISIONS and ("precision" not in whole or "precision" in train_changes):
        whole.setdefault("precision", train["precision"])
        if "precision" not in model_changes:  # else the reader compares the two
            whole["precision"] = train["precision"]
    if "precision" in whole and "precision" not in train:
        train = {**train, "precision": whole["precision"]}
    return {**laid_over(given, changes), "model": whole, "train": train}


# ---------------------------------------------------------------- what follows from the rest, in a model's whole table


def kind_of(whole: dict[str, Any]) -> str:
    """The kind of its front end; nothing where the reader will say what is wrong with it."""
    embed = whole.get("embed", {})
    return str(embed.get("kind", "text")) if isinstance(embed, dict) else ""


def settle_words(whole: dict[str, Any], asked: dict[str, Any]) -> None:
    """The tokenizer will say how many words there are."""
    if kind_of(whole) == "text" and "vocab" not in inside(asked, "embed"):
        whole["embed"] = {**inside(whole, "embed"), "vocab": UNKNOWN}
    if kind_of(whole) == "mixed" and "vocab" not in inside(asked, "embed", "text"):
        whole["embed"] = laid_over(whole["embed"], {"text": {"vocab": UNKNOWN}})


def settle_looks(whole: dict[str, Any], asked: dict[str, Any], task: dict[str, Any]) -> None:
    """A recipe's own default is a decoder, where nothing says that the model may look both ways."""
    trunk = whole.setdefault("trunk", {})
    both_ways = "preset" in asked or task.get("kind") in BOTH_WAYS or kind_of(whole) not in ONE_WAY
    if both_ways and isinstance(trunk, dict):
        whole["trunk"] = {"mask": config.Trunk().mask, **trunk}


def settle_places(whole: dict[str, Any], asked: dict[str, Any], context: Any) -> None:
    """As many learned places as there are tokens; tables of places on a grid stay as they are."""
    for path in (("trunk",), ("encoder", "trunk")):
        position = inside(whole, *path, "position")
        unsaid = position.get("kind") == "learned" and "length" not in inside(asked, *path, "position")
        if unsaid and not isinstance(position.get("length"), list):
            inside(whole, *path)["position"] = {**position, "length": longest_of(whole, path[0], context)}


def settle_head(whole: dict[str, Any], asked: dict[str, Any], task: dict[str, Any]) -> None:
    """A head that can be asked this, as wide as the data will say."""
    said, head = "head" in asked, fit_head(task, inside(whole, "head"), first_token(inside(whole, "embed")))
    if not said and head:
        whole["head"] = head
    elif not said and kind_of(whole) not in ONE_WAY and inside(whole, "head").get("kind", "vocabulary") == "vocabulary":
        whole["head"] = {"kind": "none"}  # the task says that it needs another
    if task.get("kind") in ("classify", "regress") and "out" not in inside(asked, "head"):
        whole["head"] = {name: value for name, value in inside(whole, "head").items() if name != "out"}
    if inside(whole, "head").get("kind") == "each" and "out" not in inside(asked, "head"):
        whole["head"] = {**inside(whole, "head"), "out": UNKNOWN}


def front_of(embed: dict[str, Any]) -> Any:
    """The front end that a table describes; None where the reader will say what is wrong with it."""
    try:
        return config.make(config.Transformer, {"embed": embed, "head": {"kind": "none"}}).embed
    except config.ConfigError:
        return None


def tokens(embed: dict[str, Any]) -> int | None:
    """How many tokens a front end makes, where that is always the same."""
    count = getattr(front_of(embed), "count", None)
    return count if isinstance(count, int) else None


def places(embed: dict[str, Any]) -> int | list[int] | None:
    """How many tokens a front end makes, on each axis where they stand on a grid."""
    front = front_of(embed)
    grid = front.grid if isinstance(front, config.Film) else getattr(front, "raster", None)
    return tokens(embed) if grid is None else list(grid)


def longest_of(model: dict[str, Any], side: str, context: Any) -> Any:
    """What a trunk must know places for: the tokens of a text, of what an encoder sees, or of both together; the rows
    and columns of tokens that stand on a grid.
    """
    if side == "encoder":
        return places(inside(model, "encoder", "embed")) or context
    if kind_of(model) not in ("text", "mixed"):
        return places(inside(model, "embed")) or context
    seen = tokens(inside(model, "embed", "seen")) if inside(model, "embed").get("kind") == "mixed" else None
    return context + seen if seen and isinstance(context, int) else context


def first_token(embed: dict[str, Any]) -> bool:
    """Whether a front end puts a learned token first, to stand for the whole."""
    return getattr(front_of(embed), "cls", False) is True


def fit_head(task: dict[str, Any], head: dict[str, Any], cls: bool = False) -> dict[str, Any]:
    """A head that can be asked this, where the model's own cannot; nothing where it can."""
    kind, asked = head.get("kind", "vocabulary"), task.get("kind")
    if asked == "masked":
        wanted = "both" if task.get("next_sentence") is True else "vocabulary"
        return {} if kind == wanted else {"kind": wanted}
    if asked in ("classify", "regress"):
        return {} if kind == "pooled" else {"kind": "pooled", "place": "cls" if cls else "mean"}
    return {} if asked not in ("tag", "answer") or kind == "each" else {"kind": "each"}


def two_sided(model: dict[str, Any]) -> bool:
    """Whether a model has an encoder beside its trunk, by itself or from its preset."""
    return "encoder" in model or (model.get("preset") in config.PRESETS and "encoder" in table(model["preset"]))


def inside(outer: dict[str, Any], *names: str) -> dict[str, Any]:
    """A table in a table; an empty one where there is none, or something else."""
    for name in names:
        inner = outer.get(name)
        outer = inner if isinstance(inner, dict) else {}
    return outer
