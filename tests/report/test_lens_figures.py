"""Figures of lens results: each kind of picture in each form, the same bytes every time, and refusals in a sentence."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from PIL import Image

import regard
from regard.config.errors import ConfigError
from regard.lens.result import LensResult, Picture, Table

TOKENS = ["a", "<b>", "$x", "·d"]


@dataclass(frozen=True)
class Shown(LensResult):
    """Numbers of a lens that is not there."""

    drawn: Any = None

    def table(self) -> Table:
        return Table("Which token?", ("token", "value"), tuple((name, float(i)) for i, name in enumerate(TOKENS)))

    def picture(self) -> Picture | None:
        return self.drawn


def shown(kind: str, **rest: Any) -> Shown:
    values = torch.linspace(-1, 2, 12).view(3, 4)
    rows, title = ["0.attn", "0.mlp", "1.attn"], "What <b> costs $5 & more?"
    return Shown(Picture(kind, title, values, rows, TOKENS, "bits", **rest))


@pytest.mark.parametrize("kind", ["grid", "bars", "lines"])
def test_a_picture_has_its_question_its_labels_and_its_unit_and_is_the_same_every_time(kind):
    result = shown(kind)
    drawn = result.plot()

    assert drawn == regard.plot(result)
    assert all(text in drawn for text in ("What &lt;b&gt; costs $5 &amp; more?", "&lt;b&gt;", "$x", "bits"))
    assert "<script" not in drawn and "<date" not in drawn.lower()


def test_cells_are_written_into_a_grid_with_ink_that_can_be_read_on_them():
    drawn = shown("grid", cells=[[f"c{row}{column}" for column in range(4)] for row in range(3)], center=0.0).plot()

    assert all(f"c{row}{column}" in drawn for row in range(3) for column in range(4))


@pytest.mark.parametrize("suffix", ["svg", "png", "html", "csv", "json"])
def test_a_result_is_written_in_the_form_that_its_suffix_says(suffix, tmp_path):
    place = tmp_path / f"lens.{suffix}"
    shown("grid").plot(str(place))
    written = place.read_bytes()

    if suffix == "png":
        with Image.open(place) as image:
            assert min(image.size) > 100 and len(image.convert("RGB").getcolors(1 << 20)) > 20
    if suffix == "csv":
        assert written.decode().splitlines()[:2] == ["token,value", "a,0.0"]
    if suffix == "json":
        assert json.loads(written)["rows"][1] == {"token": "<b>", "value": 1.0}
    if suffix == "html":
        assert b"<svg" in written and b"<td>&lt;b&gt;</td>" in written and b"<b>" not in written
    assert [each.name for each in tmp_path.iterdir()] == [place.name]


def test_a_form_that_is_not_written_and_a_picture_that_is_not_there_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"lens.gif: a result is written as .svg, .*; name a file that ends so"):
        shown("grid").plot(str(tmp_path / "lens.gif"))
    with pytest.raises(ConfigError, match="Shown has a table and no picture; write it as .csv"):
        Shown().plot()
    assert Shown().plot(str(tmp_path / "a.csv")).startswith("token,value")
    assert list(tmp_path.iterdir()) == [tmp_path / "a.csv"]
