"""Recipes of pictures and texts: trained, saved, resumed bit for bit, shared by ranks, and opened again."""

import json
import os

import pytest
import torch
from torch.testing import assert_close
from training.builders import advanced, lines
from training.launcher import Launcher

import regard
from regard import config
from regard.data.builtin import emoji_images
from regard.training.validation import validate
from regard.zoo.recipe import read_recipe

DATA = """
[data]
source = "emoji:validation"
validation = "emoji:test"
[tokenizer]
kind = "bpe"
vocab = 400
[train]
steps = 6
batch_size = 7
context = {context}
compile = false
device = "cpu"
eval_every = 3
save_every = "none"
[train.schedule]
kind = "constant"
warmup = 2
[task]
kind = "{task}"
"""
SMALL = "dim = 12\ndepth = 1\nheads = 3\nhidden = 20\n"
SHAPES = {
    "contrastive": DATA.format(task="contrastive", context=40) + f"""
label = "label"
[model]
kind = "dual_encoder"
[model.image]
embed = {{kind = "patches", patch_size = 16, image_size = 32}}
{SMALL}
[model.text]
{SMALL}
""",
    "captioning": DATA.format(task="captioning", context=40) + f"""
[model]
{SMALL}
trunk = {{cross = "last", mask = "causal"}}
[model.encoder]
embed = {{kind = "patches", patch_size = 16, image_size = 32}}
""",
    "prefix": DATA.format(task="captioning", context=40) + f"""
[model]
{SMALL}
mask = "prefix(4)"
position = {{kind = "learned"}}
[model.embed]
kind = "multimodal"
prefix = {{kind = "patches", patch_size = 16, image_size = 32, cls_tokens = false}}
""",
    "text_to_image": DATA.format(task="text_to_image", context=60) + f"""
pixels = {{palette = 9, grid = [4, 4]}}
[model]
{SMALL}
position = {{kind = "learned"}}
""",
}  # fmt: skip
every = pytest.mark.parametrize("shape", SHAPES)


@pytest.fixture
def recipe(desk):
    for name, text in SHAPES.items():
        (desk / f"{name}.toml").write_text(text)
    return lambda shape, *changes: read_recipe(f"{shape}.toml", changes)


@every
def test_a_run_goes_on_bit_for_bit(recipe, desk, shape):
    whole = regard.Run.from_recipe(recipe(shape))
    want = advanced(whole)
    half = regard.Run.from_recipe(recipe(shape))
    first = advanced(half, 3)
    half.save(desk / "half")
    rest = regard.Run.from_recipe(recipe(shape))
    rest.load(desk / "half")

    assert first + advanced(rest) == want
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), rest.model.parameters(), strict=True))


@every
def test_a_model_that_is_saved_and_opened_says_the_same(recipe, desk, shape):
    run = regard.Run.from_recipe(recipe(shape, "train.steps=2"))
    advanced(run)
    run.save(desk / "kept")
    model, batch = regard.load(desk / "kept", device="cpu"), run.validation.batches()

    assert model.task == run.recipe.task and model.c == run.recipe.model
    assert model.tokenizer.text() == run.tokenizer.text()
    given = list(batch)
    assert validate(model, given, run.task, scores=True) == validate(run.model, given, run.task, scores=True)
    images, texts = list(emoji_images()[:2]), ["red heart", "dog"]
    said = {"contrastive": lambda: model.match(images, texts),
            "captioning": lambda: model.caption(images, max_new_tokens=3),
            "prefix": lambda: model.caption(images, max_new_tokens=3),
            "text_to_image": lambda: model.generate_images(texts, seed=0)}  # fmt: skip
    assert len(said[shape]()) == 2


