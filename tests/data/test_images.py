"""Pictures of every kind become bytes, and what is broken, hostile or no picture at all is one sentence."""

import io
import struct
import time
import zlib

import pytest
import torch
from PIL import Image

from regard.config.errors import ConfigError, DataError
from regard.data.readers.images import MAX_PIXELS, load_image, save_image


def colours(rows=5, columns=7):
    return torch.randint(256, (3, rows, columns), dtype=torch.uint8)


def drawn(image, mode="RGB"):
    """Our bytes as an image of pillow."""
    rows, columns = image.shape[1:]
    return Image.frombytes("RGB", (columns, rows), bytes(image.movedim(0, -1).flatten().tolist())).convert(mode)


def packed(image, kind="PNG", **how):
    file = io.BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


def grey(raw, **how):
    return load_image(raw, 1, "here", **how)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
def test_what_keeps_its_pixels_comes_back_as_it_was(kind, tmp_path):
    image = colours()
    raw = packed(drawn(image), kind, **({"lossless": True} if kind == "WEBP" else {}))
    (tmp_path / "picture.bin").write_bytes(raw)

    for held in (raw, {"bytes": raw, "path": None}, tmp_path / "picture.bin", str(tmp_path / "picture.bin"),
                 {"bytes": None, "path": str(tmp_path / "picture.bin")}, drawn(image)):  # fmt: skip
        assert torch.equal(load_image(held, 3, "here"), image)


def test_jpeg_is_read_as_pillow_reads_it():
    raw = packed(drawn(colours(16, 24)), "JPEG", quality=80)
    want = torch.tensor(list(Image.open(io.BytesIO(raw)).tobytes()), dtype=torch.uint8).view(16, 24, 3).movedim(-1, 0)

    assert torch.equal(load_image(raw, 3, "here"), want)


def test_a_palette_and_greys_and_four_inks_become_three_colours_or_one():
    image = colours()
    few = image.clamp(max=3) * 60  # so few colours that a palette holds them all
    palette = drawn(few).convert("P", palette=Image.Palette.ADAPTIVE, colors=64)

    assert torch.equal(load_image(packed(palette), 3, "here"), few)
    assert load_image(packed(drawn(image, "L")), 3, "here").unique(dim=0).shape[0] == 1  # all three are the grey
    assert grey(packed(drawn(image))).shape == (1, 5, 7)
    assert load_image(packed(drawn(image, "CMYK"), "JPEG"), 3, "here").shape == (3, 5, 7)
    assert set(grey(packed(drawn(image, "1"))).unique().tolist()) <= {0, 255}


def test_what_is_see_through_lies_on_white():
    image = Image.new("RGBA", (2, 1), (200, 0, 0, 255))
    image.putpixel((1, 0), (0, 0, 0, 0))
    image_with_key = Image.new("P", (2, 1), 0)
    image_with_key.putpalette([9, 9, 9, 80, 80, 80])
    image_with_key.putpixel((1, 0), 1)

    assert load_image(packed(image), 3, "here")[:, 0].mT.tolist() == [[200, 0, 0], [255, 255, 255]]
    assert grey(packed(image_with_key, transparency=1))[0, 0].tolist() == [9, 255]


def test_sixteen_bits_become_eight_by_their_size_and_not_by_their_lower_half():
    image = Image.new("I;16", (3, 1))
    for place, value in enumerate((0, 32_896, 65_535)):
        image.putpixel((place, 0), value)

    assert grey(packed(image))[0, 0].tolist() == [0, 128, 255]


def test_a_photograph_is_turned_as_its_camera_says():
    upright = colours()
    exif = Image.Exif()
    exif[0x0112] = 6  # held on its side
    raw = packed(drawn(upright.rot90(1, (1, 2))), exif=exif)

    assert torch.equal(load_image(raw, 3, "here"), upright)


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def bomb(columns, rows):
    """A PNG of a few bytes that would be gigabytes."""
    head, body = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0), zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(8193, 8192), (12_000, 9_000), (60_000, 60_000), (2**31 - 1, 2**31 - 1)])
def test_a_bomb_is_refused_by_its_header(size):
    began = time.process_time()
    with pytest.raises(DataError, match=rf"here: .* pixels are more than {MAX_PIXELS:,}"):
        load_image(bomb(*size), 3, "here")

    assert time.process_time() - began < 0.5  # nothing was unpacked


