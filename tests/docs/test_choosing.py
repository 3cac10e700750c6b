"""The page that says when to use what knows everything that can be used."""

import re
from pathlib import Path

import pytest

from regard.config.trunk import KERNELS

PAGE = Path(__file__).parents[2] / "docs" / "choosing.md"
# chosen by "auto" where they are the fastest, and no choice of meaning
FASTEST = {"auto", "window2d", "flex", "short", "sparse", "tiled_flash", "varlen"}


@pytest.mark.spec("S148")
def test_every_attention_that_means_something_else_has_its_row():
    rows = re.findall(r"^\| `(\w+)", PAGE.read_text(encoding="utf8"), re.MULTILINE)

    assert set(KERNELS) - FASTEST - {"additive"} <= set(rows)
    assert set(rows) <= set(KERNELS)


@pytest.mark.spec("S148")
def test_the_page_names_what_is_no_transformer_and_when_to_take_it():
    text = PAGE.read_text(encoding="utf8")

    for word in ("convolution", "recurrent", "linear model", "gradient-boosted", "pre-trained", "graphs", "images"):
        assert word in text, word
    assert "is not the answer where" in text


def test_every_page_that_it_points_to_is_there():
    links = re.findall(r"\]\(([\w./-]+)\)", PAGE.read_text(encoding="utf8"))

    assert len(links) >= 3
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
