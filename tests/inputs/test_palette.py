"""Palettes: there and back again, colours as near as scikit-learn finds them, and nothing drawn but from the seed."""

import pytest
import torch
from torch.testing import assert_close

from regard import config as C
from regard.config.errors import ConfigError, DataError
from regard.inputs import palette
from regard.inputs.palette import count_colors, kmeans, learn_palette, nearest_color


def chance(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("count", [2, 16, 17, 255, 256])
def test_levels_come_back_as_themselves(count):
    c = C.PixelEmbedding(palette=count, grid=(1, count), channels=1, values="levels")
    levels = torch.arange(count)[None]

    assert torch.equal(palette.quantize_colors(palette.colors_of_ids(levels, c), c)[:, 0], levels)
    assert int(palette.colors_of_ids(levels, c).max()) == 255


def test_every_byte_is_its_own_level_and_the_nearest_one_is_taken():
    values = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    c = C.PixelEmbedding(palette=256, grid=(16, 16), channels=1, values="levels")
    assert torch.equal(palette.quantize_colors(values, c), values[:, 0].long())

    few = C.PixelEmbedding(palette=4, grid=(16, 16), channels=1, values="levels")
    away = (values.long()[:, 0] - palette.colors_of_ids(palette.quantize_colors(values, few), few)[:, 0].long()).abs()
    assert int(away.max()) <= 43  # half of 255 / 3


def test_levels_of_three_channels_are_three_tokens_a_pixel():
    c = C.PixelEmbedding(palette=256, grid=(3, 5), values="levels")
    images = torch.randint(256, (2, 3, 3, 5), dtype=torch.uint8)

    assert palette.quantize_colors(images, c).shape == (2, 3, 5, 3) and c.count == 45
    assert torch.equal(palette.colors_of_ids(palette.quantize_colors(images, c).flatten(1), c), images)


def test_images_in_the_colours_of_a_palette_come_back_as_they_were():
    c = C.PixelEmbedding(palette=4, grid=(3, 5), colors=("000000", "ff0000", "00ff80", "FFFFFF"))
    ids = torch.randint(4, (2, 3, 5))

    assert torch.equal(palette.quantize_colors(palette.colors_of_ids(ids, c), c), ids)


def test_the_nearest_colour_is_the_nearest_of_all():
    points, colours = torch.randint(256, (500, 3)), torch.randint(256, (31, 3)).float()
    away = torch.cdist(points.double(), colours.double())

    assert_close(away.gather(1, nearest_color(points, colours)[:, None])[:, 0], away.amin(-1))


@pytest.mark.spec("S060")
def test_learned_colours_are_about_as_near_as_those_of_scikit_learn():
    from sklearn.cluster import KMeans

    centres = torch.randint(256, (9, 3)).float()
    points = (centres.repeat(70, 1) + 12 * torch.randn(630, 3)).clamp(0, 255).round()
    theirs = KMeans(23, n_init=3, random_state=0).fit(points.numpy()).inertia_
    found = kmeans(points, torch.ones(630), 23, chance())
    ours = float((points - found[nearest_color(points, found)]).square().sum())

    assert ours < 1.15 * theirs


def test_colours_are_learned_alike_from_the_same_seed_and_sorted_from_dark_to_bright():
    images = [torch.randint(256, (3, 8, 9), dtype=torch.uint8) for _ in range(7)]
    one = learn_palette(images, 16, chance(1))

    assert one == learn_palette(images, 16, chance(1)) != learn_palette(images, 16, chance(2))
    assert len(set(one)) == 16 and [sum(bytes.fromhex(each)) for each in one] == sorted(
        sum(bytes.fromhex(each)) for each in one)  # fmt: skip
    C.PixelEmbedding(palette=16, colors=one)


def test_as_many_colours_as_there_are_are_those_themselves():
    images = [torch.tensor([[[0, 0, 255]], [[0, 7, 255]], [[1, 0, 255]]], dtype=torch.uint8)]
    colours, often = count_colors(images * 3, chance())

    assert often.tolist() == [3, 3, 3] and len(colours) == 3
    assert set(learn_palette(images, 3, chance())) == {"000001", "000700", "ffffff"}
    with pytest.raises(DataError, match="the training images have 3 colours, and model.embed.palette is 5"):
        learn_palette(images, 5, chance())


def test_colours_that_are_none_are_refused_by_their_setting():
    with pytest.raises(ValueError, match="colors: 'ff00' is not 3 bytes in hexadecimal, such as 'ff8000'"):
        C.PixelEmbedding(palette=1, colors=("ff00",))
    with pytest.raises(ValueError, match="colors: 1 are given, and the palette has 512"):
        C.PixelEmbedding(colors=("000000",))
    with pytest.raises(ValueError, match="palette: 300 levels; there are 2 to 256"):
        C.PixelEmbedding(palette=300, values="levels")
    with pytest.raises(ConfigError, match="the 512 colours are not set"):
        palette.quantize_colors(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), C.PixelEmbedding())