@pytest.mark.parametrize(("raw", "why"), [
    (b"", "no bytes"),
    (b"hello", "not a whole image \\(its format is unknown\\)"),
    (b"%!PS-Adobe-3.0 EPSF-3.0\n", "not a whole image"),
    (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a whole image"),
    (bomb(500, 500), "not a whole image"),
    (packed(drawn(torch.zeros(3, 90, 90, dtype=torch.uint8)))[:60], "not a whole image"),
    (packed(drawn(torch.arange(24_300).view(3, 90, 90).byte()), "JPEG")[:700], "not a whole image"),
    (packed(Image.new("F", (3, 2)), "TIFF"), "a float picture"),
], ids=["empty", "text", "postscript", "svg", "header", "png", "jpeg", "tiff"])  # fmt: skip
def test_a_broken_picture_is_one_sentence_with_its_place(raw, why):
    with pytest.raises(DataError, match=rf"^pets.jsonl:7: .*{why}") as caught:
        load_image(raw, 3, "pets.jsonl:7: column 'image'")
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there_or_empty_or_folders_are_named(tmp_path):
    (tmp_path / "empty.png").touch()
    for name, why in (("missing.png", "no such file"), ("empty.png", "an empty file"), ("", "is a directory")):
        with pytest.raises(DataError, match=why):
            load_image(tmp_path / name, 3, "here")


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_a_moving_picture_is_refused_with_its_frames(kind):
    frames = [Image.new("RGB", (4, 4), (shade, 0, 0)) for shade in (10, 100, 200)]
    with pytest.raises(DataError, match="a picture of 3 frames; save the one that is meant"):
        load_image(packed(frames[0], kind, save_all=True, append_images=frames[1:]), 3, "here")


def test_numbers_are_read_in_either_order_and_by_their_white():
    image = colours()

    assert torch.equal(load_image(image, 3, "here"), image)
    assert torch.equal(load_image(image.movedim(0, -1).numpy(), 3, "here"), image)
    assert torch.equal(load_image(image.tolist(), 3, "here"), image)
    assert torch.equal(load_image((image.double() / 255).tolist(), 3, "here", white=1.0), image)
    assert torch.equal(grey([[0, 8], [16, 4]], white=16.0), torch.tensor([[[0, 128], [255, 64]]], dtype=torch.uint8))
    assert torch.equal(grey([0, 8, 16, 4], white=16.0), grey([[0, 8], [16, 4]], white=16.0))
    assert torch.equal(load_image([[7, 9]], 3, "here"), torch.tensor([[[7, 9]]] * 3, dtype=torch.uint8))


@pytest.mark.parametrize(("found", "why"), [
    ([[1, 2], [3]], "is no image"), (None, "is no image"), (["a"], "is no image"), ([], "an array of \\(0,\\)"),
    (3.5, "an array of \\(\\)"), ([[1, 300]], "numbers from 1 to 300, expected 0 to 255; set model.embed.max_value"),
    ([[-1, 3]], "numbers from -1 to 3"), ([[float("nan"), 3.0]], "numbers from nan"),
    ([[[[1]]]], "an array of \\(1, 1, 1, 1\\)"),
    (torch.zeros(5, 6, 7), "an array of \\(5, 6, 7\\), and embed.channels is 3"),
])  # fmt: skip
def test_numbers_that_are_no_image_are_refused(found, why):
    with pytest.raises(DataError, match=f"here: .*{why}"):
        load_image(found, 3, "here")


def test_a_picture_has_one_colour_or_three():
    with pytest.raises(DataError, match="embed.channels is 5; give arrays"):
        load_image(packed(drawn(colours())), 5, "here")
    assert load_image(torch.zeros(4, 6, 5), 5, "here").shape == (5, 4, 6)


def test_what_is_saved_is_read_again(tmp_path):
    for image in (colours(), colours()[:1]):
        save_image(image, tmp_path / "a.png")
        assert torch.equal(load_image(tmp_path / "a.png", len(image), "here"), image)
    with pytest.raises(ConfigError, match="unknown image suffix; call it .png"):
        save_image(colours(), tmp_path / "a.nothing")
