"""Pretrained initialisation: a run starts from the weights of another model (pre-train once, fine-tune many times).

    runs/bert     embed │ trunk ▓▓▓▓▓▓▓▓ │ head.lm, head.pooling
                    │         │                        │
    this run      embed │ trunk ▓▓▓▓▓▓▓▓ │ head.dense ◄┘, head.out (new)

Only weights are taken: the optimizer, schedule and data are the new run's. All but the head must match in shape; the
parts of a head that the new task shares are kept. An embedding table may have extra rows for special tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from regard import config
from regard.config.errors import name_some
from regard.config.reader import config_leaves
from regard.hub import name_table, read_folder
from regard.inference.model import Model, build_model
from regard.text.tokenizer import Tokenizer
from regard.zoo.recipe import model_from_table

WORDS = ("embed.tokens.weight", "encoder_embed.tokens.weight", "head.lm.weight", "head.lm.bias")
ANSWERS = (
    "head.pooling.out.",
    "head.token.out.",
)  # outputs are classes, whose meaning depends on the task
FREE = ("head", "precision", "init", "dropout", "kernel", "vocab")  # settings that may differ from those of the source


def read_source(path: str | Path) -> read_folder.ModelFolder:
    """The config and weights of a run, a checkpoint or a Hugging Face folder."""
    try:
        return read_folder.read_model_folder(path)
    except config.DataError as problem:
        raise config.DataError(f"train.init_from: {problem}") from None


# ---------------------------------------------------------------- settings from the source


def inherit_model(
    recipe: config.Recipe, folder: read_folder.ModelFolder, tokenizer: Tokenizer | None = None
) -> tuple[config.Recipe, Tokenizer | None]:
    """The recipe with the source's model shape where it gives none, and the source's tokenizer."""
    if isinstance(recipe.model, config.DualEncoder) or isinstance(folder.config, config.DualEncoder):
        raise config.ConfigError("train.init_from: it is not for dual encoders; leave it out")
    if leaves_model_open(recipe.model, recipe.task):
        recipe = replace(recipe, model=model_config_from(recipe.model, folder))
    if tokenizer is not None or not isinstance(folder.config.embed, config.TextEmbedding):
        return recipe, tokenizer
    text, tokenizer = tokenizer_of_folder(recipe.tokenizer, folder)
    return replace(recipe, tokenizer=text), tokenizer


def leaves_model_open(model: config.Transformer, task: config.Task) -> bool:
    """Whether a recipe sets nothing of the model but the head, the precision and dropout."""
    plain = model_from_table({}, task.kind)
    if not isinstance(model.trunk, config.Trunk) or not isinstance(plain.trunk, config.Trunk):
        return False
    trunk = replace(model.trunk, dropout=plain.trunk.dropout)
    return replace(model, trunk=trunk, head=plain.head, precision=plain.precision) == plain


def model_config_from(wanted: config.Transformer, folder: read_folder.ModelFolder) -> config.Transformer:
    """The source's model config with the requested head, and the requested dropout if any.

    An LM head without further settings is the source's own, if it has one.
    """
    theirs, head = folder.config, wanted.head
    assert isinstance(theirs, config.Transformer)  # dual encoders were refused before
    own: config.Head = theirs.head.lm if isinstance(theirs.head, config.PretrainingHead) else theirs.head
    if head == config.LMHead() and isinstance(own, config.LMHead):
        head = own
    if head == config.PoolingHead(pooling="mean") and isinstance(own, config.PoolingHead) and not theirs.embed.vocab:
        head = replace(own, out=None)  # an image head without settings
    trunk, encoder, dropout = theirs.trunk, theirs.encoder, wanted.trunk.dropout
    if dropout != config.Dropout():
        read = trunk if encoder is None else encoder.trunk
        if (
            isinstance(trunk, config.RecurrentStack)
            or isinstance(read, config.RecurrentStack)
            or isinstance(dropout, float)
        ):
            raise config.ConfigError(f"model.trunk.dropout: the weights in {folder.path} are of a recurrent stack, and "
                                     "its dropout is one number; set all of model.trunk")  # fmt: skip
        trunk = replace(trunk, dropout=dropout)
        encoder = None if encoder is None else replace(encoder, trunk=replace(read, dropout=dropout))
    return replace(theirs, trunk=trunk, encoder=encoder, head=head, precision=wanted.precision)


def tokenizer_of_folder(text: config.Tokenizer, folder: read_folder.ModelFolder) -> tuple[config.Tokenizer, Tokenizer]:
    """The tokenizer of the pretrained weights: with any other, token ids would select wrong embeddings."""
    said = Tokenizer.load(text.path) if isinstance(text, config.TokenizerFile) else None
    if folder.tokenizer_path is None:
        if said is None:
            raise config.DataError(f"{folder.path}: there is no tokenizer.json, which its vocabulary needs; name "
                                   'one: tokenizer={kind="file", path="..."}')  # fmt: skip
        return text, said
    own = Tokenizer.load(folder.tokenizer_path)
    if replace(text, specials="plain") != config.CharTokenizer() and (said is None or said.text() != own.text()):
        raise config.ConfigError(f"tokenizer: {text.kind!r}, and the weights use the tokenizer of {folder.path}; leave "
                                 f'it out, or set tokenizer={{kind="file", path="{folder.path}"}}')  # fmt: skip
    return config.TokenizerFile(path=str(folder.path), specials=text.specials), own


# ---------------------------------------------------------------- the weights


@dataclass(frozen=True)
class TransferReport:
    """Numbers of weights transferred, newly initialised and left behind, by tensor name; and the settings in which the
    model differs from its source.
    """

    path: Path
    kept: dict[str, int]
    new: dict[str, int]
    left: dict[str, int]
    otherwise: tuple[str, ...] = ()


@torch.no_grad()
def transfer_weights(model: Model, folder: read_folder.ModelFolder) -> TransferReport:
    """Copy the weights of a folder into a model; head weights that it lacks keep their initialisation."""
    other, used, same = load_twin(folder), set[int](), same_labels(model.task, folder.task)
    theirs = {head_tensor_name(name, other): tensor for name, tensor in other.state_dict(keep_vars=True).items()}
    check_shapes(model, theirs, folder.path)
    kept, new = dict[str, int](), dict[str, int]()
    for name, weight in name_table.untied_tensors(model).items():
        place = head_tensor_name(name, model)
        old = None if place.startswith(ANSWERS) and not same else theirs.get(place)
        if old is not None and can_transfer(place, weight, old):
            weight[: old.shape[0]].copy_(old) if old.dim() else weight.copy_(old)
            kept[name], used = old.numel(), used | {id(old)}
        if fresh := weight.numel() - kept.get(name, 0):
            new[name] = fresh
    left = {name: tensor.numel() for name, tensor in name_table.untied_tensors(other).items() if id(tensor) not in used}
    return TransferReport(folder.path, kept, new, left, tuple(setting_differences(model.c, other.c)))


def same_labels(mine: config.Task | None, source: config.Task | None) -> bool:
    """Whether two tasks have the same labels: the same classes, or the same kind of output."""
    both = mine is not None and source is not None and mine.kind == source.kind
    return both and getattr(mine, "classes", ()) == getattr(source, "classes", ())


def load_twin(folder: read_folder.ModelFolder) -> Model:
    """The folder's own model with its weights; the run's RNG states do not change."""
    with torch.random.fork_rng(devices=[]):
        made = build_model(folder.config)
    assert isinstance(made, Model)  # dual encoders were refused before
    read_folder.load_weights(made, folder)
    return made


def head_tensor_name(name: str, model: Model) -> str:
    """A tensor's name with its kind of head: `dense` of one kind is not that of another."""
    kind = model.c.head.kind
    return name.replace("head.", f"head.{kind}.", 1) if name.startswith("head.") and kind != "pretraining" else name


