"""Convolutions as front ends: a residual network in our nouns, and one that never sees what it should say."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from regard import config as C
from regard.core.model import Transformer
from regard.inputs.cnn import MaskedConv

ALONE = dict(mixer=C.NoMixer(), position=C.NoPosition(), attention=C.Attention(heads=1), dropout=C.NO_DROPOUT)


def masked(reach, own):
    """The same as nn.Conv2d with a mask over its weights, as PixelCNN has it."""
    ours = MaskedConv(3, 5, reach, own)
    weight = torch.zeros(5, 3, 2 * reach + 1, 2 * reach + 1)
    weight[:, :, :reach] = ours.above.weight.detach()
    weight[:, :, reach, : reach + own] = ours.left.weight.detach()[:, :, 0]
    return ours, weight


@pytest.mark.parametrize(("reach", "own"), [(3, False), (1, True), (2, True)])
def test_two_plain_convolutions_are_a_masked_one(reach, own):
    ours, weight = masked(reach, own)
    x = torch.randn(2, 3, 6, 7)

    assert_close(ours(x), F.conv2d(x, weight, ours.above.bias, padding=reach))


@pytest.mark.spec("S061")
@pytest.mark.parametrize("place", [0, 1, 8, 17, 34])
def test_no_pixel_is_said_with_knowledge_of_itself_or_of_later_ones(place):
    embed = C.MaskedConvEmbedding(palette=11, grid=(5, 7), channels=1, values="levels", width=8, blocks=2)
    trunk = C.Trunk(dim=12, depth=1, mask="causal", **ALONE)
    c = C.Transformer(embed=embed, trunk=trunk, head=C.LMHead(tied=False, vocab=11))
    model, ids = Transformer(c).eval(), torch.randint(11, (1, 5, 7))
    before = model(ids)
    ids.view(-1)[place] = (ids.view(-1)[place] + 1) % 11
    changed = (model(ids) - before).abs().amax(-1)[0] > 0

    assert not changed[: place + 1].any()
    assert place == 34 or changed[place + 1 :].any()


def test_a_residual_network_is_a_front_end_with_nothing_to_mix_behind_it():
    c = C.Transformer(embed=C.ConvEmbedding(image_size=12, widths=(4, 8), blocks_per_stage=2),
                      head=C.PoolingHead(pooling="mean", out=5),
                      trunk=C.Trunk(dim=10, depth=1, **ALONE))  # fmt: skip
    model, images = Transformer(c).eval(), torch.randint(256, (3, 3, 12, 12), dtype=torch.uint8)

    assert model(images).shape == (3, 5)
    assert c.embed.count == 36
    assert model.embed(images).grid == (6, 6)
    assert_close(model(images)[1:2], model(images[1:2]), atol=1e-5, rtol=1e-4)  # alone as in a batch


def test_convolutions_move_with_the_image():
    c = C.ConvEmbedding(image_size=16, channels=1, widths=(4,), blocks_per_stage=1)
    front = Transformer(C.Transformer(embed=c, trunk=C.Trunk(dim=8, depth=1, **ALONE), head=C.NoHead())).embed
    image = torch.zeros(1, 1, 16, 16)
    image[..., 5:7, 6:8] = 3.0
    here, there = (front(x).x.unflatten(1, (16, 16)) for x in (image, image.roll(2, -1)))

    assert_close(there[:, :, 6:14], here[:, :, 4:12], atol=1e-5, rtol=1e-4)


def test_what_convolutions_cannot_do_is_one_sentence():
    with pytest.raises(ValueError, match="widths: 4 stages halve an image of 12 pixels 3 times"):
        C.ConvEmbedding(image_size=12, widths=(4, 8, 16, 32))
    with pytest.raises(ValueError, match="values: a masked convolution has one token a pixel"):
        C.MaskedConvEmbedding(palette=8, values="levels", channels=3)
    c = C.Transformer(embed=C.MaskedConvEmbedding(palette=4, grid=(2, 3), channels=1, values="levels"), head=C.NoHead(),
                      trunk=C.Trunk(dim=4, depth=1, mask="causal", **ALONE))  # fmt: skip
    with pytest.raises(ValueError, match="whole images"):
        Transformer(c)(torch.zeros(1, 6, dtype=torch.long))


def test_masked_convolutions_drop_in_training_alone():
    embed = C.MaskedConvEmbedding(palette=11, grid=(5, 7), channels=1, values="levels", width=8, blocks=2, dropout=0.5)
    trunk = C.Trunk(dim=12, depth=1, mask="causal", **ALONE)
    model = Transformer(C.Transformer(embed=embed, trunk=trunk, head=C.LMHead(tied=False, vocab=11)))
    ids = torch.randint(11, (3, 5, 7))

    assert not torch.equal(model(ids), model(ids))
    assert torch.equal(model.eval()(ids), model(ids))
    with pytest.raises(ValueError, match="dropout: 1.5 is not between 0 and 1"):
        C.MaskedConvEmbedding(palette=11, grid=(5, 7), channels=1, values="levels", dropout=1.5)
