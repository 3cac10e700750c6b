"""Images become tokens: patches are a convolution that can be undone, places have two axes, and a model may be asked at
another size."""

import pytest
import torch
import torch.nn.functional as F
from parity.images import pair, vit
from torch.testing import assert_close

import regard
from regard import config as C
from regard.config.errors import ConfigError
from regard.core.hooks import looking
from regard.core.model import Transformer
from regard.core.positions import sinusoidal_table
from regard.core.tokens import grid_tokens
from regard.inputs.image import PatchEmbedding, normalize_image, patchify, resize_model, unpatchify
from regard.training.run import Run
from regard.zoo.recipe import read_recipe


@pytest.mark.spec("S079")
def test_patches_are_what_unfold_cuts():
    images = torch.randn(2, 3, 12, 20)
    columns = F.unfold(images, 4, stride=4).mT  # (B, N, C·4·4): channels first
    ours = patchify(images, 4).unflatten(-1, (16, 3)).mT.flatten(-2)

    assert_close(ours, columns, atol=0, rtol=0)


@pytest.mark.spec("S079")
def test_a_map_of_patches_is_a_convolution_whose_steps_are_patches():
    images, weight = torch.randn(2, 3, 224, 224), torch.randn(5, 3, 16, 16) / 16
    flat = patchify(images, 16)

    assert flat.shape == (2, 196, 768)
    mapped = F.linear(flat, weight.permute(0, 2, 3, 1).flatten(1))
    assert_close(mapped.mT.unflatten(-1, (14, 14)), F.conv2d(images, weight, stride=16), atol=1e-5, rtol=0)


@pytest.mark.spec("S079")
def test_patches_put_together_are_the_image():
    images = torch.randint(256, (2, 3, 15, 35), dtype=torch.uint8)

    assert torch.equal(unpatchify(patchify(images, 5), 5, 7), images)


def test_bytes_are_normed_by_the_config_and_other_numbers_are_not():
    c = C.PatchEmbedding(patch_size=3, image_size=6, channels=3, mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0))
    images = torch.randint(256, (2, 3, 6, 6), dtype=torch.uint8)
    mean, std = (torch.tensor(each)[:, None, None] for each in (c.mean, c.std))

    assert_close(normalize_image(c, images), (images / 255 - mean) / std)
    front = PatchEmbedding(c, 7)
    assert_close(front(images).x, front((images / 255 - mean) / std).x)


def test_grey_images_need_one_mean():
    with pytest.raises(ValueError, match=r"mean: \[0.1, 0.2\] for 1 channels; give one number, or one for each"):
        C.PatchEmbedding(channels=1, mean=(0.1, 0.2))
    with pytest.raises(ValueError, match="std: .* must be more than zero"):
        C.PatchEmbedding(std=(0.0,))


@pytest.mark.spec("S033")
def test_learned_places_of_a_vit_begin_with_a_spread_of_two_hundredths():
    table = regard.build(regard.preset("vit-b16", depth=1)).trunk.positions[0].tables[0].detach()

    assert table.shape == (197, 768)
    assert abs(float(table.std()) - 0.02) < 0.001


@pytest.mark.spec("S033")
def test_a_larger_image_stretches_the_places_as_transformers_does():
    theirs, ours, _ = pair("vit")
    images = torch.randn(2, 3, 42, 42)  # 7 x 7 patches where there were 4 x 4
    want = theirs(pixel_values=images, interpolate_pos_encoding=True).logits
    resize_model(ours, 42)

    assert_close(ours(images), want, atol=1e-5, rtol=0)
    assert ours.c.embed.image_size == 42 and ours.c.trunk.position.length == 50
    assert Transformer(ours.c)(images).shape == want.shape  # the config says the same