def can_transfer(place: str, weight: Tensor, old: Tensor) -> bool:
    grown = place in WORDS and weight.shape[1:] == old.shape[1:] and len(weight) > len(old)
    return weight.shape == old.shape or grown


def check_shapes(model: Model, source: dict[str, Tensor], path: Path) -> None:
    """Check that all tensors outside the heads exist on both sides with equal shapes."""
    mine = {name: weight for name, weight in name_table.untied_tensors(model).items() if not name.startswith("head.")}
    wrong = [f"{name} is {describe_shape(source.get(name))} there and {describe_shape(weight)} "
             "here" for name, weight in mine.items()
             if name not in source or not can_transfer(name, weight, source[name])]  # fmt: skip
    wrong += [f"{name} is {describe_shape(old)} there and missing here" for name, old in source.items()
              if name not in mine and not name.startswith("head.")]  # fmt: skip
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise config.DataError(f"{path}: its weights do not fit this model: {', '.join(wrong[:3])}{more}; leave out "
                               "the settings of model, except its head, to use their shape")  # fmt: skip


def describe_shape(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else str(tuple(tensor.shape))


def setting_differences(mine: config.Transformer, source: config.Transformer) -> Iterator[str]:
    """Settings that change the meaning of weights but not their shapes, which no other check would notice."""
    here, there = (dict(config_leaves(config.to_dict(each))) for each in (mine, source))
    for path, value in here.items():
        if path in there and there[path] != value and not set(path.split(".")) & set(FREE):
            yield f"model.{path} is {value!r} and was {there[path]!r}"


def describe_transfer(taken: TransferReport) -> str:
    """A line on the transferred weights, for the start of the run."""
    kept, new = sum(taken.kept.values()), sum(taken.new.values())
    said = [f"from {taken.path}: {kept:,} of {kept + new:,} weights"]
    said += [f"new: {sum_by_layer(taken.new)}"] * bool(new)
    said += [f"left there: {sum_by_layer(taken.left)}"] * bool(taken.left)
    return "; ".join([*said, *taken.otherwise[:3]])


def sum_by_layer(counts: dict[str, int]) -> str:
    """Layer names with their sizes; a weight and its bias count as one."""
    layers: dict[str, int] = {}
    for name, count in counts.items():
        layer = name.rpartition(".")[0]
        layers[layer] = layers.get(layer, 0) + count
    return name_some(sorted(f"{layer} ({count:,})" for layer, count in layers.items()))
