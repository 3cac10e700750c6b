"""Beginning with the weights of another model: pre-train once, fine-tune many times.

    runs/bert     embed │ trunk ▓▓▓▓▓▓▓▓ │ head.vocabulary, head.pooled
                    │         │                        │
    this run      embed │ trunk ▓▓▓▓▓▓▓▓ │ head.dense ◄┘, head.out (new)

Weights alone: the optimizer, the schedule and the data are the new run's. All but the head must fit; of a head what is
asked as before is kept. A table of words may have grown by the special tokens that a task needs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import config
from regard.generate.model import Transformer, build
from regard.hub import folder as hub
from regard.hub import names
from regard.hub.weights import few
from regard.text import Tokenizer
from regard.zoo.recipes import read_model

WORDS = ("embed.tokens.weight", "encoder_embed.tokens.weight", "head.vocabulary.weight", "head.vocabulary.bias")
ANSWERS = ("head.pooled.out.", "head.each.out.")  # what they say is a class, and means what it meant for one task alone
FREE = ("head", "precision", "init", "dropout", "kernel", "vocab")  # settings that may differ from those of the weights


def source(path: str | Path) -> hub.Folder:
    """What a run, a checkpoint or a Hugging Face folder says of itself."""
    try:
        return hub.read(path)
    except config.DataError as problem:
        raise config.DataError(f"train.init_from: {problem}") from None


# ---------------------------------------------------------------- what a recipe inherits


def inherited(
    recipe: config.Recipe, folder: hub.Folder, tokenizer: Tokenizer | None = None
) -> tuple[config.Recipe, Tokenizer | None]:
    """The recipe with the shape of the weights it begins with, where it says none; and the words that they know."""
    if isinstance(recipe.model, config.Towers) or isinstance(folder.config, config.Towers):
        raise config.ConfigError("train.init_from: it is for one model, and towers are several; leave it out")
    if unsaid(recipe.model, recipe.task):
        recipe = replace(recipe, model=model_from(recipe.model, folder))
    if tokenizer is not None or not isinstance(folder.config.embed, config.Embed):
        return recipe, tokenizer
    text, tokenizer = words_of(recipe.text, folder)
    return replace(recipe, text=text), tokenizer


def unsaid(model: config.Transformer, task: config.Task) -> bool:
    """Whether a recipe leaves everything open but the head, the precision and dropout."""
    plain = read_model({}, task.kind)
    if not isinstance(model.trunk, config.Trunk) or not isinstance(plain.trunk, config.Trunk):
        return False
    trunk = replace(model.trunk, dropout=plain.trunk.dropout)
    return replace(model, trunk=trunk, head=plain.head, precision=plain.precision) == plain


def model_from(asked: config.Transformer, folder: hub.Folder) -> config.Transformer:
    """The folder's model with the head that is asked for; with its dropout, unless another is.

    A head over words of which nothing is said is the folder's own, if it has one.
    """
    theirs, head = folder.config, asked.head
    assert isinstance(theirs, config.Transformer)  # towers were refused
    own: config.Head = theirs.head.vocabulary if isinstance(theirs.head, config.Both) else theirs.head
    if head == config.Vocabulary() and isinstance(own, config.Vocabulary):
        head = own
    if head == config.Pooled(place="mean") and isinstance(own, config.Pooled) and not theirs.embed.vocab:
        head = replace(own, out=None)  # of an image, as much is unsaid
    trunk, encoder, dropout = theirs.trunk, theirs.encoder, asked.trunk.dropout
    if dropout != config.Dropout():
        read = trunk if encoder is None else encoder.trunk
        if isinstance(trunk, config.Recurrent) or isinstance(read, config.Recurrent) or isinstance(dropout, float):
            raise config.ConfigError(f"model.trunk.dropout: the weights in {folder.path} are of a recurrent stack, and "
                                     "its dropout is one number; say model.trunk whole")  # fmt: skip
        trunk = replace(trunk, dropout=dropout)
        encoder = None if encoder is None else replace(encoder, trunk=replace(read, dropout=dropout))
    return replace(theirs, trunk=trunk, encoder=encoder, head=head, precision=asked.precision)


def words_of(text: config.Text, folder: hub.Folder) -> tuple[config.Text, Tokenizer]:
    """The tokenizer that the weights were trained with: any other would call the words by the wrong numbers."""
    said = Tokenizer.load(text.path) if isinstance(text, config.Saved) else None
    if folder.tokenizer_path is None:
        if said is None:
            raise config.DataError(f"{folder.path}: there is no tokenizer.json, and nothing else knows its words; name "
                                   'one: text={kind="file", path="..."}')  # fmt: skip
        return text, said
    own = Tokenizer.load(folder.tokenizer_path)
    if replace(text, specials="plain") != config.Characters() and (said is None or said.text() != own.text()):
        raise config.ConfigError(f"text: {text.kind!r}, and the weights know the words of {folder.path}; leave it out, "
                                 f'or say text={{kind="file", path="{folder.path}"}}')  # fmt: skip
    return config.Saved(path=str(folder.path), specials=text.specials), own


# ---------------------------------------------------------------- the weights


@dataclass(frozen=True)
class Taken:
    """How many numbers came from elsewhere, began anew, and were left there, by the name of their tensor; and the
    settings that the model has otherwise than the weights were trained with."""

    path: Path
    kept: dict[str, int]
    new: dict[str, int]
    left: dict[str, int]
    otherwise: tuple[str, ...] = ()


@torch.no_grad()
def take(model: Transformer, folder: hub.Folder) -> Taken:
    """Give a model the weights of a folder; what of its head was not there stays as it began."""
    other, used, same = twin(folder), set[int](), alike(model.task, folder.task)
    theirs = {placed(name, other): tensor for name, tensor in other.state_dict(keep_vars=True).items()}
    check(model, theirs, folder.path)
    kept, new = dict[str, int](), dict[str, int]()
    for name, weight in names.once(model).items():
        place = placed(name, model)
        old = None if place.startswith(ANSWERS) and not same else theirs.get(place)
        if old is not None and fits(place, weight, old):
            weight[: old.shape[0]].copy_(old) if old.dim() else weight.copy_(old)
            kept[name], used = old.numel(), used | {id(old)}
        if fresh := weight.numel() - kept.get(name, 0):
            new[name] = fresh
    left = {name: tensor.numel() for name, tensor in names.once(other).items() if id(tensor) not in used}
    return Taken(folder.path, kept, new, left, tuple(differences(model.c, other.c)))


def alike(mine: config.Task | None, theirs: config.Task | None) -> bool:
    """Whether an answer means the same to both: the same class, or the end of the same thing."""
    both = mine is not None and theirs is not None and mine.kind == theirs.kind
    return both and getattr(mine, "classes", ()) == getattr(theirs, "classes", ())


def twin(folder: hub.Folder) -> Transformer:
    """The folder's own model with its weights; whatever its making drew, the run's random numbers stay."""
    with torch.random.fork_rng(devices=[]):
        made = build(folder.config)
    assert isinstance(made, Transformer)  # towers were refused
    hub.fill(made, folder)
    return made


def placed(name: str, model: Transformer) -> str:
    """A tensor's name with the kind of its head: the `dense` of one kind is not that of another."""
    kind = model.c.head.kind
    return name.replace("head.", f"head.{kind}.", 1) if name.startswith("head.") and kind != "both" else name


