"""regard caption, regard match, regard draw --text: models that see and read, from the command line."""

import json

import pytest
import torch
from tasks.image_text_models import N, asked, crossing, drawing, lively, pictures, towers, words

import regard
from regard import config as C
from regard.report.image_rows import encode_png

DRAW = C.TextToImage(pixels=C.PixelEmbedding(palette=3, grid=(2, 4), colors=("000000", "ffffff", "ff0000")))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Three small models, and two pictures."""
    place = tmp_path_factory.mktemp("mixtures")
    shapes = {"towers": (C.Contrastive(), towers()), "caption": (C.Captioning(), crossing(len(words(C.Captioning())))),
              "draw": (DRAW, drawing(len(words(DRAW)) + 3, N + 8))}  # fmt: skip
    for name, (task, c) in shapes.items():
        model = lively(c)
        model.tokenizer, model.task, model.context = words(task), task, N + 8 if name == "draw" else N
        model.save(place / name)
    for number in (0, 1):
        (place / f"{number}.png").write_bytes(encode_png(pictures()[number]))
    return place


def test_a_caption_for_each_picture(say, place):
    pytest.importorskip("PIL")
    one = say("caption", place / "caption", place / "0.png", "--max-new-tokens", 3)
    both = say("caption", place / "caption", place / "0.png", place / "1.png", "--max-new-tokens", 3, "--json")

    assert one.code == both.code == 0, (one, both)
    told = json.loads(both.out)["captions"]
    assert list(told) == [str(place / "0.png"), str(place / "1.png")]
    assert one.out == told[str(place / "0.png")] + "\n"


def test_python_takes_paths_pictures_and_tensors_and_is_told_the_same(say, place):
    image = pytest.importorskip("PIL.Image")
    paths = [str(place / "0.png"), str(place / "1.png")]
    captioner, compared = (regard.load(place / name, device="cpu") for name in ("caption", "towers"))
    told = json.loads(say("caption", place / "caption", *paths, "--max-new-tokens", 3, "--json").out)["captions"]
    embedded = [
        json.loads(line)["vector"] for line in say("embed", place / "towers", *paths, "--json").out.splitlines()
    ]
    for forms in (paths, [place / "0.png", place / "1.png"], [image.open(path) for path in paths], list(pictures()[:2]),
                  [each.numpy() for each in pictures()[:2]], [{"image": path} for path in paths]):  # fmt: skip
        assert captioner.caption(forms, num_beams=4, max_new_tokens=3) == list(told.values())
        vectors = compared.embeddings(forms)
        assert [[float(f"{number:.9g}") for number in row] for row in vectors.tolist()] == embedded
        assert torch.equal(compared.match(forms, ["a dog", "red"]), compared.match(paths, ["a dog", "red"]))


def test_texts_are_matched_with_the_likeliest_first(say, place):
    pytest.importorskip("PIL")
    said = say("match", place / "towers", place / "0.png", "--text", "a dog", "--text", "red heart", "--json")
    shares = json.loads(said.out)["matches"][str(place / "0.png")]

    assert set(shares) == {"a dog", "red heart"} and sum(shares.values()) == pytest.approx(1)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    plain = say("match", place / "towers", place / "0.png", "--text", "a dog", "--text", "red heart").out
    assert plain.startswith(next(iter(shares)))


def test_pictures_of_texts_are_laid_on_one_sheet(say, place):
    image = pytest.importorskip("PIL.Image")
    out = place / "sheet.png"
    said = say("draw", place / "draw", "--text", "a dog", "--text", "red", "--count", 3, "--seed", 0, "--out", out)

    assert said.code == 0, said
    with image.open(out) as sheet:
        assert sheet.size == (3 * 4 + 2 * 2, 2 * 2 + 2), "two rows of three"


@pytest.mark.parametrize("words, code, sentence", [
    (("caption", "caption", "none.png"), 3, "none.png: no such file; name an image"),
    (("caption", "towers", "0.png"), 2, "generates nothing; use match"),
    (("caption", "draw", "0.png"), 2, "this model takes no images"),
    (("caption", "caption", "0.png", "--num-beams", "0"), 2, "--num-beams: 0 is less than 1"),
    (("match", "caption", "0.png", "--text", "a dog"), 2, "only a dual encoder matches pictures"),
    (("match", "towers", "0.png", "--text", "a zebra crossing the road"), 3,
     "character 2 of the text, 'z' (U+007A), is not in the vocabulary; train the tokenizer on text that has it"),
    (("draw", "towers", "--text", "a dog", "--out", "x.png"), 2, "generates nothing; use match"),
    (("draw", "draw", "--text", "a dog a dog a dog", "--out", "x.png"), 3, "expected 1 to 13"),
    (("generate", "towers", "a"), 2, "generates nothing; use match"),
])  # fmt: skip
def test_a_mistake_is_one_sentence(say, place, monkeypatch, words, code, sentence):
    pytest.importorskip("PIL")
    monkeypatch.chdir(place)
    said = say(*words)

    assert said.code == code and sentence in said.err and said.err.count("\n") == 1, said


def test_a_model_of_towers_is_read_back_as_it_was_saved(place):
    task, tokenizer = asked(C.Contrastive(), towers())
    model = regard.load(place / "towers", device="cpu")

    assert isinstance(model, regard.DualEncoderModel) and model.c == towers() and model.task == C.Contrastive()
    again = lively(towers())
    again.load_state_dict(model.state_dict())
    again.tokenizer = tokenizer
    assert torch.equal(model.match(list(pictures()), ["a dog", "two"]), again.match(list(pictures()), ["a dog", "two"]))
    assert "model.match(" in (place / "towers" / "README.md").read_text()
