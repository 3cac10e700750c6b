"""regard explain and regard schema: a model explained before it runs, and the JSON schema of a recipe."""

import json as notation
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config, zoo
from regard.cli.errors import print_stderr
from regard.cli.explain_heads import explain_heads as explain_heads
from regard.cli.output import JsonOption, OverridesArgument, print_json
from regard.zoo.recipe import UNKNOWN_VOCAB


@dataclass(frozen=True)
class ExplainSubject:
    """What to explain: the model, its settings (a recipe, or the model again), and the batch size."""

    model: config.Model
    whole: config.Recipe | config.Model
    context: int | None
    batch: int
    optimizer: config.Optimizer | None
    device: str


def explain(
    thing: Annotated[str, typer.Argument(metavar="THING", help="A recipe, a run, a checkpoint.")],
    overrides: OverridesArgument = None,
    heads: Annotated[bool, typer.Option("--heads", help="What each head of a checkpoint does instead.")] = False,
    text: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="With --heads: a text; the run's own unless given.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show a model before it runs: parts, kernels, cost.

    Then the class of transformers that opens it, or why none does, and the whole config with every default.
    With --heads, of a trained model: what each head attends to, the head most like it, the loss without it.
    """
    if text and not heads:
        raise config.ConfigError(f"--text {text[0]}: is the text for --heads; add --heads")
    if heads:
        if overrides:
            raise config.ConfigError(f"{overrides[0]}: the settings of a trained model are fixed; leave it out")
        return explain_heads(thing, text or [], json)
    subject = find_subject(thing, overrides or [])
    from regard import measure

    asked: dict[str, Any] = {"batch": subject.batch, "context": subject.context, "optimizer": subject.optimizer}
    if json:
        bill = measure.estimate_model(subject.model, **asked)
        plans = measure.kernel_plans(subject.model, bill.context, batch=subject.batch, device=subject.device)
        return print_json({"parameters": bill.parameters, **asdict(bill), "plans": dict(plans),
                        "family": family_facts(subject.model), "config": config.to_dict(subject.whole)})  # fmt: skip
    print(measure.explain_model(subject.model, **asked, device=subject.device), family_line(subject.model), sep="\n\n")
    print("\nconfig\n", config.to_toml(subject.whole), sep="\n", end="")


def find_subject(thing: str, overrides: list[str]) -> ExplainSubject:
    """Find a checkpoint (a folder with a config.json), or a recipe."""
    path = Path(thing)
    if path.is_dir() and not (path / "config.toml").is_file():
        if overrides:
            raise config.ConfigError(f"{overrides[0]}: {thing} is a checkpoint, whose settings are fixed; "
                                     "explain a recipe with it, or leave it out")  # fmt: skip
        from regard.hub import read_folder

        read = read_folder.read_model_folder(path)
        return ExplainSubject(read.config, read.config, read.context, 1, None, device_name("auto"))
    recipe = resolve_recipe(zoo.read_recipe(thing, overrides))
    train, reads = recipe.train, isinstance(recipe.model.embed, config.TextEmbedding | config.MultimodalEmbedding)
    context = train.context if reads else None  # other front ends determine the number of tokens
    rows = 1 if recipe.task.kind == "node_classification" else train.rows  # one graph is a step
    return ExplainSubject(recipe.model, recipe, context, rows, train.optimizer, device_name(train.device))


def device_name(name: str) -> str:
    from regard.inference.load import resolve_device

    return resolve_device(name).type


def resolve_recipe(recipe: config.Recipe) -> config.Recipe:
    """The recipe with sizes that the data determine: vocabulary, node features, columns."""
    front = recipe.model.embed
    if isinstance(front, config.GraphEmbedding) and not front.features + front.num_tags:
        return read_recipe_sizes(recipe, "node_classification")
    if isinstance(front, config.SeriesEmbedding) and not front.channels:
        return read_recipe_sizes(recipe, "forecasting")
    return resolve_vocabulary(recipe)


def read_recipe_sizes(recipe: config.Recipe, kind: str) -> config.Recipe:
    """Sizes from the data itself, for tables and graphs."""
    from regard.training.data.read import Reporter, read_run_data

    if recipe.task.kind != kind:
        name = "features or model.embed.num_tags" if kind == "node_classification" else "channels"
        raise config.ConfigError(f"model.embed: how wide it is, is left to the data; set model.embed.{name}")
    return read_run_data(recipe, None, Reporter(print_stderr)).recipe


def resolve_vocabulary(recipe: config.Recipe) -> config.Recipe:
    """The vocabulary size of the tokenizer, which may have to be trained first."""
    embed = text_embedding(recipe.model)
    if embed is None or embed.vocab != UNKNOWN_VOCAB:
        return recipe
    size = (
        recipe.tokenizer.vocab
        if isinstance(recipe.tokenizer, config.WordTokenizer | config.SubwordTokenizer)
        else count_characters(recipe)
    )
    painted = recipe.task.pixels.palette if isinstance(recipe.task, config.TextToImage) else 0  # colours are ids too
    return replace(recipe, model=with_vocab_size(recipe.model, size + painted))


def count_characters(recipe: config.Recipe) -> int:
    """The number of distinct characters in a recipe's texts, the vocabulary of a character tokenizer."""
    from regard import data, tasks, text

    if not isinstance(recipe.task, config.NextToken):
        return len(
            tasks.add_task_tokens(
                recipe.task, data.tokenizer_from_records(recipe.data, recipe.tokenizer, tasks.text_columns(recipe.task))
            )
        )
    read = data.read_texts(recipe.data.sources, recipe.data)
    return len(text.train_tokenizer(recipe.tokenizer, (document.text for document in read)))


def text_embedding(model: config.Model) -> config.TextEmbedding | None:
    """The text front end, if there is one."""
    front = model.embed.text if isinstance(model.embed, config.MultimodalEmbedding) else model.embed
    return front if isinstance(front, config.TextEmbedding) else None


def with_vocab_size(model: config.Model, size: int) -> config.Model:
    """The model with this vocabulary size."""
    if isinstance(model, config.DualEncoder):
        return replace(model, towers=tuple(with_text_vocab(each, size) for each in model.towers))
    return with_text_vocab(model, size)


def with_text_vocab(model: config.Transformer, size: int) -> config.Transformer:
    if isinstance(model.embed, config.MultimodalEmbedding):
        return replace(model, embed=replace(model.embed, text=replace(model.embed.text, vocab=size)))
    return (
        replace(model, embed=replace(model.embed, vocab=size))
        if isinstance(model.embed, config.TextEmbedding)
        else model
    )


def family_facts(c: config.Model) -> dict[str, Any]:
    from regard.hub import families
    from regard.hub.families.registry import nearest_families

    known = families.match_family(c)
    return {"class": known.architecture if known else None, "reasons": {} if known else nearest_families(c)}


def family_line(c: config.Model) -> str:
    told = family_facts(c)
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
