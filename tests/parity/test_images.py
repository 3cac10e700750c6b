"""With the same weights, equal to the image models of `transformers`: patches, pixels, towers and windows."""

import pytest
import torch
import torch.nn.functional as F
from parity.images import V, pair, pictures, stored
from parity.tolerance import assert_all_near, assert_near, gradients, renamed_gradients

import regard
from regard.hub import name_table


def answers(name, theirs, ours):
    """The same question put to both: their logits and ours."""
    if name == "imagegpt":
        image = torch.randint(V, (2, 5, 6))
        ids = torch.cat([torch.full((2, 1), V), image.flatten(1)[:, :-1]], 1)
        return theirs(input_ids=ids).logits, ours(image)
    if name == "clip":
        images, ids = pictures(24), torch.randint(2, V - 1, (2, 9))
        ids[0, 5:], ids[1, 8] = V - 1, V - 1  # texts end at different places
        return theirs(input_ids=ids, pixel_values=images).logits_per_image, ours(images, ids)
    images = pictures(48 if name == "swin" else 24)
    return theirs(pixel_values=images).logits, ours(images)


@pytest.mark.parametrize("name", ["vit", "imagegpt", "clip", "swin"])
def test_logits_and_gradients_are_equal(name):
    theirs, ours, table = pair(name)
    want, got = answers(name, theirs, ours)

    assert_near(got, want)
    weigh = torch.randn_like(want)
    (want * weigh).sum().backward()
    (got * weigh).sum().backward()
    given = {
        word: grad.flip(0) if word.endswith("bias_table") else grad[None] if word.endswith("class_embedding") else grad
        for word, grad in gradients(theirs).items()
    }
    scale = max(float(grad.abs().max()) for grad in given.values())
    assert_all_near({word: grad / scale for word, grad in renamed_gradients(ours, table).items()},
                    {word: grad / scale for word, grad in given.items()})  # fmt: skip


@pytest.mark.parametrize("name", ["vit", "imagegpt", "clip", "swin"])
def test_they_have_as_many_parameters(name):
    theirs, ours, _ = pair(name)

    assert sum(w.numel() for w in ours.parameters()) == sum(w.numel() for w in theirs.parameters())


def test_a_pixel_model_writes_images_as_transformers_does():
    theirs, plain, table = pair("imagegpt")
    ours = regard.build(plain.c).eval().double()
    name_table.load_tensors(ours, stored(theirs.double()), table)
    start = torch.full((1, 1), V)
    want = theirs.generate(start, max_new_tokens=29, do_sample=False, pad_token_id=0)

    assert torch.equal(ours.generate(start, max_new_tokens=29, temperature=0.0), want[:, 1:])


def test_the_heads_of_every_stage_can_be_watched():
    theirs, ours, _ = pair("swin")
    images = pictures(48)
    with regard.looking(ours, "*.attn.pattern") as seen:
        watched = ours(images)

    assert torch.equal(watched, ours(images))
    assert seen["embed.0.1.attn.pattern"].shape == (2, 2, 144, 144)
    assert seen["embed.1.3.attn.pattern"].shape == (2, 3, 36, 36)
    assert seen["trunk.1.attn.pattern"].shape == (2, 4, 9, 9)
    with regard.looking(ours, "embed.1.3.attn.result", heads=[1], edit=lambda name, x: 0 * x):
        assert not torch.equal(ours(images), watched)


def test_an_image_of_another_size_is_refused_with_both_sizes():
    _, ours, _ = pair("vit")

    with pytest.raises(ValueError, match=r"\(batch, 3, 24, 24\) .* got a tensor of shape \(2, 3, 32, 32\)"):
        ours(pictures(32))
    with pytest.raises(ValueError, match="real: images carry none"):
        ours(pictures(24), real=torch.ones(2, 17, dtype=torch.bool))
    _, pixels, _ = pair("imagegpt")
    with pytest.raises(ValueError, match=r"\(5, 6\) pixels by embed.grid, got \(6, 5\)"):
        pixels(torch.zeros(2, 6, 5, dtype=torch.long))


def test_a_map_over_patches_is_a_linear_map_of_each_patch():
    _, ours, _ = pair("vit")
    images = pictures(24)
    flat = F.unfold(images, 6, stride=6).mT  # (B, N, C·6·6)
    weight = ours.embed.map.weight.flatten(1)

    assert_near(ours.embed(images).x[:, 1:], F.linear(flat, weight, ours.embed.map.bias))
