"""Verbs that only look: explain a model before it runs, write the schema of a recipe."""

import json as notation
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config, zoo
from regard.cli.heads import heads as explain_heads
from regard.cli.mistakes import talk
from regard.cli.output import Json, Overrides, as_json
from regard.zoo.recipes import UNKNOWN


@dataclass(frozen=True)
class Subject:
    """What is explained: the model, all that was said (a recipe, or the model again), and the size of its batches."""

    model: config.Model
    whole: config.Recipe | config.Model
    context: int | None
    batch: int
    optimizer: config.Optimizer | None
    device: str


def explain(
    thing: Annotated[str, typer.Argument(metavar="THING", help="A recipe, a run, a checkpoint.")],
    overrides: Overrides = None,
    heads: Annotated[bool, typer.Option("--heads", help="What each head of a checkpoint does instead.")] = False,
    text: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="With --heads: a text; the run's own unless given.")
    ] = None,
    json: Json = False,
) -> None:
    """Show a model before it runs: parts, kernels, cost.

    Then which class of transformers opens it, or why none does, and the whole config with every default.
    With --heads, of a trained one: where each head looks, which other head does the same, the loss without it.
    """
    if text and not heads:
        raise config.ConfigError(f"--text {text[0]}: is what heads are read on; add --heads")
    if heads:
        if overrides:
            raise config.ConfigError(f"{overrides[0]}: the settings of a trained model are fixed; leave it out")
        return explain_heads(thing, text or [], json)
    subject = found(thing, overrides or [])
    from regard import measure

    asked: dict[str, Any] = {"batch": subject.batch, "context": subject.context, "optimizer": subject.optimizer}
    if json:
        bill = measure.estimate(subject.model, **asked)
        plans = measure.plans(subject.model, bill.context, batch=subject.batch, device=subject.device)
        return as_json({"parameters": bill.parameters, **asdict(bill), "plans": dict(plans),
                        "family": family(subject.model), "config": config.tree(subject.whole)})  # fmt: skip
    print(measure.explain(subject.model, **asked, device=subject.device), family_line(subject.model), sep="\n\n")
    print("\nconfig\n", config.text(subject.whole), sep="\n", end="")


def found(thing: str, overrides: list[str]) -> Subject:
    """A folder with a config.json is a checkpoint; everything else is, or leads to, a recipe."""
    path = Path(thing)
    if path.is_dir() and not (path / "config.toml").is_file():
        if overrides:
            raise config.ConfigError(f"{overrides[0]}: {thing} is a checkpoint, whose settings are fixed; "
                                     "explain a recipe with it, or leave it out")  # fmt: skip
        from regard.hub import folder

        read = folder.read(path)
        return Subject(read.config, read.config, read.context, 1, None, device("auto"))
    recipe = settled(zoo.read_recipe(thing, overrides))
    train, reads = recipe.train, isinstance(recipe.model.embed, config.Embed | config.Mixed)
    context = train.context if reads else None  # of what is no text the front end says how many tokens there are
    rows = 1 if recipe.task.kind == "nodes" else train.rows  # one graph is a step
    return Subject(recipe.model, recipe, context, rows, train.optimizer, device(train.device))


def device(name: str) -> str:
    from regard.generate.opening import place

    return place(name).type


def settled(recipe: config.Recipe) -> config.Recipe:
    """A recipe leaves some sizes to its data: the words of a vocabulary, the features of nodes, the columns of rows."""
    front = recipe.model.embed
    if isinstance(front, config.Graph) and not front.features + front.tags:
        return as_read(recipe, "nodes")
    if isinstance(front, config.Series) and not front.channels:
        return as_read(recipe, "forecast")
    return with_vocabulary(recipe)


def as_read(recipe: config.Recipe, kind: str) -> config.Recipe:
    """The recipe as training would find it, of the kinds of data that are one table or one graph."""
    from regard.train.reading import Voice, read

    if recipe.task.kind != kind:
        name = "features or model.embed.tags" if kind == "nodes" else "channels"
        raise config.ConfigError(f"model.embed: how wide it is, is left to the data; set model.embed.{name}")
    return read(recipe, None, Voice(talk)).recipe


def with_vocabulary(recipe: config.Recipe) -> config.Recipe:
    """The size of a vocabulary is that of its tokenizer, which may have to be trained first."""
    embed = words_of(recipe.model)
    if embed is None or embed.vocab != UNKNOWN:
        return recipe
    size = recipe.text.vocab if isinstance(recipe.text, config.Words | config.Pieces) else spelt(recipe)
    painted = recipe.task.pixels.palette if isinstance(recipe.task, config.Draw) else 0  # colours are words too
    return replace(recipe, model=sized(recipe.model, size + painted))


def spelt(recipe: config.Recipe) -> int:
    """How many characters the texts of a recipe have; a number of words is what is asked for, whatever there are."""
    from regard import data, tasks, text

    if not isinstance(recipe.task, config.NextToken):
        return len(tasks.equip(recipe.task, data.learned(recipe.data, recipe.text, tasks.spoken(recipe.task))))
    read = data.read_texts(recipe.data.sources, recipe.data)
    return len(text.train(recipe.text, (document.text for document in read)))


def words_of(model: config.Model) -> config.Embed | None:
    """The front end that reads a text, if there is one."""
    front = model.embed.text if isinstance(model.embed, config.Mixed) else model.embed
    return front if isinstance(front, config.Embed) else None


def sized(model: config.Model, size: int) -> config.Model:
    """A model whose text has so many words."""
    if isinstance(model, config.Towers):
        return replace(model, towers=tuple(worded(each, size) for each in model.towers))
    return worded(model, size)


def worded(model: config.Transformer, size: int) -> config.Transformer:
    if isinstance(model.embed, config.Mixed):
        return replace(model, embed=replace(model.embed, text=replace(model.embed.text, vocab=size)))
    return replace(model, embed=replace(model.embed, vocab=size)) if isinstance(model.embed, config.Embed) else model


def family(c: config.Model) -> dict[str, Any]:
    from regard.hub import families
    from regard.hub.families.near import nearest

    known = families.kin(c)
    return {"class": known.architecture if known else None, "reasons": {} if known else nearest(c)}


def family_line(c: config.Model) -> str:
    told = family(c)
    if told["class"]:
        return f"family\n  transformers opens it as {told['class']}"
    why = "\n".join(f"  not {name}: {reason}" for name, reason in told["reasons"].items())
    return f"family\n  transformers has no class for it\n{why}"


def schema() -> None:
    """Print the JSON schema of recipes, for editors.

    Editors with a TOML server complete and check a recipe that begins with the line "#:schema recipe.json".
    """
    from regard.cli.schema import recipe_schema

    print(notation.dumps(recipe_schema(), indent=2, ensure_ascii=False))
