"""Model descriptions: a config in a few English sentences, without building the model.

Reads a vocabulary of 50,257. One trunk of 12 layers, 768 wide, 12 heads of 64; pre-norm (layer); causal; ...
"""

from ast import BinOp, BitAnd, Call, Name, UnaryOp, expr
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from regard import config
from regard.config.masks import parse_mask
from regard.config.trunk import PROJECTIONS

ACTIVATIONS = {
    "relu": "ReLU", "relu2": "squared ReLU", "gelu": "GELU", "gelu_tanh": "tanh GELU", "quick_gelu": "quick GELU",
    "silu": "SiLU",
}  # fmt: skip
PLACES = {
    "cls": "the first token's vector", "mean": "the mean of all vectors", "last": "the last token's vector",
    "eos": "the end-of-text token's vector",
}  # fmt: skip


def model_shape(c: config.Transformer | config.DualEncoder) -> str:
    """Encoder, decoder, encoder-decoder or dual encoder, from the masks and the cross-attention."""
    if isinstance(c, config.DualEncoder):
        return "towers"
    if c.encoder is not None:
        return "encoder-decoder"
    return "decoder" if all(is_causal(parse_mask(mask)) for mask in c.trunk.masks) else "encoder"


def is_causal(mask: expr) -> bool:
    """Whether no token attends to a later one, except in a prefix."""
    match mask:
        case Name(id=name) | Call(func=Name(id=name)):
            return name in ("causal", "prefix")
        case BinOp(left=left, op=op, right=right):
            join = any if isinstance(op, BitAnd) else all
            return join(is_causal(side) for side in (left, right))
        case UnaryOp():
            return False
    raise TypeError(f"{mask}: not part of a mask")


def describe_model(c: config.Transformer | config.DualEncoder) -> str:
    """The whole model in sentences."""
    if isinstance(c, config.DualEncoder):
        each = " ".join(
            f"Tower {place}: {lower_first(describe_model(tower))}" for place, tower in enumerate(c.towers, 1)
        )
        scale = f"a trained scale that begins at {c.initial_scale:.3g}"
        return f"{len(c.towers)} towers, their vectors compared by cosine times {scale}. {each}"
    fronts = [describe_front_end(c.embed)]
    if c.encoder is not None and c.encoder.embed is not None:
        fronts.append(f"The encoder {lower_first(describe_front_end(c.encoder.embed))}")
    return " ".join(
        f"{part}." for part in (*fronts, *describe_trunks(c), f"Head: {describe_head(c.head, c.embed.vocab)}")
    )


def lower_first(text: str) -> str:
    return text[0].lower() + text[1:]


# ---------------------------------------------------------------- front end and head


def describe_front_end(c: Any) -> str:
    if isinstance(c, config.StageEmbedding):
        return f"{describe_front_end(c.patches)}; every 2 x 2 of them merge into one after a stage"
    if isinstance(c, config.PatchEmbedding):
        more = (
            f" and {'a learned one' if c.cls_tokens == 1 else f'{c.cls_tokens} learned ones'}" if c.cls_tokens else ""
        )
        sizes = f"{c.image_size} x {c.image_size} in patches of {c.patch_size} x {c.patch_size}"
        return f"Reads images of {sizes}: {c.side**2:,} tokens{more}"
    if isinstance(c, config.PixelEmbedding):
        rows, columns = c.grid
        return f"Reads images of {rows} x {columns} pixels in {c.palette:,} colours, a token each, after a start token"
    if isinstance(c, config.MultimodalEmbedding):
        return f"{describe_front_end(c.prefix)}; after them, in one sequence, {lower_first(describe_front_end(c.text))}"
    if not isinstance(c, config.TextEmbedding):
        count = getattr(c, "count", None)
        return f"Reads inputs of kind {c.kind!r}" + (f", {count:,} at most" if count else "")
    segments = f" and {c.segments} segment{'s' * (c.segments > 1)}" if c.segments else ""
    scale = "" if c.scale == 1 else f", vectors times {c.scale:.3g}"
    return f"Reads a vocabulary of {c.vocab:,}{segments}{scale}"


