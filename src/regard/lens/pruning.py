"""Taking heads out of a model for good: the rows of q, k, v and the columns of the last map are gone, and the config
says so.

    small = prune(model, {"trunk.3.attn": [0, 2], "trunk.*.cross": [1]})

The smaller model says what the whole one says while those heads give zeros (`lens.without`). It is an ordinary model:
it can be saved, loaded, trained and asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.config.names import did_you_mean
from regard.core.layers import Attention, Fused
from regard.core.model import Trunk
from regard.core.positions import Offsets
from regard.lens.views import attentions, trunks, unwrapped
from regard.lora import merged

Kept = dict[str, list[int]]  # the heads that stay, by the address of their attention


def prune(model: Any, heads: Mapping[str, Sequence[int]]) -> Any:  #: S103
    """A new model without these heads; the one given stays as it is.

    Names are addresses of attentions ("trunk.3.attn", "encoder.*.attn"). One head stays in each; heads that share keys
    and values go together; a block that layers share loses the same heads in all of them.
    """
    model = unwrapped(model)
    kept, c = keeping(model, heads), model.c
    for where, trunk in trunks(model).items():
        c = put(c, where.split("."), slimmer(where, trunk, kept))
    with torch.random.fork_rng(devices=[]):  # the beginnings are thrown away, and nobody else's luck is used up
        new = type(model)(c)
    with merged(model):  # adapters become part of what is left
        state = remaining(model, new, kept)
        new.load_state_dict(state)
    for name, weight in new.named_parameters():
        weight.data = weight.data.to(state[name])
    for name in ("tokenizer", "context"):
        if hasattr(model, name):
            setattr(new, name, getattr(model, name))
    return new.train(model.training)


# ---------------------------------------------------------------- which heads stay


def keeping(model: Any, heads: Mapping[str, Sequence[int]]) -> Kept:
    known, gone = attentions(model), dict[str, set[int]]()
    for name, some in heads.items():
        found = [where for where in known if fnmatchcase(where, name)]
        if not found:
            raise config.ConfigError(f"{name}: no such attention{did_you_mean(name, known)} there are {few(known)}")
        for where in found:
            gone.setdefault(where, set()).update(some)
    for where, lost in gone.items():
        check(where, known[where], lost)
    for where, trunk in trunks(model).items():
        check_trunk(where, trunk, gone)
    return {where: [head for head in range(each.heads) if head not in gone.get(where, ())]
            for where, each in known.items()}  # fmt: skip


def few(names: Mapping[str, Any]) -> str:
    listed = list(names)
    return ", ".join(listed[:3] + ["..."] * (len(listed) > 4) + listed[3:][-1:])


def check(where: str, attention: Attention, gone: set[int]) -> None:
    count, size = attention.heads, attention.heads // attention.groups
    if strange := [head for head in gone if type(head) is not int or not 0 <= head < count]:
        raise config.ConfigError(f"{where}: no head {strange[0]!r}; there are 0 to {count - 1}")
    if len(gone) == count:
        raise config.ConfigError(f"{where}: all {count} heads would go; leave one")
    if not isinstance(attention.out, Fused) or sum(len(fused.sizes) for fused in maps(attention).values()) < 3:
        raise config.ConfigError(f"{where}: a map that attention.maps leaves out has no rows to lose; no head can go")
    for first in range(0, count, size):
        together = set(range(first, first + size))
        if gone & together not in (set(), together):
            shared = ", ".join(map(str, sorted(together)))
            raise config.ConfigError(f"{where}: heads {shared} share keys and values; take all of them or none")


def check_trunk(where: str, trunk: Trunk, gone: Mapping[str, set[int]]) -> None:
    for side in ("attn", "cross"):
        layers = [gone.get(f"{where}.{layer}.{side}", set()) for layer in range(trunk.c.depth)]
        if trunk.c.shared and any(layer != layers[0] for layer in layers):
            raise config.ConfigError(f"{where}: its layers share one block; name them all at once, '{where}.*.{side}'")
        if side == "attn" and any(layers) and (kind := trunk.c.position.kind) in ("alibi", "near"):
            raise config.ConfigError(f"{where}.position: {kind!r} gives each head a slope or a place by its number, "
                                     "which would change for those that stay; no head can go")  # fmt: skip


# ---------------------------------------------------------------- what the config says then


def slimmer(where: str, trunk: Trunk, kept: Kept) -> config.Trunk:
    c = trunk.c
    own, across = ([kept.get(f"{where}.{layer}.{side}", []) for layer in range(c.depth)] for side in ("attn", "cross"))
    attention = fewer(c.attention, own, c.dim)
    other = None if c.cross == "none" else fewer(c.across or c.attention, across, c.dim)
    position = c.position
    if isinstance(position, config.Buckets | config.Relative) and any(each != own[0] for each in own):
        position = replace(position, tables="layer")  # other columns in every layer
    return replace(c, attention=attention, across=None if other == attention else other, position=position)


def fewer(c: config.Attention, kept: list[list[int]], dim: int) -> config.Attention:
    before = [c.counts(layer, dim) for layer in range(len(kept))]
    if [heads for heads, _, _ in before] == [len(each) for each in kept]:
        return c
    groups = [len(each) * groups // heads for each, (heads, groups, _) in zip(kept, before, strict=True)]
    heads = one([len(each) for each in kept])
    return replace(c, heads=heads, groups=None if c.groups is None else one(groups), width=before[0][2])


def one(numbers: list[int]) -> int | tuple[int, ...]:
    """A number for all layers where they agree."""
    return numbers[0] if len(set(numbers)) == 1 else tuple(numbers)


def put(c: Any, where: list[str], trunk: config.Trunk) -> Any:
    """The same config with another trunk at an address."""
    match where:
        case ["trunk"]:
            return replace(c, trunk=trunk)
        case ["encoder"]:
            return replace(c, encoder=replace(c.encoder, trunk=trunk))
        case ["towers", number, *rest]:
            towers = [put(each, rest, trunk) if i == int(number) else each for i, each in enumerate(c.towers)]
            return replace(c, towers=tuple(towers))
        case ["encoder_embed", number]:
            return replace(c, encoder=replace(c.encoder, embed=put_stage(c.encoder.embed, int(number), trunk)))
        case ["embed", number]:
            return replace(c, embed=put_stage(c.embed, int(number), trunk))
    raise AssertionError(f"no trunk at {where}")


def put_stage(c: config.Stages, number: int, trunk: config.Trunk) -> config.Stages:
    return replace(c, trunks=(*c.trunks[:number], trunk, *c.trunks[number + 1 :]))


# ---------------------------------------------------------------- what is left of the weights


def remaining(model: nn.Module, new: nn.Module, kept: Kept) -> dict[str, Tensor]:
    """The weights of the new model."""
    names, state = {part: name for name, part in model.named_modules()}, dict(model.state_dict())
    for where, attention in attentions(model).items():
        if len(kept[where]) < attention.heads:
            state |= {f"{names[attention]}.{name}": x for name, x in left(attention, kept[where]).items()}
    for where, trunk in trunks(model).items():
        tables = [table.bias[:, kept[f"{where}.{layer}.attn"]]
                  for layer in range(len(trunks(new)[where].positions))
                  if isinstance(table := trunk.positions[layer % len(trunk.positions)], Offsets)]  # fmt: skip
        state |= {f"{names[trunk]}.positions.{layer}.bias": table for layer, table in enumerate(tables)}
    return state


def left(attention: Attention, kept: list[int]) -> dict[str, Tensor]:
    """The rows of each part, and the columns of the last map, that belong to the heads that stay."""
    size = attention.heads // attention.groups
    groups = [head // size for head in kept[::size]]
    own = {"q": channels(kept, attention.width), "k": channels(groups, attention.width),
           "v": channels(groups, attention.value_width)}  # fmt: skip
    assert isinstance(attention.out, Fused)
    found = {"out.weight": attention.out.weight[:, channels(kept, attention.value_width)]}
    for name, fused in maps(attention).items():
        parts = fused.parts()
        found[f"{name}.weight"] = torch.cat([weight[own[part]] for part, (weight, _) in parts.items()])
        if fused.biased:
            biases = [bias[own[part]] for part, (_, bias) in parts.items() if bias is not None]
            found[f"{name}.bias"] = torch.cat(biases)
    return found


def channels(heads: list[int], width: int) -> Tensor:
    """The places of these heads' channels among all."""
    return (torch.tensor(heads)[:, None] * width + torch.arange(width)).flatten()


def maps(attention: Attention) -> dict[str, Fused]:
    """The maps to q, k and v, fused as they are."""
    return {name: part for name, part in attention.named_children() if isinstance(part, Fused) and name != "out"}
