"""Activation memory: the tensors that autograd saves between forward and backward.

They are counted on a fake model, tensor by tensor, exactly for eager mode; a compiled step saves less. Blocks repeat,
so a short model is enough: each further layer adds the same number of bytes, whatever the depth.

    saved            stem │ block 0 │ block 1 │ block 2 │ head
    checkpointed     stem │ x       │ x       │ x       │ head, and one block at a time, recomputed in backward
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.core.model import Trunk
from regard.measure.fake_model import ModelConfig, build_fake_model

ConfigPath = tuple[str | int, ...]  # field names and indices that lead to a part of a config


@dataclass(frozen=True)
class ActivationMemory:
    """Bytes saved between forward and backward: all (`kept`), or with every block recomputed in backward."""

    kept: int
    checkpointed: int


def activation_bytes(c: ModelConfig, batch: int, context: int) -> int:
    """Bytes that autograd saves for a batch; an encoder reads as many tokens as the decoder."""
    return activation_memory(c, batch, context).kept


def activation_memory(c: ModelConfig, batch: int, context: int, kernel: str | None = None) -> ActivationMemory:
    """Activation memory with and without checkpointing, on the config's kernel or on the given one."""
    if kernel is not None:
        c = map_trunks(c, lambda trunk: with_kernel(trunk, kernel))
    twice = saved_tensors(map_trunks(c, double_layers), batch, context)
    layers = [
        layer
        for path in trunk_paths(c)
        for layer in repeat_layers(twice.blocks[module_path(path)], get_at(c, path).depth)
    ]
    inside = sum(layer.kept for layer in layers)
    # the second half of each doubled trunk stands for both: shared tensors, saved by the first half, count as outside
    outside = twice.kept - 2 * sum(block.kept for blocks in twice.blocks.values() for block in second_layers(blocks))
    if any(
        get_at(c, path).cross == "layerwise" for path in trunk_paths(c)
    ):  # the encoder states for each decoder layer are counted outside
        outside = saved_tensors(c, batch, context).kept - inside
    if not layers:  # a recurrent stack
        return ActivationMemory(twice.kept, twice.kept)
    inputs, most = sum(layer.input for layer in layers), max(layer.rest for layer in layers)
    # checkpointed: the peak is at the end of forward, or at one block that is recomputed after the tail was freed
    return ActivationMemory(inside + outside, max(outside + inputs, outside - twice.tail + inputs + most))


@dataclass(frozen=True)
class LayerMemory:
    """Saved bytes of one block: all that it saves first (`kept`), its input, and its inside besides (`rest`)."""

    kept: int
    input: int
    rest: int


@dataclass(frozen=True)
class SavedTensors:
    """Saved bytes: all, those of each block by trunk, and those after the last block (`tail`), which backward frees
    first."""

    kept: int
    blocks: dict[str, list[LayerMemory]]
    tail: int


