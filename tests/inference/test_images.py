"""Pictures drawn value by value: of the model's own size, from the seed alone, going on from what is given."""

import pytest
import torch

import regard
from regard import config as C
from regard.config.errors import ConfigError
from regard.inference.images import contact_sheet, sample_images
from regard.inputs import palette

TRUNK = C.Trunk(dim=12, depth=2, mask="causal", position=C.LearnedPosition(length=45), attention=C.Attention(heads=3),
                dropout=C.NO_DROPOUT)  # fmt: skip
FRONTS = {
    "grey": C.PixelEmbedding(palette=7, grid=(5, 9), channels=1, values="levels"),
    "every number": C.PixelEmbedding(palette=7, grid=(3, 5), values="levels"),
    "colors": C.PixelEmbedding(palette=4, grid=(5, 9), colors=("000000", "ff0000", "00ff00", "0000ff")),
}


def model(front, **head):
    return regard.build(C.Transformer(embed=front, trunk=TRUNK, head=C.LMHead(**head))).eval()


@pytest.mark.spec("S060")
@pytest.mark.parametrize("kind", FRONTS)
def test_pictures_are_of_the_palette_and_of_the_right_size(kind):
    front = FRONTS[kind]
    images = sample_images(model(front, tied=True), 3, seed=1)  # a tied head could say the start token too

    assert images.shape == (3, front.channels, *front.grid) and images.dtype == torch.uint8
    assert torch.equal(palette.colors_of_ids(palette.quantize_colors(images, front), front), images)


def test_the_same_seed_draws_the_same_pictures_and_others_differ():
    writer = model(FRONTS["grey"], tied=False, vocab=7)

    assert torch.equal(sample_images(writer, 2, seed=5), sample_images(writer, 2, seed=5))
    assert not torch.equal(sample_images(writer, 2, seed=5), sample_images(writer, 2, seed=6))


def test_the_likeliest_picture_is_what_the_model_says_when_it_reads_it():
    writer, front = model(FRONTS["grey"], tied=False, vocab=7), FRONTS["grey"]
    ids = palette.quantize_colors(sample_images(writer, 1, temperature=0.0), front)

    assert torch.equal(writer(ids).argmax(-1), ids.flatten(1))


def test_rows_that_are_given_stay():
    writer, front = model(FRONTS["colors"], tied=False, vocab=4), FRONTS["colors"]
    begin = palette.colors_of_ids(torch.randint(4, (1, 5, 9)), front)[0]
    images = sample_images(writer, 3, prefix_image=begin, prefix_rows=2, seed=0)

    assert torch.equal(images[:, :, :2], begin[None, :, :2].expand(3, -1, -1, -1))
    assert not torch.equal(images[0, :, 2:], images[1, :, 2:])


def test_a_sheet_shows_every_picture_once():
    images = torch.randint(255, (5, 3, 4, 6), dtype=torch.uint8)
    page = contact_sheet(images)

    assert page.shape == (3, 3 * 4 + 2 * 2, 2 * 6 + 2)
    assert torch.equal(page[:, 6:10, 8:14], images[3])
    assert page[:, 12:, 8:].unique().tolist() == [255]


@pytest.mark.parametrize(("settings", "why"), [
    (dict(max_new_tokens=4), "max_new_tokens: an image ends with its last pixel"),
    (dict(prefix_image=torch.zeros(1, 4, 4, dtype=torch.uint8), prefix_rows=1),
     r"prefix_image: an image of \(1, 4, 4\), expected \(1, 5"),
    (dict(prefix_image=torch.zeros(1, 5, 9, dtype=torch.uint8), prefix_rows=5), "prefix_rows: 5 rows of 5 are given"),
])  # fmt: skip
def test_what_cannot_be_drawn_is_one_sentence(settings, why):
    with pytest.raises(ConfigError, match=why):
        sample_images(model(FRONTS["grey"]), 1, **settings)


def test_who_draws_no_pixels_says_so():
    text = regard.build(C.Transformer(embed=C.TextEmbedding(vocab=9), trunk=TRUNK))
    with pytest.raises(ConfigError, match="embed.kind: 'text' generates no images"):
        sample_images(text)
    with pytest.raises(ConfigError, match="the 4 colours are not set"):
        sample_images(model(C.PixelEmbedding(palette=4, grid=(5, 9))))