def describe_head(c: config.Head, vocab: int) -> str:
    if isinstance(c, config.PretrainingHead):
        return f"{describe_head(c.lm, vocab)}; and {describe_head(c.pooling, vocab)}"
    if isinstance(c, config.LMHead):
        tied = ", tied to the embedding" if c.tied else ""
        before = " after a dense layer and a norm" if c.transform else ""
        scale = "" if c.scale == 1 else f", times {c.scale:.3g}"
        return f"logits over {c.vocab or vocab:,}{tied}{before}{', with a bias' if c.bias else ''}{scale}"
    if isinstance(c, config.PoolingHead):
        dense, out = f", a dense {c.activation} layer" if c.dense else "", f", mapped to {c.out:,}" if c.out else ""
        several = f"; the mean of {c.classifiers} first tokens, each by a map of its own" if c.classifiers > 1 else ""
        return f"{PLACES[c.pooling]}{dense}{out}{several}"
    if isinstance(c, config.TokenHead):
        dense = f", a dense {c.activation} layer" if c.dense else ""
        return f"every token's vector{dense}, mapped to {c.out:,}"
    return "none, the trunk's own vectors"


# ---------------------------------------------------------------- the trunks


def describe_trunks(c: config.Transformer) -> Iterator[str]:
    """The first trunk in full; of the others the differences from the previous one."""
    if isinstance(c.embed, config.StageEmbedding):
        named = [(f"Stage {place}", each) for place, each in enumerate((*c.embed.trunks, c.trunk), 1)]
    elif c.encoder is not None:
        named = [("An encoder", c.encoder.trunk), ("A decoder", c.trunk)]
    else:
        named = [("One trunk", c.trunk)]
    (name, first), *_ = named
    yield f"{name} of {'; '.join(trunk_clauses(first))}"
    for (_, before), (name, each) in pairwise(named):
        new = [clause for clause in trunk_clauses(each) if clause not in trunk_clauses(before)]
        yield f"{name} like it" + (f", but {'; '.join(new)}" if new else "")


def trunk_clauses(c: config.Trunk | config.RecurrentStack) -> list[str]:
    if isinstance(c, config.RecurrentStack):
        return recurrent_clauses(c)
    found = [
        describe_layers(c),
        describe_mixer(c),
        describe_norms(c),
        describe_masks(c),
        describe_positions(c.position),
        describe_mlp(c),
        describe_biases(c),
    ]
    if c.cross != "none":
        where = "to the last encoder layer" if c.cross == "last" else "to the encoder, layer by layer"
        heads = f" with {describe_heads(c.cross_attention, c.dim)}" if c.cross_attention else ""
        found.append(f"cross-attention {where}{heads}")
    return [*found, describe_dropout(c)]


def recurrent_clauses(c: config.RecurrentStack) -> list[str]:
    """Clauses about a recurrent stack."""
    wide = f" after embeddings of {c.embed_dim:,}" if c.embed_dim not in (None, c.dim) else ""
    found = [f"{c.depth} layer{'s' * (c.depth > 1)} of {c.cell}, {c.dim:,} wide{wide}",
             "causal" if c.mask == "causal" else "bidirectional"]  # fmt: skip
    if c.cell == "cnn":
        apart = f", {c.dilation} times further apart in each layer" if c.dilation > 1 else ""
        found.append(f"each of kernel size {c.kernel_size}{apart}")
    if c.cross != "none":
        found.append("the source as one vector" if c.cross == "fixed" else "attention to the source")
    return [*found, f"dropout {c.dropout:g}" if c.dropout else "no dropout"]


def describe_mixer(c: config.Trunk) -> str:
    """The mixer of a trunk."""
    match c.mixer:
        case config.DenseMixer(max_length=length):
            return f"a matrix for every pair of {length:,} positions"
        case config.ConvMixer(kernel_size=size, dilation=dilation):
            return f"convolutions over {size} token{'s' * (size > 1)}" + (f", {dilation} apart" if dilation > 1 else "")
        case config.RecurrentMixer(cell=cell):
            return f"a {cell} in the place of attention"
        case config.StateSpaceMixer(state_dim=states):
            return f"a state space of {states} numbers a channel in the place of attention"
        case config.NoMixer():
            return "no mixing between tokens"
    return describe_heads(c.attention, c.dim)


