"""regard models: packaged trained models, packaged recipes, which are files to train, and presets, which are published
models as data."""

from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill, shorten
from typing import Annotated, Any

import typer

from regard import config, zoo
from regard.cli.output import JsonOption, print_json, print_rows
from regard.config.errors import did_you_mean
from regard.config.reader import toml_lines
from regard.zoo.packaged import packaged_card, packaged_facts, packaged_names, packaged_title
from regard.zoo.preset import preset_table

COUNT = 15  # digits and commas of the largest count


def complete_names(incomplete: str) -> list[str]:
    names = dict.fromkeys((*packaged_names(), *zoo.packaged_recipes(), *config.PRESETS))
    return [name for name in names if name.startswith(incomplete)]


def models(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Show this model, recipe or preset whole.", autocompletion=complete_names),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the trained models, recipes and presets of the package.

    A recipe is shown as it stands, a trained model by its card, and with --json by both where both have the name. A
    preset's page: the model in sentences, its paper, parameters by part, where documents rounded, its TOML.
    """
    recipes, trained = zoo.packaged_recipes(), packaged_names()
    if name is None:
        return list_all(recipes, json)
    if name in recipes or name in trained:
        return show_files(name, packaged_card(name) if name in trained else None, recipes.get(name), json)
    if name not in config.PRESETS:
        near = did_you_mean(name, [*trained, *recipes, *config.PRESETS])
        raise config.ConfigError(f"{name}: no such model{near} regard models lists what there is")
    page = PresetPage.of(name)
    return print_json(asdict(page)) if json else page.show()


def list_all(recipes: dict[str, Path], json: bool) -> None:
    """JSON output lists presets, {"name", "shape", "parameters"}; text output lists trained models and recipes too."""
    wide = get_terminal_size().columns
    if not json:
        words = {name: recipe_comment(path.read_text(encoding="utf8")) for name, path in recipes.items()}
        print_trained_models(wide)
        longest = max(map(len, words), default=0)
        print_rows([(name, truncate_line(word, wide - longest - 2)) for name, word in words.items()])
        print()
    counts = [
        (name, zoo.model_shape(c), total_parameters(c))
        for name, c in ((name, zoo.preset(name)) for name in config.PRESETS)
    ]
    if json:
        return print_json([{"name": name, "shape": shape, "parameters": count} for name, shape, count in counts])
    first, second = max(len(name) for name, _, _ in counts), max(len(shape) for _, shape, _ in counts)
    for name, shape, count in counts:
        title = truncate_line(zoo.preset_info(name).title, wide - first - second - COUNT - 6)
        print(f"{name:<{first}}  {shape:<{second}}  {count:>{COUNT},}  {title}")


def print_trained_models(wide: int) -> None:
    """Name, shape, size, title and measured figure of each, from its card."""
    facts = {name: packaged_facts(name) for name in packaged_names()}
    rows = [(name, each["shape"], each["size"], f"{packaged_title(name)}: {each['figure']}".replace("`", ""))
            for name, each in facts.items()]  # fmt: skip
    longest = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, shape, size, title in rows:
        begin = f"{name:<{longest[0]}}  {shape:<{longest[1]}}  {size:>{longest[2]}}  "
        print(begin + truncate_line(title, wide - len(begin)))
    print()


def truncate_line(text: str, wide: int) -> str:
    return shorten(text, max(wide, 20), placeholder=" ...")


def show_files(name: str, card: str | None, recipe: Path | None, json: bool) -> None:
    """A recipe, or the card of a trained model; scripts get both where there are both."""
    toml = recipe.read_text(encoding="utf8") if recipe else None
    if json:
        about = packaged_title(name) if toml is None else recipe_comment(toml)
        kind = "model" if toml is None else "recipe"
        each = {"name": name, "kind": kind, "about": about, "toml": toml, "card": card}
        return print_json({key: value for key, value in each.items() if value is not None})
    print(card if toml is None else toml, end="")


def recipe_comment(toml: str) -> str:
    """The comment at the top of a recipe."""
    found = toml.splitlines()
    top = next((n for n, line in enumerate(found) if not line.startswith("#")), len(found))
    return " ".join(line.removeprefix("#").strip() for line in found[:top])


# ---------------------------------------------------------------- one preset


@dataclass(frozen=True, kw_only=True)
class PresetPage:
    """All facts about a preset."""

    name: str
    kind: str = "preset"
    shape: str
    parameters: int
    title: str
    sentence: str
    paper: str
    source: str
    said: str | None
    rounded: str | None
    parts: dict[str, int]
    also: list[dict[str, Any]]
    toml: str

    @classmethod
    def of(cls, name: str) -> "PresetPage":
        c, told, counts = zoo.preset(name), zoo.preset_info(name), {}
        for each in told.also:
            counts[each.what] = total_parameters(zoo.preset(name, **each.change))
        return cls(
            name=name,
            shape=zoo.model_shape(c),
            parameters=total_parameters(c),
            title=told.title,
            sentence=zoo.describe_model(c),
            paper=told.paper,
            source=told.source,
            said=told.said,
            rounded=told.rounded,
            parts=parameters_by_part(c),
            also=[{"what": what, "parameters": count} for what, count in counts.items()],
            toml="\n".join(toml_lines(preset_table(name))).lstrip("\n") + "\n",
        )

    def show(self) -> None:
        wide = min(get_terminal_size().columns, 120)
        print(f"{self.name}: {self.title}", "", fill(self.sentence, wide), "", sep="\n")
        for word in ("paper", "source", "said", "rounded"):
            if value := getattr(self, word):
                print(fill(f"{word:<8}  {value}", wide, subsequent_indent=10 * " "))
        counts = [(part, count) for part, count in self.parts.items() if count] + [("total", self.parameters)]
        counts += [(each["what"], each["parameters"]) for each in self.also]
        print("\nparameters")
        print_rows([(f"  {what}", f"{count:>{COUNT},}") for what, count in counts])
        print("\nconfig\n", self.toml, sep="\n", end="")


def total_parameters(c: config.Transformer | config.DualEncoder) -> int:
    return sum(parameters_by_part(c).values())


def parameters_by_part(c: config.Transformer | config.DualEncoder) -> dict[str, int]:
    from regard import measure  # imports torch: parameters are counted on the meta device

    return measure.count_parameters(c)