def fits(place: str, weight: Tensor, old: Tensor) -> bool:
    grown = place in WORDS and weight.shape[1:] == old.shape[1:] and len(weight) > len(old)
    return weight.shape == old.shape or grown


def check(model: Transformer, theirs: dict[str, Tensor], path: Path) -> None:
    """All but the heads must be in both, and of one shape."""
    mine = {name: weight for name, weight in names.once(model).items() if not name.startswith("head.")}
    wrong = [f"{name} is {shape(theirs.get(name))} there and {shape(weight)} here" for name, weight in mine.items()
             if name not in theirs or not fits(name, weight, theirs[name])]  # fmt: skip
    wrong += [f"{name} is {shape(old)} there and missing here" for name, old in theirs.items()
              if name not in mine and not name.startswith("head.")]  # fmt: skip
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise config.DataError(f"{path}: its weights do not fit this model: {', '.join(wrong[:3])}{more}; leave out "
                               "what is said of model, but for its head, to have their shape")  # fmt: skip


def shape(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else str(tuple(tensor.shape))


def differences(mine: config.Transformer, theirs: config.Transformer) -> Iterator[str]:
    """Settings that change what weights mean and not their shape: nobody else would notice."""
    here, there = dict(leaves(config.tree(mine))), dict(leaves(config.tree(theirs)))
    for path, value in here.items():
        if path in there and there[path] != value and not set(path.split(".")) & set(FREE):
            yield f"model.{path} is {value!r} and was {there[path]!r}"


def leaves(table: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{name}.")
        else:
            yield path + name, value


def told(taken: Taken) -> str:
    """One line for whoever begins the run."""
    kept, new = sum(taken.kept.values()), sum(taken.new.values())
    said = [f"from {taken.path}: {kept:,} of {kept + new:,} weights"]
    said += [f"new: {summed(taken.new)}"] * bool(new)
    said += [f"left there: {summed(taken.left)}"] * bool(taken.left)
    return "; ".join([*said, *taken.otherwise[:3]])


def summed(counts: dict[str, int]) -> str:
    """Names of layers with their sizes: a weight and its bias are one."""
    layers: dict[str, int] = {}
    for name, count in counts.items():
        layer = name.rpartition(".")[0]
        layers[layer] = layers.get(layer, 0) + count
    return few([f"{layer} ({count:,})" for layer, count in layers.items()])
