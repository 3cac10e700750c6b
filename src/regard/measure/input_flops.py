"""FLOPs of front ends, and a few words on what each one is.

An embedding lookup is no product, and a Fourier transform is none that is counted. Projections of raw data ("patches",
"input") need no gradient of their input, and what has no weights at all ("prepared") costs nothing in backward. A
custom front end goes by its class, and every linear layer in it counts once for every token.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from regard import config
from regard.inputs.audio import AudioEmbedding
from regard.inputs.cnn import ConvEmbedding, MaskedConvEmbedding, ResidualConv
from regard.inputs.graph import GraphEmbedding
from regard.inputs.image import PatchEmbedding
from regard.inputs.multimodal import MultimodalEmbedding
from regard.inputs.series import SeriesEmbedding
from regard.inputs.stages import PatchMerging, StageEmbedding
from regard.inputs.text import ChunkEmbedding, TextEmbedding
from regard.inputs.video import VideoEmbedding
from regard.measure.attention_flops import GridShape

Through = Callable[[Any, int, GridShape], Counter[str]]  # what a trunk multiplies: (trunk, tokens, their grid)


@dataclass(frozen=True)
class FrontEndCost:
    """Operations by part for one example, and what comes out: so many tokens, on a grid if they fill an image.

    `rows` are sequences that one example becomes: a series whose channels are read one by one has as many.
    """

    parts: Counter[str]
    tokens: int
    grid: GridShape = None
    rows: int = 1


def linear_flops(part: nn.Module, tokens: int) -> int:
    """Every weight matrix of a part multiplies every token once; a convolution over patches is such a matrix."""
    layers = (layer for layer in part.modules() if isinstance(layer, nn.Linear | nn.Conv2d))
    return sum(2 * layer.weight.numel() * tokens for layer in layers)


def front_end_cost(embed: nn.Module, context: int, through: Through) -> FrontEndCost:
    """What a front end multiplies; texts have `context` tokens, everything else as many as it says."""
    match embed:
        case PatchEmbedding():
            side, grid = embed.c.side, None if embed.c.cls else (embed.c.side, embed.c.side)
            return FrontEndCost(Counter({"patches": linear_flops(embed, side * side)}), embed.c.count, grid)
        case StageEmbedding():
            return stages_cost(embed, context, through)
        case ConvEmbedding():
            first = linear_flops(embed.stem, embed.c.image**2)  # pixels need no gradient
            found = Counter({"patches": first, "embedding": conv_flops(embed) - first})
            return FrontEndCost(found, embed.c.count, (embed.c.side, embed.c.side))
        case MaskedConvEmbedding():
            return FrontEndCost(Counter({"embedding": linear_flops(embed, embed.pixels.count)}), embed.pixels.count)
        case TextEmbedding():
            return FrontEndCost(Counter(), context)
        case ChunkEmbedding():
            return chunks_cost(embed, context, through)
        case MultimodalEmbedding():
            seen, text = (front_end_cost(each, context, through) for each in (embed.seen, embed.text))
            return FrontEndCost(seen.parts + text.parts, seen.tokens + text.tokens)
        case SeriesEmbedding():
            rows = embed.c.channels if embed.c.mix == "independent" else 1
            name = "input" if embed.gain is None else "embedding"  # a gain is trained before the map
            return FrontEndCost(Counter({name: rows * linear_flops(embed, embed.c.count)}), embed.c.count, rows=rows)
        case AudioEmbedding():
            return FrontEndCost(audio_flops(embed), embed.c.count)
        case GraphEmbedding():
            return FrontEndCost(Counter({"input": graph_flops(embed, embed.c.nodes)}), embed.c.nodes)
    count = getattr(getattr(embed, "c", None), "count", None) or context
    return FrontEndCost(Counter({"input": linear_flops(embed, count)}), count)


def stages_cost(embed: StageEmbedding, context: int, through: Through) -> FrontEndCost:
    made = front_end_cost(embed.patches, context, through)
    found, tokens, grid = made.parts, made.tokens, made.grid
    for trunk, merge in zip(embed.trunks, embed.merges, strict=True):
        assert grid is not None and isinstance(merge, PatchMerging)
        found += through(trunk, tokens, grid)
        tokens, grid = tokens // 4, (grid[0] // 2, grid[1] // 2)
        found["embedding"] += linear_flops(merge, tokens)
    return FrontEndCost(found, tokens, grid)


def chunks_cost(embed: ChunkEmbedding, context: int, through: Through) -> FrontEndCost:
    """Each chunk is a short text of its own."""
    many = -(-context // embed.c.size)
    inner = through(embed.trunk, embed.c.size, None)
    found = Counter({name: many * count for name, count in inner.items()})
    return FrontEndCost(found + Counter({"embedding": linear_flops(embed.map, many)}), many)


def conv_flops(embed: ConvEmbedding) -> int:
    """A convolution's weights multiply every place that it makes."""
    side = embed.c.image
    found = linear_flops(embed.stem, side * side)
    for block in embed.blocks:
        assert isinstance(block, ResidualConv)
        side //= block.first.stride[0]
        found += linear_flops(block, side * side)
    return found + linear_flops(embed.map, side * side)


