"""Bad pictures from the command line: one sentence that names the file, code 3, and nothing is lost."""

import struct
import zlib

import pytest
import torch
from PIL import Image, ImageFile

RECIPE = """
[data]
source = "pets"
validation = 0.2
[task]
kind = "classification"
[model]
dim = 12
depth = 1
heads = 3
embed = {kind = "patches", patch_size = 4, image_size = 8, channels = 3}
[train]
steps = 2
batch_size = 5
device = "cpu"
compile = false
[train.schedule]
warmup = 1
"""


def image(mode="RGB", size=(8, 9)):
    bands = len(Image.new(mode, (1, 1)).getbands())
    return Image.frombytes(mode, size, bytes(torch.randint(256, (size[0] * size[1] * bands,)).tolist()))


def in_png(columns, rows, row=b""):
    """A PNG of one bit a pixel, all black, whose header says this size."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", columns, rows, 1, 0, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(row * rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of cats and dogs, with a recipe beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("regard.measure.calibration.matmul_speed", lambda *sizes: 1e9)
    for kind in ("cat", "dog"):
        (tmp_path / "pets" / kind).mkdir(parents=True)
        for number in range(9):
            image().save(tmp_path / "pets" / kind / f"{number}.png")
    (tmp_path / "pets.toml").write_text(RECIPE)
    return tmp_path


@pytest.fixture
def regard(place, capsys):
    """One command in that folder: its code and what it said on stderr."""
    from regard.cli.app import run_command

    def call(*words):
        code = run_command(words)
        told = capsys.readouterr()
        assert "Traceback" not in told.err and "bug in regard" not in told.err, told.err
        return code, told.err

    return call


def corrupt(path):
    image().save(path)
    content = bytearray(path.read_bytes())
    content[60:70] = bytes(10)
    path.write_bytes(content)


def torn(path):
    image(size=(31, 37)).save(path)
    path.write_bytes(path.read_bytes()[:900])


def moving(path):
    image().save(path, save_all=True, append_images=[image(), image()])


BOMB = in_png(70_000, 1_000, bytes(8751))
BAD = {
    "corrupt": (corrupt, "not a whole image"),
    "torn": (torn, "not a whole image"),
    "text": (lambda path: path.write_text("a cat, I promise\n"), "not a whole image (its format is unknown)"),
    "empty": (lambda path: path.write_bytes(b""), "an empty file"),
    "no pixels": (lambda path: path.write_bytes(in_png(0, 0)), "not a whole image"),
    "gigantic": (lambda path: path.write_bytes(BOMB), "70,000 x 1,000 pixels are more than 67,108,864"),
    "a lie": (lambda path: path.write_bytes(in_png(2**31 - 1, 2**31 - 1)), "pixels are more than 67,108,864"),
    "moving": (moving, "a picture of 3 frames"),
    "broken numbers": (lambda path: Image.new("F", (8, 9)).save(path, "TIFF"), "a float picture (mode F)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_a_bad_picture_is_one_sentence_with_its_name_and_the_others_can_be_learned_from(regard, place, name):
    make, why = BAD[name]
    path = place / "pets" / "dog" / "bad.png"
    make(path)
    before = {each: each.read_bytes() for each in place.glob("pets/**/*.png")}

    code, said = regard("train", "pets.toml", "--out", "run")
    assert code == 3
    (line,) = (line for line in said.splitlines() if "bad.png" in line)
    assert why in line, said
    assert {each: each.read_bytes() for each in place.glob("pets/**/*.png")} == before

    code, said = regard("train", "pets.toml", "data.on_bad_record=skip", "--out", "again")
    assert code == 0, said
    assert list((place / "again" / "checkpoints").iterdir())


def test_a_bomb_is_refused_before_anything_is_unpacked(regard, place, monkeypatch):
    (place / "pets" / "cat" / "bomb.png").write_bytes(BOMB)
    unpack = ImageFile.ImageFile.load

    def load(image):
        assert image.size[0] < 1000, "it was unpacked"
        return unpack(image)

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    code, said = regard("train", "pets.toml", "--out", "run")

    assert code == 3 and "bomb.png: column 'image': 70,000 x 1,000 pixels" in said


FINE = {
    "CMYK.jpg": lambda path: image("CMYK").save(path),
    "palette.png": lambda path: image("L").convert("P").save(path, transparency=3),
    "deep.png": lambda path: Image.frombytes("I;16", (8, 9), bytes(range(144))).save(path),
    "see-through.png": lambda path: image("RGBA").save(path),
    "two-colours.png": lambda path: Image.new("1", (8, 9)).save(path),
    "grey.jpg": lambda path: image("L").save(path),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FINE)
def test_pictures_of_every_mode_are_learned_from(regard, place, name):
    FINE[name](place / "pets" / "cat" / name)
    code, said = regard("train", "pets.toml", "--out", "run")

    assert code == 0, said


def test_a_folder_of_one_class_is_refused(regard, place):
    for path in place.glob("pets/dog/*"):
        path.unlink()
    (place / "pets" / "dog").rmdir()
    code, said = regard("train", "pets.toml", "--out", "run")

    assert code == 3, said
    assert "'cat'" in said and len(said.strip().splitlines()) == 1


def test_a_run_that_was_there_is_left_alone(regard, place):
    assert regard("train", "pets.toml", "--out", "run")[0] == 0
    before = {each: each.read_bytes() for each in (place / "run").rglob("*") if each.is_file()}
    (place / "bad.png").write_text("no picture")

    code, said = regard("classify", "run", "pets/cat/1.png", "bad.png")
    assert code == 3 and "bad.png" in said
    assert {each: each.read_bytes() for each in (place / "run").rglob("*") if each.is_file()} == before


def test_changes_to_images_are_refused_for_a_text(regard, place):
    (place / "text.txt").write_text("so it goes, and so it went.\n" * 200)
    code, said = regard("train", "shakespeare-nano", "data.source=text.txt", "train.augment={flip=true}", "--out", "no")

    assert code == 2
    assert "train.augment: it changes images, and model.embed.kind is 'text'; leave it out" in said
