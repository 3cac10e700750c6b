"""Head pruning: removes the rows of q, k, v and the columns of the output projection, and changes the config to match.

    small = prune_heads(model, {"trunk.3.attn": [0, 2], "trunk.*.cross": [1]})

The smaller model returns what the full one returns while those heads give zeros (`lens.ablation.ablate`). It is an
ordinary model: it can be saved, loaded, trained and run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.config.errors import did_you_mean, name_some
from regard.core.layers import Attention, FusedLinear
from regard.core.model import Trunk
from regard.core.positions import LearnedBias
from regard.lens.attention_maps import find_attentions, find_trunks, unwrap_model
from regard.models.lora import merged_state_dict

Kept = dict[str, list[int]]  # the heads that stay, by the address of their attention


def prune_heads(model: Any, heads: Mapping[str, Sequence[int]]) -> Any:  #: S103
    """A new model without these heads; the one given stays as it is.

    Names are addresses of attentions ("trunk.3.attn", "encoder.*.attn"). One head stays in each; heads that share keys
    and values go together; a block that layers share loses the same heads in all of them.
    """
    model = unwrap_model(model)
    kept, c = kept_heads(model, heads), model.c
    for where, trunk in find_trunks(model).items():
        c = replace_trunk(c, where.split("."), pruned_trunk(where, trunk, kept))
    with torch.random.fork_rng(devices=[]):  # initial weights are thrown away; leave the global RNG
        new = type(model)(c)
    state = pruned_weights(model, new, kept)
    new.load_state_dict(state)
    for name, weight in new.named_parameters():
        weight.data = weight.data.to(state[name])
    for name in ("tokenizer", "context"):
        if hasattr(model, name):
            setattr(new, name, getattr(model, name))
    return new.train(model.training)


# ---------------------------------------------------------------- which heads stay


def kept_heads(model: Any, heads: Mapping[str, Sequence[int]]) -> Kept:
    known, gone = find_attentions(model), dict[str, set[int]]()
    for name, some in heads.items():
        found = [where for where in known if fnmatchcase(where, name)]
        if not found:
            raise config.ConfigError(
                f"{name}: no such attention{did_you_mean(name, known)} there are {name_some(known) or 'none'}"
            )
        for where in found:
            gone.setdefault(where, set()).update(some)
    for where, lost in gone.items():
        check_prunable(where, known[where], lost)
    for where, trunk in find_trunks(model).items():
        check_trunk(where, trunk, gone)
    return {where: [head for head in range(each.heads) if head not in gone.get(where, ())]
            for where, each in known.items()}  # fmt: skip


def check_prunable(where: str, attention: Attention, gone: set[int]) -> None:
    count, size = attention.heads, attention.heads // attention.kv_heads
    if strange := [head for head in gone if type(head) is not int or not 0 <= head < count]:
        raise config.ConfigError(f"{where}: no head {strange[0]!r}; there are 0 to {count - 1}")
    if len(gone) == count:
        raise config.ConfigError(f"{where}: all {count} heads would go; leave one")
    if (
        not isinstance(attention.out, FusedLinear)
        or sum(len(fused.sizes) for fused in qkv_projections(attention).values()) < 3
    ):
        raise config.ConfigError(
            f"{where}: a map that attention.projections leaves out has no rows to lose; no head can go"
        )
    for first in range(0, count, size):
        together = set(range(first, first + size))
        if gone & together not in (set(), together):
            shared = ", ".join(map(str, sorted(together)))
            raise config.ConfigError(f"{where}: heads {shared} share keys and values; take all of them or none")


def check_trunk(where: str, trunk: Trunk, gone: Mapping[str, set[int]]) -> None:
    for side in ("attn", "cross"):
        layers = [gone.get(f"{where}.{layer}.{side}", set()) for layer in range(trunk.c.depth)]
        if trunk.c.share_layers and any(layer != layers[0] for layer in layers):
            raise config.ConfigError(f"{where}: its layers share one block; name them all at once, '{where}.*.{side}'")
        if side == "attn" and any(layers) and (kind := trunk.c.position.kind) in ("alibi", "conv_like"):
            raise config.ConfigError(f"{where}.position: {kind!r} gives each head a slope or a place by its number, "
                                     "which would change for those that stay; no head can go")  # fmt: skip


# ---------------------------------------------------------------- what the config says then


def pruned_trunk(where: str, trunk: Trunk, kept: Kept) -> config.Trunk:
    c = trunk.c
    own, across = ([kept.get(f"{where}.{layer}.{side}", []) for layer in range(c.depth)] for side in ("attn", "cross"))
    attention = pruned_attention(c.attention, own, c.dim)
    other = None if c.cross == "none" else pruned_attention(c.cross_attention or c.attention, across, c.dim)
    position = c.position
    if isinstance(position, config.T5Bias | config.RelativeBias) and any(each != own[0] for each in own):
        position = replace(position, tables="layer")  # other columns in every layer
    return replace(c, attention=attention, cross_attention=None if other == attention else other, position=position)


def pruned_attention(c: config.Attention, kept: list[list[int]], dim: int) -> config.Attention:
    before = [c.counts(layer, dim) for layer in range(len(kept))]
    if [heads for heads, _, _ in before] == [len(each) for each in kept]:
        return c
    groups = [len(each) * groups // heads for each, (heads, groups, _) in zip(kept, before, strict=True)]
    heads = single_or_tuple([len(each) for each in kept])
    return replace(
        c, heads=heads, kv_heads=None if c.kv_heads is None else single_or_tuple(groups), head_dim=before[0][2]
    )


def single_or_tuple(numbers: list[int]) -> int | tuple[int, ...]:
    """A number for all layers where they agree."""
    return numbers[0] if len(set(numbers)) == 1 else tuple(numbers)


def replace_trunk(c: Any, where: list[str], trunk: config.Trunk) -> Any:
    """The same config with another trunk at an address."""
    match where:
        case ["trunk"]:
            return replace(c, trunk=trunk)
        case ["encoder"]:
            return replace(c, encoder=replace(c.encoder, trunk=trunk))
        case ["towers", number, *rest]:
            towers = [replace_trunk(each, rest, trunk) if i == int(number) else each for i, each in enumerate(c.towers)]
            return replace(c, towers=tuple(towers))
        case ["encoder_embed", *stage]:
            return replace(c, encoder=replace(c.encoder, embed=replace_stage(c.encoder.embed, stage, trunk)))
        case ["embed", *stage]:
            return replace(c, embed=replace_stage(c.embed, stage, trunk))
    raise AssertionError(f"no trunk at {where}")


def replace_stage(c: Any, stage: list[str], trunk: config.Trunk) -> Any:
    """A front end with another trunk: its only one, or that of a stage by its number."""
    if not stage:
        return replace(c, trunk=trunk)
    number = int(stage[0])
    return replace(c, trunks=(*c.trunks[:number], trunk, *c.trunks[number + 1 :]))


# ---------------------------------------------------------------- what is left of the weights


def pruned_weights(model: nn.Module, new: nn.Module, kept: Kept) -> dict[str, Tensor]:
    """The weights of the new model; adapters become part of them."""
    names, whole = {part: name for name, part in model.named_modules()}, merged_state_dict(model)
    state = dict(whole)
    for where, attention in find_attentions(model).items():
        if len(kept[where]) < attention.heads:
            state |= pruned_attention_weights(attention, names[attention], whole, kept[where])
    for where, trunk in find_trunks(model).items():
        tables = [table.bias[:, kept[f"{where}.{layer}.attn"]]
                  for layer in range(len(find_trunks(new)[where].positions))
                  if isinstance(table := trunk.positions[layer % len(trunk.positions)], LearnedBias)]  # fmt: skip
        state |= {f"{names[trunk]}.positions.{layer}.bias": table for layer, table in enumerate(tables)}
    return state


def pruned_attention_weights(
    attention: Attention, path: str, whole: Mapping[str, Tensor], kept: list[int]
) -> dict[str, Tensor]:
    """The rows of each part, and the columns of the last map, that belong to the heads that stay."""
    size = attention.heads // attention.kv_heads
    groups = [head // size for head in kept[::size]]
    own = {"q": head_channels(kept, attention.head_dim), "k": head_channels(groups, attention.head_dim),
           "v": head_channels(groups, attention.value_head_dim)}  # fmt: skip
    out = f"{path}.out.weight"
    found = {out: whole[out][:, head_channels(kept, attention.value_head_dim)]}
    for name, fused in qkv_projections(attention).items():
        parts = fused.named_parts(whole[f"{path}.{name}.weight"])
        found[f"{path}.{name}.weight"] = torch.cat([weight[own[part]] for part, (weight, _) in parts.items()])
        if fused.biased:
            biases = [bias[own[part]] for part, (_, bias) in parts.items() if bias is not None]
            found[f"{path}.{name}.bias"] = torch.cat(biases)
    return found


def head_channels(heads: list[int], width: int) -> Tensor:
    """The places of these heads' channels among all."""
    return (torch.tensor(heads)[:, None] * width + torch.arange(width)).flatten()


def qkv_projections(attention: Attention) -> dict[str, FusedLinear]:
    """The maps to q, k and v, fused as they are."""
    return {name: part for name, part in attention.named_children() if isinstance(part, FusedLinear) and name != "out"}
