"""A run that trains adapters: the model that it begins with stays as it is, and what is new in it learns whole.

    runs/bert     embed │ trunk ▓▓▓▓▓▓▓▓ │ head
    this run      embed │ trunk ▓▓▓▓▓▓▓▓ │ head.out (new)     ▓ stays, to the bit
                              └ A, B ┘                        learn, with the head; nothing else does
"""

from dataclasses import replace

from torch import Tensor, nn

from regard import config
from regard import lora as core
from regard.hub import adapters
from regard.train.begin import Taken
from regard.train.parallel.ranks import ALONE, Ranks
from regard.train.reading import Reading
from regard.train.slots import fill


def settled(reading: Reading, model: nn.Module, taken: Taken) -> Reading:
    """The recipe with what learns whole filled in: whoever resumes the run does not see any more what was new.

    Of a run that it begins from, the checkpoint: the run may go on, and adapters are for what it was.
    """
    recipe, c, base = reading.recipe, reading.recipe.train.lora, reading.recipe.train.init_from
    if c is None or base is None:
        return reading
    base = str(taken.path) if taken.path.is_relative_to(base) else base
    whole = tuple(fresh(model, taken)) if c.whole is None else c.whole
    train = replace(recipe.train, init_from=base, lora=replace(c, whole=whole))
    return replace(reading, recipe=replace(recipe, train=train))


def fresh(model: nn.Module, taken: Taken) -> list[str]:
    """What has no weights to begin with: a head that is not as it was, and tables that have grown."""
    grown = [name for name in taken.new if not name.startswith("head.")]
    if len(grown) == len(taken.new):
        return grown
    elsewhere = {id(weight) for name, weight in model.named_parameters(remove_duplicate=False) if name[:5] != "head."}
    head = {name: weight for name, weight in model.named_parameters(remove_duplicate=False) if name[:5] == "head."}
    own = [name for name, weight in head.items() if id(weight) not in elsewhere]
    return [*grown, *(["head"] if len(own) == len(head) else own)]


def begin(model: nn.Module, c: config.LoRA | None, ranks: Ranks = ALONE) -> None:
    """Put adapters on a model, which alone learn, with what learns whole."""
    if c is None:
        return
    if ranks.sharded:
        raise config.ConfigError("train.parallel: 'fsdp' gives each process a part of every weight, and adapters "
                                 "change whole ones; choose ddp")  # fmt: skip
    try:
        core.adapt(model, c)
        adapters.gathered(model)  # what cannot be saved is told now, not after an hour
    except config.ConfigError as problem:
        raise config.ConfigError(f"train.{problem}") from None


def state(model: nn.Module) -> dict[str, Tensor]:
    """Adapters, and the weights beneath them: a model that is saved has them merged."""
    beneath = {f"{path}.weight": part.weight.detach() for path, part in core.worn(model).items()}
    return {**beneath, **{name: weight.detach() for name, weight in core.learned(model).items()}}


def kept(model: nn.Module) -> dict[str, Tensor]:
    """The same, whatever becomes of the model."""
    return {name: tensor.clone() for name, tensor in state(model).items()}


def load(model: nn.Module, held: dict[str, Tensor]) -> None:
    fill(state(model), held, "adapters")