@pytest.mark.spec("S033")
def test_extending_a_vit_stretches_its_places_as_transformers_does():
    theirs, ours, _ = pair("vit")
    model, images = regard.build(ours.c).eval(), torch.randn(2, 3, 42, 42)
    model.load_state_dict(ours.state_dict())
    want = theirs(pixel_values=images, interpolate_pos_encoding=True).logits
    first = model.trunk.position.tables[0][0].clone()
    model.extend(50)  # a token, and 7 x 7 patches

    assert_close(model(images), want, atol=1e-5, rtol=0)
    assert torch.equal(model.trunk.position.tables[0][0], first)
    assert model.c.embed.image_size == 42


@pytest.mark.parametrize(("length", "near"), [(40, "37 or 50"), (1, "2 or 5"), (49, "37 or 50")])
def test_a_vit_is_extended_to_a_square_of_patches(length, near):
    model = regard.build(pair("vit")[1].c)
    with pytest.raises(ValueError, match=f"extend: {length} places are no square of patches .* such as {near}"):
        model.extend(length)


@pytest.mark.parametrize(("front", "length"), [
    ('{kind="patches", patch_size=2, image_size=8, channels=1, cls_tokens=false}', (4, 4)),
    ('{kind="patches", patch_size=2, image_size=8, channels=1}', 17),
    ('{kind="conv", image_size=8, channels=1, widths=[8, 12]}', (4, 4)),
    ('{kind="video", frames=6, image_size=8, channels=1, tubelet_size=2, patch_size=4}', (3, 2, 2)),
])  # fmt: skip
def test_learned_places_have_an_axis_for_each_of_the_grid(front, length):
    recipe = read_recipe("digits", [f"model.embed={front}"])

    assert recipe.model.trunk.position.length == length


def test_patches_on_a_grid_learn_with_the_places_that_they_are_given():
    head = 'model.head={kind="pooling", pooling="mean", out=10}'
    model = Transformer(read_recipe("digits", ["model.embed.cls_tokens=false", head]).model)

    assert model(torch.randint(256, (3, 1, 8, 8), dtype=torch.uint8)).shape == (3, 10)


def test_places_in_a_line_are_refused_for_patches_on_a_grid():
    line = 'model.trunk.position={kind="learned", length=16}'
    with pytest.raises(ConfigError, match=r"model.trunk.position.length: 16, and .* form a grid; set it to \[4, 4\]"):
        Run.from_recipe(read_recipe("digits", ["model.embed.cls_tokens=false", line]))


def test_presets_see_images_as_they_were_published():
    """The means and spreads of the published processors, in transformers' own words."""
    from transformers import image_utils as theirs

    swin, clip = regard.preset("swin-tiny").embed.patches, regard.preset("clip-vit-b32").towers[0].embed
    assert (list(swin.mean), list(swin.std)) == (theirs.IMAGENET_DEFAULT_MEAN, theirs.IMAGENET_DEFAULT_STD)
    assert (list(clip.mean), list(clip.std)) == (theirs.OPENAI_CLIP_MEAN, theirs.OPENAI_CLIP_STD)
    for name in ("vit-b16", "vit-l16", "vit-h14"):
        c = regard.preset(name).embed
        assert c.mean * 3 == tuple(theirs.IMAGENET_STANDARD_MEAN) and c.std * 3 == tuple(theirs.IMAGENET_STANDARD_STD)


@pytest.mark.spec("S033")
def test_a_model_of_224_pixels_reads_384():
    model = regard.build(regard.preset("vit-b16", depth=1, dim=24, heads=3)).eval()
    small = model(torch.randn(1, 3, 224, 224))
    resize_model(model, 384)

    assert model(torch.randn(1, 3, 384, 384)).shape == small.shape == (1, 1000)
    assert model.trunk.positions[0].tables[0].shape == (577, 24)


def test_resizing_to_the_same_size_changes_nothing():
    model = Transformer(vit()[1]).eval()
    images = torch.randn(2, 3, 24, 24)
    before = model(images)
    resize_model(model, 24)

    assert_close(model(images), before)