def second_layers(blocks: list[LayerMemory]) -> list[LayerMemory]:
    """The second half of a doubled trunk: its layers save only their own tensors, the first ones also shared ones."""
    return blocks[len(blocks) // 2 :]


def repeat_layers(blocks: list[LayerMemory], depth: int) -> list[LayerMemory]:
    """The layers of a trunk at its full depth, from those of the doubled one."""
    known = second_layers(blocks)
    return [known[i % len(known)] for i in range(depth)]


@lru_cache(256)
def saved_tensors(c: ModelConfig, batch: int, context: int) -> SavedTensors:
    """Trace all tensors that autograd saves in one forward pass of a fake model."""
    made, kept, spans = build_fake_model(c), list[Tensor](), list[tuple[str, int, int, Tensor]]()

    def keep(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    def record_blocks(trunk: Trunk, name: str) -> None:
        def begin(block: nn.Module, given: Any) -> None:
            spans.append((name, len(kept), 0, given[0]))

        def end(block: nn.Module, given: Any, out: Any) -> None:
            spans[-1] = (*spans[-1][:2], len(kept), spans[-1][3])

        for block in trunk.blocks:
            block.register_forward_pre_hook(begin)
            block.register_forward_hook(end)

    for name, module in made.model.named_modules():
        if isinstance(module, Trunk):
            record_blocks(module, name)
    with made.mode, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        fake_loss(made.run(batch, context))
    return sum_saved(kept, spans, {storage_id(weight) for weight in made.model.parameters()})


def sum_saved(kept: list[Tensor], spans: list[tuple[str, int, int, Tensor]], own: set[int]) -> SavedTensors:
    """Sum the saved bytes, each storage once, for the first block that saved it: views share storage, weights do not
    count."""
    first: dict[int, int] = {}
    for place, x in enumerate(kept):
        if storage_id(x) not in own:
            first.setdefault(storage_id(x), place)
    sizes = {place: kept[place].untyped_storage().nbytes() for place in first.values()}
    blocks: dict[str, list[LayerMemory]] = {}
    for name, start, end, x in spans:
        mine = sum(size for place, size in sizes.items() if start <= place < end)
        given = x.untyped_storage().nbytes()
        held = start <= first.get(storage_id(x), -1) < end
        blocks.setdefault(name, []).append(LayerMemory(mine, given, mine - given * held))
    end = spans[-1][2] if spans else 0
    return SavedTensors(sum(sizes.values()), blocks, sum(size for place, size in sizes.items() if place >= end))


def storage_id(x: Tensor) -> int:
    return int(x.untyped_storage()._cdata)


def fake_loss(out: Any) -> None:
    """A cross-entropy on logits, as in training, so that its saved tensors count."""
    logits = out[0] if isinstance(out, tuple) else out
    if logits.dim() == 3:
        F.cross_entropy(logits.flatten(0, 1).float(), torch.zeros_like(logits[..., 0], dtype=torch.long).flatten())


# ---------------------------------------------------------------- configs with other trunks


def double_layers(trunk: config.Trunk) -> config.Trunk:
    """A trunk with two of each distinct layer: one for every mask, or all layers where their heads differ."""
    own = [each for each in (trunk.attention, trunk.cross_attention) if each is not None]
    differ = any(isinstance(count, tuple) for each in own for count in (each.heads, each.kv_heads))
    period = trunk.depth if differ else len(trunk.masks)

    def twice(c: config.Attention) -> config.Attention:
        heads, groups, width = zip(*(c.counts(layer % period, trunk.dim) for layer in range(2 * period)), strict=True)
        return replace(c, heads=heads, kv_heads=groups, head_dim=width[0]) if differ else c

    return replace(
        trunk, depth=2 * period, mask=tuple(trunk.masks[layer % len(trunk.masks)] for layer in range(period)),
        attention=twice(trunk.attention),
        cross_attention=None if trunk.cross_attention is None else twice(trunk.cross_attention),
        cross="last" if trunk.cross == "layerwise" else trunk.cross,
    )  # fmt: skip


def module_path(path: ConfigPath) -> str:
    """The module name of the trunk at this path of the config."""
    steps = path[:-1] if path[-2:] == ("encoder", "trunk") else path
    joined = ".".join(map(str, steps))
    return joined.replace("encoder.embed.", "encoder_embed.")


def shorten_model(c: ModelConfig) -> ModelConfig:
    """The config with few layers of each kind; with all where the decoder attends to the encoder layer by layer."""
    layerwise = any(get_at(c, path).cross == "layerwise" for path in trunk_paths(c))
    return c if layerwise else map_trunks(c, shorten_trunk)


def shorten_trunk(trunk: config.Trunk) -> config.Trunk:
    """A trunk with one layer for each mask; with all layers where their heads differ."""
    attention = [trunk.attention] if trunk.cross_attention is None else [trunk.attention, trunk.cross_attention]
    differ = any(isinstance(count, tuple) for each in attention for count in (each.heads, each.kv_heads))
    return trunk if differ else replace(trunk, depth=min(trunk.depth, len(trunk.masks)))


def single_layer_trunk(trunk: config.Trunk, layer: int, depth: int = 1) -> config.Trunk:
    """A trunk whose layers are all like one of this trunk's."""

    def resolve_heads(c: config.Attention) -> config.Attention:
        heads, groups, width = c.counts(layer, trunk.dim)
        return replace(c, heads=heads, kv_heads=groups, head_dim=width)

    return replace(
        trunk, depth=depth, mask=trunk.masks[layer % len(trunk.masks)], attention=resolve_heads(trunk.attention),
        cross_attention=None if trunk.cross_attention is None else resolve_heads(trunk.cross_attention),
        cross="last" if trunk.cross == "layerwise" else trunk.cross,
    )  # fmt: skip


def with_kernel(trunk: config.Trunk, kernel: str) -> config.Trunk:
    across = None if trunk.cross_attention is None else replace(trunk.cross_attention, kernel=kernel)
    return replace(trunk, attention=replace(trunk.attention, kernel=kernel), cross_attention=across)


def map_trunks(c: ModelConfig, change: Callable[[config.Trunk], config.Trunk]) -> ModelConfig:
    """The config with every trunk changed."""
    for path in trunk_paths(c):
        c = set_at(c, path, change(get_at(c, path)))
    return c


def trunk_paths(part: Any, start: ConfigPath = ()) -> Iterator[ConfigPath]:
    """The paths of all trunks in a config."""
    if isinstance(part, config.Trunk):
        yield start
    elif isinstance(part, tuple):
        for place, item in enumerate(part):
            yield from trunk_paths(item, (*start, place))
    elif is_dataclass(part):
        for field in fields(part):
            yield from trunk_paths(getattr(part, field.name), (*start, field.name))


def get_at(part: Any, path: ConfigPath) -> Any:
    for step in path:
        part = part[step] if isinstance(step, int) else getattr(part, step)
    return part


def set_at(whole: Any, path: ConfigPath, part: Any) -> Any:
    """The config with another part at this path."""
    if not path:
        return part
    step, inner = path[0], set_at(get_at(whole, path[:1]), path[1:], part)
    return replace(whole, **{step: inner}) if isinstance(step, str) else (*whole[:step], inner, *whole[step + 1 :])
