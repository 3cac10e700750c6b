"""The page that says when to use what knows everything that can be used."""

import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from regard import config as C
from regard.config.trunk import KERNELS
from regard.core.layers import MIXERS
from regard.core.model import FRONT_ENDS

PAGE = Path(__file__).parents[2] / "docs" / "choosing.md"
# chosen by "auto" where they are the fastest, and no choice of meaning
FASTEST = {"auto", "window2d", "flex", "short", "sparse", "tiled_flash", "varlen"}


def first_words(column: str) -> list[str]:
    """The code that begins each row of the table whose first column is called so."""
    [table] = re.findall(
        rf"^\| {re.escape(column)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE.read_text("utf8"), re.MULTILINE
    )
    return [re.match(r"\| `(\w+)", line)[1] for line in table.splitlines()]


def choices(part: type, setting: str) -> set[str]:
    return set(get_args(get_type_hints(part)[setting]))


@pytest.mark.spec("S148")
def test_every_attention_that_means_something_else_has_its_row():
    rows = first_words("kernel")

    assert set(KERNELS) - FASTEST - {"additive"} <= set(rows)
    assert set(rows) <= set(KERNELS)


@pytest.mark.spec("S148")
@pytest.mark.parametrize("column, known", [
    ("`embed.kind`", set(FRONT_ENDS)),
    ("`mixer.kind`", set(MIXERS)),
    ("`trunk.cell`", choices(C.RecurrentStack, "cell")),
])  # fmt: skip
def test_every_front_end_every_mixer_and_every_recurrent_stack_has_its_row(column, known):
    assert sorted(first_words(column)) == sorted(known)


@pytest.mark.spec("S148")
def test_the_page_says_where_a_transformer_is_not_the_answer():
    [answer] = re.findall(
        r"^A transformer is not the answer where (.+?)\n\n", PAGE.read_text("utf8"), re.DOTALL | re.MULTILINE
    )

    assert all(word in answer for word in ("data are few", "each step must cost the same", "gradient-boosted trees"))


def test_every_page_that_it_points_to_is_there():
    links = re.findall(r"\]\(([\w./-]+)\)", PAGE.read_text(encoding="utf8"))

    assert len(links) >= 3
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