def describe_layers(c: config.Trunk) -> str:
    many = f"one layer {c.depth} times" if c.share_layers else f"{c.depth} layer{'s' * (c.depth > 1)}"
    return f"{many}, {c.dim:,} wide" + (
        f" after embeddings of {c.embed_dim:,}" if c.embed_dim not in (None, c.dim) else ""
    )


def describe_heads(c: config.Attention, dim: int) -> str:
    many = number_range(c.heads)
    groups = "" if c.kv_heads in (None, c.heads) else f", {number_range(c.kv_heads or 0)} of keys and values"
    normed = ", q and k normed" if c.qk_norm else ""
    scores = ", compared by cosine" if c.score == "cosine" else ""
    if c.scale is not None:
        scores += ", scores not scaled" if c.scale == 1 else f", scores times {c.scale:.3g}"
    width = c.head_dim or (dim // c.heads if isinstance(c.heads, int) else dim // c.heads[0])
    return f"{many} head{'s' * (many != '1')} of {width}{groups}{normed}{scores}"


def number_range(counts: int | tuple[int, ...]) -> str:
    """One number, or the range of numbers that differ by layer."""
    least, most = (min(counts), max(counts)) if isinstance(counts, tuple) else (counts, counts)
    return str(least) if least == most else f"{least} to {most}"


def describe_norms(c: config.Trunk) -> str:
    final = c.final_norm if c.final_norm is not None else c.norm_placement == "pre"
    more = [word for word, there in (("after the embedding", c.embed_norm), ("at the end", final)) if there]
    return f"{c.norm_placement}-norm ({c.norm.kind}{''.join(f', also {word}' for word in more)})"


def describe_masks(c: config.Trunk) -> str:
    words = ["every token attends to every token" if mask == "full" else mask for mask in c.masks]
    return f"in turn {' and '.join(words)}" if len(words) > 1 else words[0]


def describe_positions(c: config.Position) -> str:
    match c:
        case config.NoPosition():
            return "no positions"
        case config.LearnedPosition(length=length) | config.OneHotPosition(length=length):
            places = length if isinstance(length, tuple) else (length,)
            return f"{c.kind} positions ({' x '.join(f'{each:,}' for each in places)})"
        case config.SinusoidalPosition():
            return "sinusoidal positions" + (f" on {c.axes} axes" if c.axes > 1 else "")
        case config.RotaryPosition():
            base = f" of base {c.base:,.0f}" if c.base != 10_000 else ""
            return f"rotary positions{base}" + (f", {c.scaling} scaling" if c.scaling != "none" else "")
        case config.AlibiPosition():
            return "ALiBi, a slope on the distance for each head"
        case config.T5Bias():
            return f"{c.num_buckets} buckets of distance" + (", bidirectional" if c.bidirectional else ", causal")
        case config.ShawPosition():
            return f"a vector for each distance up to {c.max_distance}"
        case config.GraphDistanceBias():
            return f"a number for each length of the shortest path up to {c.max_distance}"
        case config.ConvLikePosition():
            return f"rows and columns ({c.grid[0]:,} x {c.grid[1]:,}), and a neighbour that each head attends to"
    return f"a number for each offset up to {c.max_distance}" + (f" on {c.axes} axes" if c.axes > 1 else "")


def describe_mlp(c: config.Trunk) -> str:
    if c.mlp.kind == "none":
        return "no feed-forward"
    gated = "gated " if c.mlp.gated else ""
    return f"{gated}{ACTIVATIONS[c.mlp.activation]}, {c.mlp.hidden or 4 * c.dim:,} wide"


def describe_biases(c: config.Trunk) -> str:
    has_mlp_bias = c.mlp.bias and c.mlp.kind != "none"
    there = [name for name in PROJECTIONS if name in c.attention.bias] + ["the feed-forward"] * has_mlp_bias
    if len(there) == len(PROJECTIONS) + (c.mlp.kind != "none"):
        return "biases everywhere"
    return f"biases on {', '.join(there)}" if there else "no biases"


def describe_dropout(c: config.Trunk) -> str:
    rates = sorted({c.dropout.embed, c.dropout.attention, c.dropout.mlp, c.dropout.residual} - {0.0})
    return f"dropout {' and '.join(f'{rate:g}' for rate in rates)}" if rates else "no dropout"
