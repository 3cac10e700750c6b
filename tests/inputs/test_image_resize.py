"""Images of another size: what is cut off, what is stretched, what the middle shows; and several learned tokens."""

import pytest
import torch

import regard.config as C
from regard.core.model import Transformer
from regard.inputs import palette
from regard.inputs.image_processor import resize_image
from regard.inputs.processors import build_processor


def stripes():
    """Black, white in the middle third, black: 9 columns, 3 rows."""
    image = torch.zeros(1, 3, 9, dtype=torch.uint8)
    image[..., 3:6] = 255
    return image


def test_crop_shows_the_middle_and_stretch_shows_all():
    stretched = resize_image(stripes(), 3, 3, C.ImageResize(mode="stretch"))[0, 0].tolist()

    assert resize_image(stripes(), 3, 3).unique().tolist() == [255]
    assert stretched[1] > 150 > 60 > stretched[0] == stretched[2]


def test_of_a_larger_whole_the_middle_is_seen():
    image = torch.randint(256, (3, 12, 12), dtype=torch.uint8)

    assert torch.equal(
        resize_image(image, 8, 8, C.ImageResize(mode="stretch", size_before_crop=12)), image[:, 2:10, 2:10]
    )


@pytest.mark.parametrize("mode", ["stretch", "shortest_edge"])
@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
@pytest.mark.parametrize("shape", [(1, 60_000), (60_000, 1), (1, 1), (3, 2), (50, 31)])
def test_whatever_the_shape_what_is_seen_is_as_large_as_asked(shape, resample, mode):
    image = torch.full((3, *shape), 77, dtype=torch.uint8)
    seen = resize_image(image, 8, 8, C.ImageResize(mode=mode, size_before_crop=11, resample=resample))

    assert seen.shape == (3, 8, 8) and seen.dtype == torch.uint8 and set(seen.flatten().tolist()) == {77}


def test_the_middle_of_a_long_strip_is_that_of_a_shorter_one():
    image = torch.randint(256, (1, 20, 400), dtype=torch.uint8)
    frame = C.ImageResize(mode="shortest_edge")

    assert torch.equal(resize_image(image, 10, 10, frame), resize_image(image[..., 100:300], 10, 10, frame))


@pytest.mark.parametrize("said, word", [
    (dict(resize=C.ImageResize(mode="stretch", size_before_crop=200)), "resize.size_before_crop: 200"),
    (dict(cls_tokens=-1), "cls_tokens: -1"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused(said, word):
    with pytest.raises(ValueError, match=word):
        C.PatchEmbedding(**said)
    with pytest.raises(ValueError, match="size_before_crop: with mode 'crop' an image is cut"):
        C.ImageResize(size_before_crop=9)
    with pytest.raises(ValueError, match="resize.mode"):
        C.PixelEmbedding(grid=(3, 4), resize=C.ImageResize(mode="shortest_edge"))


def test_examples_depend_on_the_frame_and_those_of_before_stay():
    about = build_processor(C.PatchEmbedding()).about

    assert "frame" not in about
    assert build_processor(C.PatchEmbedding(resize=C.ImageResize(mode="stretch"))).about == about | {"frame": {
        "mode": "stretch", "size_before_crop": "none", "resample": "bilinear"}}  # fmt: skip


# ---------------------------------------------------------------- learned tokens


@pytest.mark.parametrize("cls, count", [(False, 9), (0, 9), (True, 10), (1, 10), (2, 11), (4, 13)])
def test_so_many_learned_tokens_stand_before_the_patches(cls, count):
    front = C.PatchEmbedding(patch_size=4, image_size=12, cls_tokens=cls)
    place = "cls" if cls else "mean"
    trunk = C.Trunk(dim=12, depth=1, position=C.LearnedPosition(length=13), attention=C.Attention(heads=3))
    model = Transformer(C.Transformer(embed=front, trunk=trunk, head=C.PoolingHead(pooling=place, out=5)))
    tokens = model.embed(torch.randn(2, 3, 12, 12))

    assert front.count == count == tokens.x.shape[1]
    assert torch.equal(tokens.x[0, : int(cls)], tokens.x[1, : int(cls)])
    assert len(tokens.x[0, : int(cls)].unique(dim=0)) == int(cls)
    assert config_again(front) == front


def config_again(front):
    return C.from_dict(C.PatchEmbedding, C.to_dict(front))


def test_one_learned_token_is_said_in_one_way():
    assert (
        C.PatchEmbedding(cls_tokens=1) == C.PatchEmbedding(cls_tokens=True)
        and C.PatchEmbedding(cls_tokens=1).cls_tokens is True
    )
    assert C.PatchEmbedding(cls_tokens=0).cls_tokens is False and C.PatchEmbedding(cls_tokens=0).raster == (14, 14)


def test_several_classifiers_are_the_mean_of_what_each_token_says():
    trunk = C.Trunk(dim=12, depth=1, position=C.LearnedPosition(length=11), attention=C.Attention(heads=3))
    head = C.PoolingHead(out=5, classifiers=2)
    model = Transformer(
        C.Transformer(embed=C.PatchEmbedding(patch_size=4, image_size=12, cls_tokens=2), trunk=trunk, head=head)
    ).eval()
    x = model.trunk(model.embed(torch.randn(2, 3, 12, 12)))

    torch.testing.assert_close(model.head(x), (model.head.out(x.x[:, 0]) + model.head.others[0](x.x[:, 1])) / 2)
    for said in (dict(pooling="mean", out=5), dict(out=None), dict(dense=True, out=5)):
        with pytest.raises(ValueError, match="classifiers"):
            C.PoolingHead(classifiers=2, **said)


# ---------------------------------------------------------------- colours between bytes


def test_a_colour_of_four_digits_lies_between_bytes():
    fine, coarse = (
        C.PixelEmbedding(palette=2, grid=(1, 1), channels=1, colors=said) for said in (("09a3", "0ba5"), ("0a", "0c"))
    )  # 9.6 and 11.6; 10 and 12
    grey = torch.full((1, 1, 1, 1), 11, dtype=torch.uint8)

    assert (palette.quantize_colors(grey, fine).item(), palette.quantize_colors(grey, coarse).item()) == (1, 0)
    assert [palette.colors_of_ids(torch.tensor([[place]]), fine).item() for place in (0, 1)] == [10, 12]
