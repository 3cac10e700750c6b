"""regard draw: pictures in a file, from a model of pixels alone."""

import json

import pytest
import torch

import regard
from regard import config as C
from regard.data.readers.images import load_image, save_image


@pytest.fixture
def folder(tmp_path):
    pixels = C.PixelEmbedding(palette=4, grid=(5, 6), colors=("000000", "ff0000", "00ff00", "ffffff"))
    trunk = C.Trunk(
        dim=12, depth=1, mask="causal", position=C.LearnedPosition(length=30), attention=C.Attention(heads=3)
    )
    model = regard.build(C.Transformer(embed=pixels, trunk=trunk, head=C.LMHead(tied=False, vocab=4)))
    model.save(tmp_path / "model")
    return tmp_path


def run(*words):
    from regard.cli.app import run_command

    return run_command([str(word) for word in words])


def test_pictures_lie_on_one_sheet_and_a_seed_draws_them_again(folder, capsys):
    code = run("draw", folder / "model", "--out", folder / "a.png", "--count", 4, "--seed", 3, "--json")

    assert code == 0 and json.loads(capsys.readouterr().out)["count"] == 4
    assert load_image(folder / "a.png", 3, "here").shape == (3, 12, 14)
    run("draw", folder / "model", "--out", folder / "b.png", "--count", 4, "--seed", 3)
    assert torch.equal(load_image(folder / "a.png", 3, "here"), load_image(folder / "b.png", 3, "here"))


def test_a_picture_can_be_begun(folder):
    save_image(torch.full((3, 50, 60), 255, dtype=torch.uint8), folder / "white.png")
    begin = ("--prefix-image", folder / "white.png", "--prefix-rows", 3)

    assert run("draw", folder / "model", "--out", folder / "a.png", "--count", 1, *begin) == 0
    assert load_image(folder / "a.png", 3, "here")[:, :3].unique().tolist() == [255]


@pytest.mark.parametrize(("words", "code", "why"), [
    (["--count", 0], 2, "--count: 0 is less than 1"),
    (["--prefix-rows", 2], 2, "--prefix-rows: 2 rows of which picture? name it with --prefix-image"),
    (["--prefix-image", "missing.png"], 3, "no such file"),
    (["--temperature", -1], 2, "temperature"),
])  # fmt: skip
def test_a_mistake_is_one_sentence(folder, capsys, words, code, why):
    assert run("draw", folder / "model", "--out", folder / "a.png", *words) == code
    told = capsys.readouterr().err
    assert why in told and told.count("\n") == 1
    assert not (folder / "a.png").exists()


def test_where_it_cannot_be_written_is_said(folder, capsys):
    assert run("draw", folder / "model", "--out", folder / "nowhere" / "a.png", "--count", 1) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert run("draw", folder / "model", "--out", folder / "a.what", "--count", 1) == 2
