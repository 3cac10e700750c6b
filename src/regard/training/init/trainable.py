"""Frozen parameters and LoRA of a run: what gets no gradient, no weight decay and no optimizer state, and what trains.

runs/bert     embed │ trunk ▓▓▓▓▓▓▓▓ │ head
this run      embed │ trunk ▓▓▓▓▓▓▓▓ │ head.out (new)     ▓ is frozen, to the bit
                          └ A, B ┘                        train, with the new head; nothing else does
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase

from torch import Tensor, nn

from regard import config
from regard.config.errors import did_you_mean
from regard.hub import peft_save
from regard.models import lora as core
from regard.training.data.read import RunData
from regard.training.init.pretrained import TransferReport
from regard.training.parallel.ranks import SINGLE_PROCESS, ProcessRanks
from regard.training.state_dict import load_state_tensors


def freeze_parameters(model: nn.Module, names: Iterable[str]) -> list[str]:
    """Freeze the named parameters; returns the names of the frozen weights.

    A name is the path of a module or a weight: `embed`, `trunk.blocks.0`, `trunk.blocks.0.attn.out.weight`; in each
    component of a path `*`, `?` and `[01]` match as in a shell: `trunk.blocks.*.attn_norm`. Weights that are
    shared are frozen wherever they are used: with a tied head, `embed` freezes the head, and `head` the embedding.
    """
    weights = dict(model.named_parameters(remove_duplicate=False))
    chosen = {id(weights[path]) for name in names for path in matching_parameters(model, name)}
    frozen = [path for path, weight in model.named_parameters() if id(weight) in chosen]
    if chosen and all(id(weight) in chosen or not weight.requires_grad for weight in weights.values()):
        raise config.ConfigError("train.freeze: these are all weights of the model, so none would be trained; leave a "
                                 "part out")  # fmt: skip
    for path in frozen:
        weights[path].requires_grad_(False)
    return frozen


def matching_parameters(model: nn.Module, name: str) -> list[str]:
    """The paths of the weights that a name matches or contains."""
    paths = [path for path, _ in model.named_parameters(remove_duplicate=False)]
    found = [path for path in paths if path_within(path.split("."), name.split("."))]
    if not found:
        parts = ", ".join(part for part, _ in model.named_children())
        raise config.ConfigError(f"train.freeze: no part {name!r} in the "
                                 f"model{did_you_mean(name, parameter_paths(paths))} "
                                 f"its parts are {parts}, and what is inside of them")  # fmt: skip
    return found


def path_within(steps: list[str], pattern: list[str]) -> bool:
    begin = steps[: len(pattern)]
    return len(begin) == len(pattern) and all(fnmatchcase(*pair) for pair in zip(begin, pattern, strict=True))


def parameter_paths(paths: Iterable[str]) -> Iterator[str]:
    """Every weight, and every module that contains one."""
    for path in paths:
        while path:
            yield path
            path = path.rpartition(".")[0]


def resolve_lora(reading: RunData, model: nn.Module, taken: TransferReport) -> RunData:
    """The recipe with `modules_to_save` filled in: a resumed run can no longer tell which modules were new.

    `init_from` becomes the checkpoint that was read: that run may continue, but adapters fit only these weights.
    """
    recipe, c, base = reading.recipe, reading.recipe.train.lora, reading.recipe.train.init_from
    if c is None or base is None:
        return reading
    base = str(taken.path) if taken.path.is_relative_to(base) else base
    whole = tuple(new_modules(model, taken)) if c.modules_to_save is None else c.modules_to_save
    train = replace(recipe.train, init_from=base, lora=replace(c, modules_to_save=whole))
    return replace(reading, recipe=replace(recipe, train=train))


def new_modules(model: nn.Module, taken: TransferReport) -> list[str]:
    """Modules without pretrained weights: a changed head, and embedding tables that have grown."""
    grown = [name for name in taken.new if not name.startswith("head.")]
    if len(grown) == len(taken.new):
        return grown
    elsewhere = {id(weight) for name, weight in model.named_parameters(remove_duplicate=False) if name[:5] != "head."}
    head = {name: weight for name, weight in model.named_parameters(remove_duplicate=False) if name[:5] == "head."}
    own = [name for name, weight in head.items() if id(weight) not in elsewhere]
    return [*grown, *(["head"] if len(own) == len(head) else own)]


def start_lora(model: nn.Module, c: config.LoRA, ranks: ProcessRanks = SINGLE_PROCESS) -> None:
    """Add LoRA adapters to a model; only these and `modules_to_save` are trained."""
    if ranks.is_sharded:
        raise config.ConfigError("train.parallel: 'fsdp' shards every weight, and adapters need whole ones; "
                                 "choose ddp")  # fmt: skip
    try:
        core.add_adapters(model, c)
        peft_save.collect_adapter(model)  # fail now rather than at the first checkpoint
    except config.ConfigError as problem:
        raise config.ConfigError(f"train.{problem}") from None


def lora_state(model: nn.Module) -> dict[str, Tensor]:
    """Adapter weights and the base weights beneath them: a saved model has them merged."""
    beneath = {f"{path}.weight": part.weight.detach() for path, part in core.adapted_modules(model).items()}
    return {**beneath, **{name: weight.detach() for name, weight in core.adapter_parameters(model).items()}}


def load_lora_state(model: nn.Module, held: dict[str, Tensor]) -> None:
    load_state_tensors(lora_state(model), held, "adapters")
