"""The picture that goes with a text: words, then colours, in one sequence and one vocabulary."""

import pytest
import torch
import torch.nn.functional as F
from tasks.image_text_models import TEXTS, asked, batch, drawing, lively, prefixed, records, words
from torch.testing import assert_close

from regard import config as C
from regard.config.errors import ConfigError, DataError
from regard.inputs import palette

COLOURS = ("000000", "ffffff", "ff0000", "00ff00", "0000ff")
PIXELS = C.PixelEmbedding(palette=5, grid=(3, 4), colors=COLOURS)
TASK = C.TextToImage(pixels=PIXELS)
ROOM, COUNT = 16, 12
V = len(words(TASK))
MODEL = drawing(V + 5, ROOM + COUNT)


def built(c=TASK, **how):
    return *asked(c, MODEL, PIXELS, ROOM + COUNT, **how), lively(MODEL)


def test_every_pixel_has_a_place_of_its_own_whatever_the_text():
    task, tokenizer, _ = built()
    given = batch(task, tokenizer)
    start, end, pad = (tokenizer.special_ids[role] for role in ("bos", "eos", "pad"))

    assert given["ids"].shape == given["labels"].shape == (len(TEXTS), ROOM + COUNT - 1)
    assert "real" not in given, "what fills a text up is read"
    for row, text in enumerate(TEXTS):
        read, told = given["ids"][row].tolist(), given["labels"][row].tolist()
        ids = tokenizer.encode(text)
        assert read[:ROOM] == [start, *ids, end] + [pad] * (ROOM - len(ids) - 2)
        assert told[: ROOM - 1] == [*ids, end] + [-100] * (ROOM - len(ids) - 2)
        assert told[ROOM - 1 : -1] == read[ROOM:] and min(told[ROOM - 1 :]) >= V


def test_pixels_are_the_nearest_colours_of_the_picture():
    task, tokenizer, _ = built()
    labels = batch(task, tokenizer)["labels"][:, ROOM - 1 :] - V
    images = torch.stack([task.example(record, tokenizer)["image"] for record in records()])

    assert torch.equal(labels, palette.quantize_colors(images, PIXELS).flatten(1))


@pytest.mark.parametrize("weight", [0.0, 0.25])
def test_colours_and_words_are_counted_apart_and_weighed(weight):
    task, tokenizer, model = built(C.TextToImage(pixels=PIXELS, text_loss_weight=weight))
    given = batch(task, tokenizer)
    logits, labels = model(given["ids"]).flatten(0, 1), given["labels"].flatten()
    parts, sums = task.count_parts(given), task.loss_sums(model, given)

    want = F.cross_entropy(logits[labels >= V], labels[labels >= V], reduction="sum")
    assert_close(sums["image"], want)
    assert (parts["image"].count, parts["image"].weight) == (len(TEXTS) * COUNT, 1 - weight)
    assert ("text" in parts) == ("text" in sums) == (weight > 0)
    if weight:
        assert (parts["text"].count, parts["text"].weight) == (sum(map(len, TEXTS)) + len(TEXTS), weight)


@pytest.mark.spec("S063")
@pytest.mark.slow
def test_a_few_pictures_are_learned_by_heart_and_drawn_again():
    task, tokenizer, model = built()
    given, optimizer = batch(task, tokenizer), torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        sums, parts = task.loss_sums(model, given), task.count_parts(given)
        sum(sums[name] * part.weight / part.count for name, part in parts.items()).backward()
        optimizer.step()
    model.tokenizer, model.context, model.task = tokenizer, ROOM + COUNT, TASK
    want = palette.colors_of_ids(given["labels"][:, ROOM - 1 :] - V, PIXELS)

    assert torch.equal(model.generate_images(TEXTS, temperature=0.0), want)
    assert not torch.equal(model.generate_images(TEXTS[::-1], temperature=0.0), want)


def test_a_picture_is_made_of_colours_alone_and_the_same_seed_draws_it_again():
    task, tokenizer, model = built()
    model.tokenizer, model.context, model.task = tokenizer, ROOM + COUNT, TASK
    images = model.generate_images(["a dog"] * 3, temperature=5.0, seed=1)

    assert images.shape == (3, 3, 3, 4) and images.dtype == torch.uint8
    known = {tuple(bytes.fromhex(colour)) for colour in COLOURS}
    assert {tuple(pixel) for pixel in images.movedim(1, -1).flatten(0, 2).tolist()} <= known
    assert torch.equal(images, model.generate_images(["a dog"] * 3, temperature=5.0, seed=1))


@pytest.mark.parametrize("asks, kind, sentence", [
    (dict(texts=["a green apple a dog"]), DataError, "has 19 tokens; expected 1 to 14"),
    (dict(texts=[" "]), DataError, "expected 1 to 14"),
    (dict(texts=["a dog"], max_new_tokens=3), ConfigError, "max_new_tokens: an image ends with its last pixel"),
])  # fmt: skip
def test_what_cannot_be_drawn_is_one_sentence(asks, kind, sentence):
    task, tokenizer, model = built()
    model.tokenizer, model.context, model.task = tokenizer, ROOM + COUNT, TASK

    with pytest.raises(kind, match=sentence):
        model.generate_images(**asks)


def test_a_model_of_another_task_draws_nothing():
    model = lively(MODEL)
    model.tokenizer = words(TASK)
    with pytest.raises(ConfigError, match="this model generates no images from text"):
        model.generate_images(["a dog"])


@pytest.mark.parametrize("model, length, sentence", [
    (drawing(V, 99), 28, "model.embed.vocab"),
    (drawing(V + 5, 99), COUNT + 2, "train.context: 14 tokens, and an image has 12"),
    (prefixed(V + 5), 28, "model.embed.kind: task 'text_to_image' takes words and colours as ids of one vocabulary"),
])  # fmt: skip
def test_models_that_cannot_be_asked_are_refused(model, length, sentence):
    with pytest.raises(ConfigError, match=sentence):
        asked(TASK, model, PIXELS, length)