def audio_flops(embed: AudioEmbedding) -> Counter[str]:
    """Of a spectrogram the bands are gathered by a product too."""
    c, way = embed.c, embed.c.way
    if isinstance(way, config.MultiRateFrames):
        each = zip(embed.way.maps, way.each(c.limit), strict=True)
        return Counter({"input": sum(linear_flops(one, many) for one, many in each)})
    if isinstance(way, config.ConvSpectrogram):
        windows, (first, second) = way.windows(c.limit), (2 * each.weight.numel() for each in embed.way.children())
        bands = 2 * windows * (way.window // 2 + 1) * way.mels
        return Counter({"input": first * windows, "embedding": second * c.count, "prepared": bands})
    found = Counter({"input": linear_flops(embed, c.count)})
    if isinstance(way, config.MelSpectrogram):
        found["prepared"] = 2 * way.steps(c.limit) * way.frames * (way.window // 2 + 1) * way.mels
    return found


def graph_flops(embed: GraphEmbedding, nodes: int) -> int:
    """Each hop goes over all pairs of nodes."""
    width = embed.nodes.weight.shape[0 if isinstance(embed.nodes, nn.Linear) else 1]
    return linear_flops(embed, nodes) + 2 * embed.c.hops * nodes * nodes * width


# ---------------------------------------------------------------- in words


def describe_input(embed: nn.Module) -> str:
    """What a front end takes and makes, in a line."""
    c: Any = getattr(embed, "c", None)
    match embed:
        case PatchEmbedding():
            pixels = f"{c.size} x {c.size} x {c.channels}"
            return f"{c.side} x {c.side} patches, {pixels} -> {embed.map.weight.shape[0]}"
        case ConvEmbedding():
            wide = ", ".join(map(str, c.widths))
            return f"{c.image} x {c.image} x {c.channels}, convolutions {wide} wide -> {c.side} x {c.side} tokens"
        case VideoEmbedding():
            time, rows, columns = c.grid
            block = f"{c.tube} frames of {c.size} x {c.size} x {c.channels}"
            return f"{time} x {rows} x {columns} blocks, {block} -> {embed.map.out_features}"
        case SeriesEmbedding():
            how = "each of" if c.mix == "independent" else "all"
            return f"{c.count} patches of {c.patch} rows, {how} {c.channels} channels -> {embed.map.out_features}"
        case AudioEmbedding():
            return f"{c.way.kind}, {c.seconds:g} s at {c.rate:,} Hz -> {c.count:,} tokens"
        case GraphEmbedding():
            takes = f"{c.tags:,} tags" if c.tags else f"{c.features:,} features"
            told = [f"{getattr(c, name)} {name}" for name in ("waves", "walks", "degrees", "hops") if getattr(c, name)]
            return f"nodes with {', '.join([takes, *told])}"
        case TextEmbedding():
            return f"{embed.tokens.num_embeddings:,} x {embed.tokens.embedding_dim}"
    return type(embed).__name__
