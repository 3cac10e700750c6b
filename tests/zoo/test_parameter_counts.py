"""The models that lectures name by their numbers, part by part."""

import pytest
import torch
from torch import nn

from regard import config, measure, zoo
from regard.measure.fake_model import meta_model


def total(c):
    return sum(measure.count_parameters(c).values())


def numbers(module):
    return sum(weight.numel() for weight in module.parameters())


@pytest.mark.spec("S050")
def test_the_first_transformer_is_two_stacks_and_one_table_of_words():
    c = zoo.preset("transformer-base")
    made = meta_model(c)

    assert numbers(made.encoder) == 18_914_304 and numbers(made.trunk) == 25_224_192
    assert numbers(made.embed) == 37_000 * 512 == 18_944_000 and made.head.weight is made.embed.tokens.weight
    assert (c.trunk.depth, c.encoder.trunk.depth, c.trunk.heads[0], c.trunk.mlp.hidden) == (6, 6, 8, 2048)
    assert c.trunk.dropout == config.Dropout(embed=0.1, residual=0.1) and total(c) == 63_082_496


@pytest.mark.spec("S050", "S051")
@pytest.mark.parametrize("name", ["transformer-base", "transformer-big"])
def test_the_first_transformers_are_torchs_own_with_one_table_and_no_last_norms(name):
    c = zoo.preset(name)
    with torch.device("meta"):
        theirs = nn.Transformer(c.trunk.dim, c.trunk.heads[0], 6, 6, c.trunk.mlp.hidden, batch_first=True)

    assert total(c) == numbers(theirs.encoder.layers) + numbers(theirs.decoder.layers) + 37_000 * c.trunk.dim


@pytest.mark.spec("S051")
def test_the_big_transformer_is_twice_as_wide_and_drops_more():
    c = zoo.preset("transformer-big")

    assert total(c) == 214_245_376
    for trunk in (c.trunk, c.encoder.trunk):
        assert (trunk.dim, trunk.depth, trunk.heads[0], trunk.mlp.hidden) == (1024, 6, 16, 4096)
        assert trunk.dropout == config.Dropout(embed=0.3, residual=0.3)


@pytest.mark.spec("S052", "S053")
@pytest.mark.parametrize("name, alone, trained", [
    ("bert-base", 109_482_240, 110_106_428), ("bert-large", 335_141_888, 336_226_108),
])  # fmt: skip
def test_bert_is_counted_without_and_with_the_heads_it_was_trained_with(name, alone, trained):
    both, *_ = zoo.preset_info(name).also

    assert (total(zoo.preset(name)), total(zoo.preset(name, **both.change))) == (alone, trained)


@pytest.mark.spec("S053")
def test_bert_large_with_the_papers_thirty_thousand_words():
    c = zoo.preset("bert-large", vocab=30_000)
    trunk = c.trunk

    assert (trunk.depth, trunk.dim, trunk.heads[0], trunk.head_width, trunk.mlp.hidden) == (24, 1024, 16, 64, 4096)
    assert trunk.position.length == 512 and total(c) == 334_607_360


@pytest.mark.spec("S055")
def test_the_four_sizes_of_gpt2():
    names = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")

    assert [total(zoo.preset(name)) for name in names] == [124_439_808, 354_823_168, 774_030_080, 1_557_611_200]


def test_gpt3_stands_on_the_table_without_its_memory():
    c = zoo.preset("gpt3-175b")
    made = meta_model(c)

    assert (c.trunk.dim, c.trunk.depth, c.trunk.heads[0], c.trunk.position.length) == (12_288, 96, 96, 2048)
    assert made.trunk.blocks[0].mlp.up.weight.shape == (49_152, 12_288)
    assert all(weight.is_meta for weight in made.parameters()) and numbers(made) == 174_604_259_328


@pytest.mark.spec("S058")
@pytest.mark.parametrize("name, dim, depth, heads, side, count", [
    ("vit-b16", 768, 12, 12, 14, 86_567_656), ("vit-l16", 1024, 24, 16, 14, 304_326_632),
    ("vit-h14", 1280, 32, 16, 16, 632_045_800),
])  # fmt: skip
def test_a_vision_transformer_reads_a_grid_of_patches_and_one_more_token(name, dim, depth, heads, side, count):
    c = zoo.preset(name)

    assert (c.trunk.dim, c.trunk.depth, c.trunk.heads[0], c.embed.side) == (dim, depth, heads, side)
    assert c.embed.count == c.trunk.position.length == side * side + 1
    assert total(c) == count


def test_the_sizes_of_imagegpt_are_said_without_the_map_to_the_colours():
    found = [measure.count_parameters(zoo.preset(f"imagegpt-{size}")) for size in ("small", "medium", "large")]

    assert [f"{(sum(each.values()) - each['head']) / 1e6:,.1f}" for each in found] == ["76.4", "455.0", "1,362.1"]


def test_swin_halves_its_grid_three_times_and_doubles_its_width():
    c = zoo.preset("swin-tiny")
    sides = [c.embed.patches.side // 2**stage for stage in range(4)]

    assert [side * side for side in sides] == [3136, 784, 196, 49] and c.embed.count == 49
    assert [trunk.dim for trunk in (*c.embed.trunks, c.trunk)] == [96, 192, 384, 768]
