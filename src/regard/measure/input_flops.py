"""Front ends: what each is, in a few words, and what it multiplies until there are tokens.

Looking up a table is no product, and a Fourier transform is none that is counted. Of maps of what is given nobody asks
for the gradient of the data ("patches", "input"), and what has no weights at all ("prepared") has none in backward. A
front end of your own says its class, and every map in it counts once for every token.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from regard import config
from regard.inputs.chunks import Chunks
from regard.inputs.convolutions import Convolutions, MaskedPixels, Residual
from regard.inputs.film import Film
from regard.inputs.graph import Graph
from regard.inputs.image import Patches
from regard.inputs.mixed import Mixed
from regard.inputs.series import Series
from regard.inputs.sound import Sound
from regard.inputs.stages import Merge, Stages
from regard.inputs.text import Embed
from regard.measure.looking import Grid

Through = Callable[[Any, int, Grid], Counter[str]]  # what a trunk multiplies: (trunk, tokens, their grid)


@dataclass(frozen=True)
class Front:
    """Operations by part for one example, and what comes out: so many tokens, on a grid if they fill an image.

    `rows` are sequences that one example becomes: a series whose channels are read one by one has as many.
    """

    parts: Counter[str]
    tokens: int
    grid: Grid = None
    rows: int = 1


def maps(part: nn.Module, tokens: int) -> int:
    """Every weight matrix of a part multiplies every token once; a convolution over patches is such a matrix."""
    layers = (layer for layer in part.modules() if isinstance(layer, nn.Linear | nn.Conv2d))
    return sum(2 * layer.weight.numel() * tokens for layer in layers)


def front(embed: nn.Module, context: int, through: Through) -> Front:
    """What a front end multiplies; texts have `context` tokens, everything else as many as it says."""
    match embed:
        case Patches():
            side, grid = embed.c.side, None if embed.c.cls else (embed.c.side, embed.c.side)
            return Front(Counter({"patches": maps(embed, side * side)}), embed.c.count, grid)
        case Stages():
            return stages(embed, context, through)
        case Convolutions():
            first = maps(embed.stem, embed.c.image**2)  # of pixels nobody asks for a gradient
            found = Counter({"patches": first, "embedding": convolved(embed) - first})
            return Front(found, embed.c.count, (embed.c.side, embed.c.side))
        case MaskedPixels():
            return Front(Counter({"embedding": maps(embed, embed.pixels.count)}), embed.pixels.count)
        case Embed():
            return Front(Counter(), context)
        case Chunks():
            return chunks(embed, context, through)
        case Mixed():
            seen, text = (front(each, context, through) for each in (embed.seen, embed.text))
            return Front(seen.parts + text.parts, seen.tokens + text.tokens)
        case Series():
            rows = embed.c.channels if embed.c.mix == "independent" else 1
            name = "input" if embed.gain is None else "embedding"  # a gain is trained before the map
            return Front(Counter({name: rows * maps(embed, embed.c.count)}), embed.c.count, rows=rows)
        case Sound():
            return Front(heard(embed), embed.c.count)
        case Graph():
            return Front(Counter({"input": joined(embed, embed.c.nodes)}), embed.c.nodes)
    count = getattr(getattr(embed, "c", None), "count", None) or context
    return Front(Counter({"input": maps(embed, count)}), count)


def stages(embed: Stages, context: int, through: Through) -> Front:
    made = front(embed.patches, context, through)
    found, tokens, grid = made.parts, made.tokens, made.grid
    for trunk, merge in zip(embed.trunks, embed.merges, strict=True):
        assert grid is not None and isinstance(merge, Merge)
        found += through(trunk, tokens, grid)
        tokens, grid = tokens // 4, (grid[0] // 2, grid[1] // 2)
        found["embedding"] += maps(merge, tokens)
    return Front(found, tokens, grid)


def chunks(embed: Chunks, context: int, through: Through) -> Front:
    """Each chunk is a short text of its own."""
    many = -(-context // embed.c.size)
    inner = through(embed.trunk, embed.c.size, None)
    found = Counter({name: many * count for name, count in inner.items()})
    return Front(found + Counter({"embedding": maps(embed.map, many)}), many)


def convolved(embed: Convolutions) -> int:
    """A convolution's weights multiply every place that it makes."""
    side = embed.c.image
    found = maps(embed.stem, side * side)
    for block in embed.blocks:
        assert isinstance(block, Residual)
        side //= block.first.stride[0]
        found += maps(block, side * side)
    return found + maps(embed.map, side * side)


def heard(embed: Sound) -> Counter[str]:
    """Of a spectrogram the bands are gathered by a product too."""
    c, way = embed.c, embed.c.way
    if isinstance(way, config.Rates):
        each = zip(embed.way.maps, way.each(c.limit), strict=True)
        return Counter({"input": sum(maps(one, many) for one, many in each)})
    if isinstance(way, config.Convolved):
        windows, (first, second) = way.windows(c.limit), (2 * each.weight.numel() for each in embed.way.children())
        bands = 2 * windows * (way.window // 2 + 1) * way.mels
        return Counter({"input": first * windows, "embedding": second * c.count, "prepared": bands})
    found = Counter({"input": maps(embed, c.count)})
    if isinstance(way, config.Mel):
        found["prepared"] = 2 * way.steps(c.limit) * way.frames * (way.window // 2 + 1) * way.mels
    return found


def joined(embed: Graph, nodes: int) -> int:
    """Each hop goes over all pairs of nodes."""
    width = embed.nodes.weight.shape[0 if isinstance(embed.nodes, nn.Linear) else 1]
    return maps(embed, nodes) + 2 * embed.c.hops * nodes * nodes * width


# ---------------------------------------------------------------- in words


def words(embed: nn.Module) -> str:
    """What a front end takes and makes, in a line."""
    c: Any = getattr(embed, "c", None)
    match embed:
        case Patches():
            pixels = f"{c.size} x {c.size} x {c.channels}"
            return f"{c.side} x {c.side} patches, {pixels} -> {embed.map.weight.shape[0]}"
        case Convolutions():
            wide = ", ".join(map(str, c.widths))
            return f"{c.image} x {c.image} x {c.channels}, convolutions {wide} wide -> {c.side} x {c.side} tokens"
        case Film():
            time, rows, columns = c.grid
            block = f"{c.tube} frames of {c.size} x {c.size} x {c.channels}"
            return f"{time} x {rows} x {columns} blocks, {block} -> {embed.map.out_features}"
        case Series():
            how = "each of" if c.mix == "independent" else "all"
            return f"{c.count} patches of {c.patch} rows, {how} {c.channels} channels -> {embed.map.out_features}"
        case Sound():
            return f"{c.way.kind}, {c.seconds:g} s at {c.rate:,} Hz -> {c.count:,} tokens"
        case Graph():
            takes = f"{c.tags:,} tags" if c.tags else f"{c.features:,} features"
            told = [f"{getattr(c, name)} {name}" for name in ("waves", "walks", "degrees", "hops") if getattr(c, name)]
            return f"nodes with {', '.join([takes, *told])}"
        case Embed():
            return f"{embed.tokens.num_embeddings:,} x {embed.tokens.embedding_dim}"
    return type(embed).__name__