def test_words_are_learned_as_they_are_read_where_texts_are_lists(recipe, desk):
    (desk / "pairs.jsonl").write_text("".join(
        json.dumps({"image": [[[shade] * 32] * 32] * 3, "text": text, "label": text[:3]}) + "\n"
        for shade, text in enumerate(["dog, pet", "cat, pet", "bird, wild"] * 3)))  # fmt: skip
    words = ("tokenizer.kind=word", "tokenizer.vocab=10", "tokenizer.byte_fallback=false", "data.source=pairs.jsonl",
             "data.validation=pairs.jsonl", "task.phrase_list=true")  # fmt: skip
    run = regard.Run.from_recipe(recipe("contrastive", *words))
    said = {run.tokenizer.decode(row) for step in range(4) for row in run.data.batch(step)["ids"].tolist()}

    assert {" dog", " cat, pet", " wild, bird"} <= said
    assert not any("<unk>" in text for text in said)


@every
def test_workers_make_the_same_batches(recipe, shape):
    plain, ahead = (regard.Run.from_recipe(recipe(shape, f"train.workers={count}")) for count in (0, 1))
    for step in range(3):
        assert_close(ahead.data.batch(step), plain.data.batch(step), rtol=0, atol=0)


def test_evaluation_scores_what_a_run_kept_back_or_other_data(recipe, desk):
    regard.training.fit(recipe("contrastive", "train.steps=2"), "run")
    own, other = regard.evaluate("run"), regard.evaluate("run", "emoji:validation")

    assert (own.data, other.data) == ("emoji:test", "emoji:validation")
    assert {"image to text R@1", "text to image R@5", "zero-shot"} <= set(own.scores)
    assert own.loss != other.loss


@pytest.mark.parametrize("shape, change, sentence", [
    ("contrastive", "train.gradient_accumulation=2",
     "train.gradient_accumulation: 2, and task 'contrastive' contrasts each pair with all others"),
    ("contrastive", "train.parallel=fsdp", "train.parallel: fsdp shards every weight"),
    ("contrastive", "train.loss_chunk=8", "train.loss_chunk: task 'contrastive' has no vocabulary logits"),
    ("contrastive", "train.pack=true", "train.pack: task 'contrastive' takes each pair as a row of its own"),
    ("contrastive", "train.augment.mixup=0.2", "train.augment: mixup and cutmix mix the labels too"),
    ("contrastive", "model.text.vocab=30", r"model.towers\[1\].embed.vocab: 30, and the tokenizer has"),
    ("contrastive", "task.text=caption", "no column 'caption'"),
    ("captioning", "train.context=4", "has [0-9]+ tokens, and there is room for 3; make train.context larger"),
    ("captioning", "model.encoder.trunk.position={kind='learned', length=3}", "length: 3, and the front end makes 5"),
    ("prefix", "model.position.length=20", "train.context: 44 is longer than model.trunk.position.length 20"),
    ("text_to_image", "task.pixels.palette=4000000", "palette"),
    ("text_to_image", "train.context=17", "train.context: 17 tokens, and an image has 16"),
])  # fmt: skip
def test_a_mistake_in_a_recipe_is_one_sentence(recipe, shape, change, sentence):
    with pytest.raises((config.ConfigError, config.DataError), match=sentence):
        regard.Run.from_recipe(recipe(shape, change))


# ---------------------------------------------------------------- many ranks


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    if not hasattr(os, "pidfd_open"):
        pytest.skip("processes are watched as only Linux can")
    place = tmp_path_factory.mktemp("group")
    for name, text in SHAPES.items():
        (place / f"{name}.toml").write_text(text)
    made = Launcher(place)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [7, 1, 2])
def test_two_ranks_tell_apart_what_one_process_does(group, pairs):
    plain = ("model.image.dropout=0", "model.text.dropout=0", "train.optimizer.lr=1e-4", f"train.batch_size={pairs}")
    runs = []
    for size in (1, 2):
        out = f"{pairs} on {size}"
        end = group.run("train", "contrastive.toml", *plain, "--out", out, size=size)
        assert end.codes == [0] * size, end
        runs.append([line for line in lines(group.place / out / "log.jsonl") if "health" not in line])
    for mine, line in zip(*runs, strict=True):
        for key in ("loss", "eval_loss", "image to text R@5", "zero-shot"):
            if key in line:
                assert abs(mine[key] - line[key]) <= 1e-6, (mine, line)
        if "norm" in line:  # Adam's first steps divide gradients by themselves, and what is rounded grows
            assert mine["norm"] == pytest.approx(line["norm"], rel=1e-5)