def test_windows_and_tables_for_each_axis_are_resized_too():
    _, swin, _ = pair("swin")
    resize_model(swin, 96)
    assert swin(torch.randn(2, 3, 96, 96)).shape == (2, 7)

    trunk = C.Trunk(dim=12, depth=1, position=C.LearnedPosition(length=(4, 4)), attention=C.Attention(heads=3))
    model = Transformer(
        C.Transformer(
            embed=C.PatchEmbedding(patch_size=3, image_size=12, cls_tokens=False), trunk=trunk, head=C.NoHead()
        )
    ).eval()
    resize_model(model, 21)
    assert model(torch.randn(1, 3, 21, 21)).shape == (1, 49, 12)


def test_what_cannot_be_resized_says_why():
    text = Transformer(C.Transformer(embed=C.TextEmbedding(vocab=9), trunk=C.Trunk(dim=8, depth=1)))
    with pytest.raises(ValueError, match="resize: embed.kind is 'text'"):
        resize_model(text, 32)
    with pytest.raises(ValueError, match="patches of 6 pixels do not fill an image of 25"):
        resize_model(Transformer(vit()[1]), 25)


@pytest.mark.spec("S034")
def test_sinusoids_on_two_axes_are_rows_beside_columns():
    grid, dim = (3, 5), 24
    position = Transformer(C.Transformer(
        embed=C.PatchEmbedding(patch_size=2, image_size=6, cls_tokens=False), head=C.NoHead(),
        trunk=C.Trunk(dim=dim, depth=1, position=C.SinusoidalPosition(axes=2), attention=C.Attention(heads=3)),
    )).trunk.position  # fmt: skip
    table = position.table(grid_tokens(torch.zeros(1, 15, dim), grid))[0].unflatten(0, grid)
    rows, columns = (sinusoidal_table(torch.arange(size), dim // 2) for size in grid)

    assert torch.equal(table[..., : dim // 2], rows[:, None].expand(3, 5, -1))  # the same in every column
    assert torch.equal(table[..., dim // 2 :], columns[None].expand(3, 5, -1))  # and in every row


@pytest.mark.spec("S059")
def test_four_stages_see_3136_784_196_and_49_tokens():
    with torch.device("meta"):
        model = Transformer(regard.preset("swin-tiny"))
    with looking(model, "embed.*.embed", "trunk.embed") as saw:
        model(torch.empty(1, 3, 224, 224, device="meta"))

    shapes = [tuple(saw[f"{where}.embed"].shape[1:]) for where in ("embed.0", "embed.1", "embed.2", "trunk")]
    assert shapes == [(3136, 96), (784, 192), (196, 384), (49, 768)]


@pytest.mark.spec("S059")
def test_a_shifted_window_joins_what_windows_part():
    def trunk(*masks):
        return C.Transformer(
            embed=C.PatchEmbedding(patch_size=2, image_size=16, channels=1, cls_tokens=False), head=C.NoHead(),
            init="vit",
            trunk=C.Trunk(dim=12, depth=len(masks), mask=masks, attention=C.Attention(heads=3), dropout=C.NO_DROPOUT,
                          position=C.RelativeBias(max_distance=3, axes=2, scaled=False)),
        )  # fmt: skip

    def moved(c):
        """Which tokens of the 8 x 8 change when the first patch does."""
        model, images = Transformer(c), torch.zeros(1, 1, 16, 16)
        before = model(images)
        images[..., :2, :2] = 50
        return (model(images) - before).abs().amax(-1).view(8, 8) > 1e-7

    alone, joined = moved(trunk("window2d(4)")), moved(trunk("window2d(4)", "window2d(4, 2)"))
    assert alone[:4, :4].all() and not alone[4:].any() and not alone[:, 4:].any()
    assert joined[:6, :6].all() and not joined[6:].any() and not joined[:, 6:].any()
