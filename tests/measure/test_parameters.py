"""Every parameter is counted once, under the part that formulas and papers put it in."""

from collections.abc import Iterator

import pytest
from core.builders import translator
from measure.small_models import SHAPES, build

import regard
from regard import config as C
from regard import measure


def trunks(c: C.Transformer | C.DualEncoder) -> Iterator[C.Trunk]:
    if isinstance(c, C.DualEncoder):
        yield from (trunk for tower in c.towers for trunk in trunks(tower))
        return
    yield c.trunk
    if c.encoder is not None:
        yield c.encoder.trunk
    if isinstance(c.embed, C.StageEmbedding):
        yield from c.embed.trunks
    if isinstance(c.embed, C.ChunkEmbedding):
        yield c.embed.trunk


def layers(trunk: C.Trunk) -> range:
    return range(1 if trunk.share_layers else trunk.depth)


def attention(c: C.Attention, layer: int, dim: int) -> int:
    """q, k and v from the width, out back to it: with as many heads as the width has room for, four squares."""
    heads, groups, width = c.counts(layer, dim)
    value = c.value_head_dim or width
    outs = {"q": heads * width, "k": groups * width, "v": groups * value, "out": dim}
    into = {"q": dim, "k": dim, "v": dim, "out": heads * value}
    return sum(outs[name] * into[name] + (name in c.bias) * outs[name] for name in c.projections)


def feed_forward(trunk: C.Trunk) -> int:
    if trunk.mlp.kind == "none":
        return 0
    hidden, ups = trunk.mlp.hidden or 4 * trunk.dim, 2 if trunk.mlp.gated else 1
    return (ups + 1) * hidden * trunk.dim + trunk.mlp.bias * (ups * hidden + trunk.dim)


@pytest.mark.spec("S143")
@pytest.mark.parametrize("name", [*C.PRESETS, *SHAPES])
def test_the_parts_of_every_model_are_those_of_the_formulas(name):
    c = SHAPES[name] if name in SHAPES else regard.preset(name)
    found, all = measure.count_parameters(c), list(trunks(c))

    assert found["attention"] == sum(attention(t.attention, i, t.dim) for t in all for i in layers(t))
    assert found["feed-forward"] == sum(feed_forward(t) for t in all for _ in layers(t))
    assert found["cross-attention"] == sum(
        attention(t.cross_attention or t.attention, i, t.dim) for t in all if t.cross != "none" for i in layers(t)
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_every_parameter_is_counted_once(shape):
    made = build(SHAPES[shape])

    assert sum(measure.count_parameters(made.c).values()) == sum(weight.numel() for weight in made.parameters())
    assert measure.count_parameters(made) == measure.count_parameters(made.c)


def test_an_embedding_and_a_head_that_share_a_table_have_it_once():
    tied, own = (C.Transformer(head=C.LMHead(tied=tied)) for tied in (True, False))

    assert measure.count_parameters(tied)["head"] == 0
    assert measure.count_parameters(own)["head"] == measure.count_parameters(tied)["embedding"] == 37_000 * 512


def test_a_translator_has_its_cross_attention_counted_apart():
    made = translator()

    assert measure.count_parameters(made)["cross-attention"] == sum(
        weight.numel() for block in made.trunk.blocks for weight in block.cross.parameters()
    )


def test_the_head_of_a_tower_and_the_scale_between_towers_are_of_the_head():
    found = measure.count_parameters(SHAPES["towers"])

    assert found["head"] == 2 * (12 * 5 + 5) + 1
