"""Runs on images: files as they are published, a palette learned once and kept, the same bits from the same seed."""

import struct
from dataclasses import replace

import pytest
import torch

import regard
from regard import config as C
from regard.config.errors import ConfigError
from regard.training.loop import train_steps
from regard.training.run import Run

SMALL = dict(dim=12, depth=1, attention=C.Attention(heads=3), mlp=C.MLP(hidden=16), dropout=C.NO_DROPOUT)


def idx(table):
    sizes = struct.pack(f">{table.dim()}I", *table.shape)
    return bytes((0, 0, 8, table.dim())) + sizes + bytes(table.flatten().tolist())


@pytest.fixture
def digits(tmp_path, monkeypatch):
    """Images of two kinds in MNIST's form: dark above, or dark below."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    labels = torch.randint(2, (60,), dtype=torch.uint8)
    images = torch.randint(60, (60, 6, 6))
    images[labels == 0, :3] += 150
    images[labels == 1, 3:] += 150
    (tmp_path / "my-images-idx3-ubyte").write_bytes(idx(images.to(torch.uint8)))
    (tmp_path / "my-labels-idx1-ubyte").write_bytes(idx(labels))
    return str(tmp_path / "my-images-idx3-ubyte")


def classes(source, **settings):
    model = C.Transformer(embed=C.PatchEmbedding(patch_size=3, image_size=6, channels=1), head=C.PoolingHead(),
                          trunk=C.Trunk(position=C.LearnedPosition(length=5), **SMALL))  # fmt: skip
    how = C.Train(steps=60, batch_size=16, optimizer=C.AdamW(lr=1e-2), schedule=C.WarmupSchedule(warmup=0),
                  compile=False,
                  device="cpu", **settings)  # fmt: skip
    return C.Recipe(data=C.Data(source=source, validation=0.3), task=C.Classification(), model=model, train=how)


def losses(run):
    return [float(step.loss) for step in train_steps(run)]


def test_a_vit_learns_from_files_of_mnist(digits):
    run = Run.from_recipe(classes(digits))
    first, *_, last = losses(run)

    assert run.recipe.task.classes == ("0", "1") and run.recipe.model.head.out == 2
    assert last < 0.2 < first


def test_the_same_seed_changes_images_alike_and_evaluation_never_changes_them(digits):
    many = C.ImageAugment(flip=True, crop=1, rotate=10, rand_augment=1, mixup=0.4, cutmix=1.0)
    recipe = classes(digits, augment=many)
    recipe = replace(recipe, train=replace(recipe.train, steps=4))
    one, two = Run.from_recipe(recipe), Run.from_recipe(recipe)

    assert losses(one) == losses(two)
    plain = Run.from_recipe(replace(recipe, train=replace(recipe.train, augment=None)))
    for here, there in zip(one.validation.batches(), plain.validation.batches(), strict=True):
        assert torch.equal(here["ids"], there["ids"]) and "other" not in here
    assert "other" in one.data.batch(0) and "other" not in plain.data.batch(0)


def pixels(source, **front):
    embed = C.PixelEmbedding(grid=(6, 6), **front)
    trunk = C.Trunk(mask="causal", position=C.LearnedPosition(length=36), **SMALL)
    model = C.Transformer(embed=embed, trunk=trunk, head=C.LMHead(tied=False, vocab=embed.palette))
    return replace(classes(source), task=C.NextPixel(), model=model)


@pytest.mark.spec("S060")
def test_a_palette_is_learned_from_the_training_images_and_kept_with_the_model(digits, tmp_path):
    recipe = pixels(digits, palette=5, channels=1)
    run = Run.from_recipe(recipe)
    colours = run.recipe.model.embed.colors
    run.save(tmp_path / "kept")
    again = Run.from_recipe(run.recipe)  # as a run that goes on reads it

    assert len(colours) == 5 == len(set(colours)) and colours == tuple(sorted(colours))
    assert regard.load(tmp_path / "kept").c.embed.colors == colours
    assert again.recipe.model.embed.colors == colours and again.digest == run.digest
    assert torch.equal(again.data.batch(3)["ids"], run.data.batch(3)["ids"])
    assert Run.from_recipe(recipe).recipe.model.embed.colors == colours


def test_more_colours_than_there_are_is_one_sentence(digits):
    with pytest.raises(C.DataError, match="the training images have .* colours, and model.embed.palette is 400"):
        Run.from_recipe(pixels(digits, palette=400, channels=1))


def test_pixels_are_learned_in_bits(digits):
    run = Run.from_recipe(pixels(digits, palette=16, channels=1, values="levels"))
    losses(run)
    score = regard.training.validate(run.model, run.validation.batches(), run.objective, scores=True)

    assert score.scores["bits per dimension"] == pytest.approx(score.bits, rel=1e-5)
    assert score.bits < 3  # of four


def test_images_are_refused_what_is_for_texts(digits):
    recipe = classes(digits)
    with pytest.raises(ConfigError, match="train.pack"):
        Run.from_recipe(replace(recipe, train=replace(recipe.train, pack=True)))
