"""Pictures in a page: PNGs that others read, and a report about a run on images."""

import base64
import io
import json

import pytest
import torch
from PIL import Image
from report.run_folders import data_in

from regard import lens, report, zoo
from regard.data.batching import batch_to_device
from regard.inference.load import load_model
from regard.report.image_rows import data_uri, describe_example, encode_png, image_of_example
from regard.training.api import fit


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_picture_is_read_back_by_pillow_pixel_by_pixel(channels):
    image = torch.randint(0, 256, (channels, 5, 7), dtype=torch.uint8)
    found = Image.open(io.BytesIO(encode_png(image)))

    assert found.size == (7, 5) and found.mode == {1: "L", 3: "RGB", 4: "RGBA"}[channels]
    assert list(found.tobytes()) == image.movedim(0, -1).flatten().tolist()


def test_a_large_picture_is_shown_by_some_of_its_pixels():
    image = torch.arange(300).remainder(256).to(torch.uint8).expand(3, 300, 300)
    found = Image.open(io.BytesIO(base64.b64decode(data_uri(image).partition(",")[2])))

    assert max(found.size) <= 128 and found.getpixel((1, 0)) == (3, 3, 3)


def test_what_is_no_picture_has_a_name():
    assert image_of_example({"image": torch.zeros(1, 2, 2, dtype=torch.uint8)}) is not None
    assert (
        image_of_example({"sound": torch.zeros(5)}) is None
        and image_of_example({"image": torch.zeros(1, 2, 2)}) is None
    )
    assert describe_example({"sound": torch.zeros(5)}, 3) == "row 3: sound of 5 numbers"


RECIPE = """
[data]
source = "shapes.jsonl"
validation = 0.3
[task]
kind = "{task}"
[model]
dim = 12
depth = 2
heads = 3
embed = {{kind = "patches", patch_size = 2, image_size = 6, channels = 1, cls_tokens = {cls}}}
position = {{kind = "sinusoidal", axes = {axes}}}
[train]
steps = 2
batch_size = 5
device = "cpu"
compile = false
[train.schedule]
warmup = 1
"""


@pytest.fixture
def page(tmp_path, monkeypatch):
    """What the page of a run on images says."""
    monkeypatch.setattr("regard.measure.calibration.matmul_speed", lambda *sizes: 1e9)
    rows = ({"image": torch.randint(0, 256, (6, 6)).tolist(), "label": n % 3} for n in range(40))
    (tmp_path / "shapes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    axes = {"true": 1, "false": 2}  # a learned token first, or a grid

    def made(task="classification", cls="true"):
        (tmp_path / "shapes.toml").write_text(RECIPE.format(task=task, cls=cls, axes=axes[cls]))
        fit(zoo.read_recipe("shapes.toml"), tmp_path / "run", quiet=True)
        model = load_model(tmp_path / "run")
        text = report.write_report(tmp_path / "run", model, model.tokenizer).read_text(encoding="utf8")
        return text, data_in(text), model

    return made


@pytest.mark.slow
def test_a_report_shows_the_pictures_what_they_were_taken_for_and_where_heads_look(page):
    text, data, model = page()
    answers, [group] = data["answers"], data["attention"]["groups"]

    assert "absent" not in answers and "absent" not in data
    assert all(row["picture"].startswith("data:image/png;base64,") for row in answers["rows"])
    assert not any(row["right"] for row in answers["rows"][: answers["wrong"]])
    assert sum(map(sum, answers["confusion"]["counts"])) == answers["asked"] == answers["count"]
    assert group["queries"] == ["whole", *(f"{row},{column}" for row in range(3) for column in range(3))]
    assert group["grid"] == [3, 3] and group["heads"] == [3, 3]
    assert "No map of tokens" in data["words"]["absent"]
    assert "Predicted class" in text
    assert "Classifies the images of shapes.jsonl, 0 or 1 or 2, at most 10 tokens each." in text


@pytest.mark.slow
def test_the_maps_are_those_of_the_first_picture_that_is_shown(page):
    _, data, model = page(cls="false")
    first = Image.open(io.BytesIO(base64.b64decode(data["answers"]["rows"][0]["picture"].partition(",")[2])))
    image = torch.tensor(list(first.tobytes()), dtype=torch.uint8).view(1, 1, 6, 6)
    [view, *_] = lens.attention_views(model, batch_to_device(image, next(model.parameters()).device))
    packed = base64.b64decode(data["attention"]["groups"][0]["maps"])
    drawn = torch.frombuffer(bytearray(packed), dtype=torch.uint8).view(-1, 9, 9)

    assert (drawn[:3].float() / 255 - view.pattern[0].sqrt()).abs().max() < 1 / 255


@pytest.mark.slow
def test_a_report_of_numbers_for_images_has_a_plane_of_points(page):
    text, data, _ = page(task="regression")

    assert len(data["answers"]["points"]) == data["answers"]["count"]
    assert "Predicts a number for each image of shapes.jsonl" in text
