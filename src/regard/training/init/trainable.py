"""Parts of a model that stay as they are: they get no gradient, no decay and no room in the optimizer."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from torch import nn

from regard import config
from regard.config.names import did_you_mean


def freeze(model: nn.Module, names: Iterable[str]) -> list[str]:
    """Stop the named parts from learning; the names of their weights.

    A name is the path of a module or a weight: `embed`, `trunk.blocks.0`, `trunk.blocks.0.attn.out.weight`; in each
    step of a path `*`, `?` and `[01]` stand for what they do in a shell: `trunk.blocks.*.attn_norm`. Weights that are
    shared are frozen wherever they are used: with a tied head, `embed` freezes the head, and `head` the embedding.
    """
    weights = dict(model.named_parameters(remove_duplicate=False))
    chosen = {id(weights[path]) for name in names for path in matches(model, name)}
    frozen = [path for path, weight in model.named_parameters() if id(weight) in chosen]
    if chosen and all(id(weight) in chosen or not weight.requires_grad for weight in weights.values()):
        raise config.ConfigError("train.freeze: that is all that the model has, so nothing would be learned; leave a "
                                 "part out")  # fmt: skip
    for path in frozen:
        weights[path].requires_grad_(False)
    return frozen


def matches(model: nn.Module, name: str) -> list[str]:
    """The paths of the weights that are, or lie inside, what a name says."""
    paths = [path for path, _ in model.named_parameters(remove_duplicate=False)]
    found = [path for path in paths if within(path.split("."), name.split("."))]
    if not found:
        parts = ", ".join(part for part, _ in model.named_children())
        raise config.ConfigError(f"train.freeze: no part {name!r} in the model{did_you_mean(name, inner(paths))} "
                                 f"its parts are {parts}, and what is inside of them")  # fmt: skip
    return found


def within(steps: list[str], asked: list[str]) -> bool:
    begin = steps[: len(asked)]
    return len(begin) == len(asked) and all(fnmatchcase(*pair) for pair in zip(begin, asked, strict=True))


def inner(paths: Iterable[str]) -> Iterator[str]:
    """Every weight and every part that holds one."""
    for path in paths:
        while path:
            yield path
            path = path.rpartition(".")[0]
