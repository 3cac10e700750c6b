"""What training may do to images: pixels that move stay what they are, shares add up, and pillow agrees."""

import math

import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch.testing import assert_close

from regard import config as C
from regard.data.records import Record
from regard.inputs.image_augment import (
    RAND_AUGMENT_OPS,
    affine_warp,
    augment_images,
    border_color,
    equalize,
    mixup_or_cutmix,
    random_crop,
    rotation_matrix,
    sample_beta,
)
from regard.inputs.processors import build_processor

FRONT = C.PatchEmbedding(patch_size=3, image_size=9)


def chance(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(count=5, channels=3, rows=9, columns=11):
    return torch.randint(256, (count, channels, rows, columns), dtype=torch.uint8)


def test_flipped_images_have_the_same_pixels_and_about_half_are_flipped():
    images = pictures(400, 1, 3, 5)
    out = augment_images(images, C.ImageAugment(flip=True), chance())
    turned = [torch.equal(after, before.flip(-1)) for after, before in zip(out, images, strict=True)]

    assert all(same or torch.equal(after, before) for same, after, before in zip(turned, out, images, strict=True))
    assert 160 < sum(turned) < 240


def test_a_crop_is_the_image_moved_with_black_where_it_was_not():
    images = pictures(1).clamp(min=1)
    moved = random_crop(images, torch.tensor([[0, 3]]), 2)  # two down, one to the left

    assert torch.equal(moved[0, :, 2:, :-1], images[0, :, :-2, 1:])
    assert not moved[0, :, :2].any() and not moved[0, :, :, -1].any()
    assert torch.equal(random_crop(images, torch.tensor([[2, 2]]), 2), images)


def test_crops_go_every_way_alike():
    image = torch.zeros(2000, 1, 5, 5, dtype=torch.uint8)
    image[:, :, 2, 2] = 255
    out = augment_images(image, C.ImageAugment(crop=1), chance())
    where = out.flatten(1).argmax(-1).bincount(minlength=25).view(5, 5)[1:4, 1:4]

    expected = 2000 / 9
    assert where.sum() == 2000
    assert float(((where - expected) ** 2 / expected).sum()) < 26.1  # chi-square, 8 degrees of freedom, p = 0.001


def test_a_quarter_turn_is_a_quarter_turn():
    images = pictures(2, 3, 7, 7).float()

    assert_close(affine_warp(images, rotation_matrix(torch.tensor([90.0, 0.0]))),
                 torch.stack([images[0].rot90(1, (-2, -1)), images[1]]), atol=1e-3, rtol=0)  # fmt: skip


@pytest.mark.parametrize("ground", [0, 90, 255])
def test_what_comes_in_from_outside_has_the_colour_of_the_border(ground):
    image = torch.full((1, 3, 9, 11), float(ground))
    image[..., 4, 5] = 30.0
    for change in ("slant across", "slant down", "shift across", "shift down", "turn"):
        out = RAND_AUGMENT_OPS[change](image, torch.tensor([0.9]))
        away = (out - ground).abs() > 0.01

        assert 3 <= away.sum() <= 3 * 9  # the one pixel, mixed into its neighbours, and nothing else


def test_a_border_of_many_colours_gives_their_mean():
    image = pictures(2).float()
    ring = torch.ones(9, 11, dtype=torch.bool)
    ring[1:-1, 1:-1] = False
    corners = image[..., [0, 0, -1, -1], [0, -1, 0, -1]].sum(-1)  # each stands in two sides
    want = (image[..., ring].sum(-1) + corners) / (ring.sum() + 4)

    assert_close(border_color(image)[..., 0, 0], want)


@pytest.mark.parametrize("name", sorted(RAND_AUGMENT_OPS.keys() - {"stretch", "level"}))  # which are made, or not
def test_no_change_is_made_without_strength(name):
    images = pictures().float()

    assert_close(RAND_AUGMENT_OPS[name](images, torch.zeros(5)), images, atol=1e-3, rtol=0)


def theirs(images, change):
    """What pillow makes of each image."""
    out = [change(Image.fromarray(image.movedim(0, -1).numpy())) for image in images]
    return torch.stack([torch.tensor(list(image.tobytes())).view(9, 11, 3).movedim(-1, 0) for image in out])


@pytest.mark.parametrize(("name", "amount", "change"), [
    ("brightness", 0.5, lambda image: ImageEnhance.Brightness(image).enhance(1.45)),
    ("brightness", -0.5, lambda image: ImageEnhance.Brightness(image).enhance(0.55)),
    ("colour", -0.7, lambda image: ImageEnhance.Color(image).enhance(0.37)),
    ("contrast", 0.4, lambda image: ImageEnhance.Contrast(image).enhance(1.36)),
    ("sharpness", 0.6, lambda image: ImageEnhance.Sharpness(image).enhance(1.54)),
    ("coarse", 0.75, lambda image: ImageOps.posterize(image, 5)),
    ("sunny", -0.5, lambda image: ImageOps.solarize(image, 128)),
    ("stretch", 1.0, ImageOps.autocontrast),
    ("level", 1.0, ImageOps.equalize),
])  # fmt: skip
def test_a_change_is_the_one_that_pillow_makes(name, amount, change):
    images = (pictures() * 0.6 + 20).to(torch.uint8)
    ours = RAND_AUGMENT_OPS[name](images.float(), torch.full((5,), amount))

    # pillow rounds its greys and every blend to whole numbers, and down; so two values may lie between
    assert (ours - theirs(images, change)).abs().max() <= 2


def test_an_image_of_one_grey_is_left_level():
    grey = torch.full((1, 1, 4, 4), 7.0)

    assert torch.equal(equalize(grey), grey)
    assert torch.equal(RAND_AUGMENT_OPS["stretch"](grey, torch.ones(1)), grey)


def test_every_change_is_drawn_and_bytes_stay_bytes():
    images = pictures(200, 3, 16, 16)
    out = augment_images(images, C.ImageAugment(rand_augment=2, magnitude=1.0, rotate=10, zoom=0.2), chance())

    assert out.dtype == torch.uint8 and out.shape == images.shape
    assert not torch.equal(out, images)


def test_the_same_chance_makes_the_same_images_and_no_other_chance_is_used():
    c, images = C.ImageAugment(flip=True, crop=2, rotate=9, rand_augment=2, mixup=0.3, cutmix=1.0), pictures()
    torch.manual_seed(1)
    one = mixup_or_cutmix(augment_images(images, c, chance(3)), c, chance(4))
    torch.manual_seed(2)
    two = mixup_or_cutmix(augment_images(images, c, chance(3)), c, chance(4))

    assert torch.equal(one[0], two[0]) and all(torch.equal(one[1][name], two[1][name]) for name in one[1])
    assert not torch.equal(one[0], mixup_or_cutmix(augment_images(images, c, chance(5)), c, chance(6))[0])


@pytest.mark.parametrize("seed", range(5))
def test_mixed_images_are_so_much_of_each(seed):
    images = pictures()
    out, more = mixup_or_cutmix(images, C.ImageAugment(mixup=0.8), chance(seed))
    share = more["share"][:, None, None, None]

    assert ((share >= 0) & (share <= 1)).all()
    assert sorted(more["partner"].tolist()) == list(range(5))
    assert_close(out.float(), share * images + (1 - share) * images[more["partner"]], atol=0.51, rtol=0)


@pytest.mark.parametrize("seed", range(8))
def test_a_piece_of_another_image_counts_by_its_pixels(seed):
    images = torch.arange(5, dtype=torch.uint8)[:, None, None, None].expand(5, 3, 9, 11).contiguous()
    out, more = mixup_or_cutmix(images, C.ImageAugment(cutmix=1.0), chance(seed))
    partner = more["partner"]
    foreign = (out[:, 0] == partner[:, None, None]) & (partner != torch.arange(5))[:, None, None]
    own = (out[:, 0] == torch.arange(5)[:, None, None]).float().mean((1, 2))

    assert torch.equal(foreign | (out == images)[:, 0], torch.ones_like(foreign))
    assert_close(own[partner != torch.arange(5)], more["share"][partner != torch.arange(5)])


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_shares_come_from_a_beta_distribution(alpha):
    source = chance()
    drawn = torch.tensor([sample_beta(alpha, source) for _ in range(3000)])

    spread = 1 / (4 * (2 * alpha + 1))  # the variance of Beta(a, a)
    assert abs(float(drawn.mean()) - 0.5) < 4 * math.sqrt(spread / 3000)
    assert abs(float(drawn.var()) / spread - 1) < 0.12


def test_without_chance_nothing_is_changed():
    c = C.ImageAugment(flip=True, crop=2, rotate=20, zoom=0.1, rand_augment=3, mixup=1.0, cutmix=1.0)
    images = build_processor(FRONT, c)
    records = [Record({"image": picture}, "here:1") for picture in pictures(4, 3, 9, 9)]
    examples = [images.example(record, "image") for record in records]
    plain = images.collate(examples, None)

    assert torch.equal(plain["ids"], torch.stack([record["image"] for record in records])) and plain.keys() == {"ids"}
    assert images.collate(examples, chance()).keys() == {"ids", "partner", "share"}


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="zoom: 1.5 is not from 0 up to 1"):
        C.ImageAugment(zoom=1.5)
    with pytest.raises(C.ConfigError, match="mixup and cutmix mix the labels too"):
        build_processor(C.PixelEmbedding(palette=16, grid=(4, 4), values="levels"), C.ImageAugment(mixup=0.2))
