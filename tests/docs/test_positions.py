"""The numbers that docs/positions.md states, and its proof, checked."""

import re
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from regard.core.positions import sinusoidal_table

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "positions.md").read_text(encoding="utf8")


def step(k, width):
    """T_k of the page: a rotation by k·w_i for each pair of channels."""
    angle = k * 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    rows = torch.stack([angle.cos(), angle.sin(), -angle.sin(), angle.cos()], -1)
    return torch.block_diag(*rows.unflatten(-1, (2, 2)))


def table(count, width):
    return sinusoidal_table(torch.arange(count, dtype=torch.float64), width)


@pytest.mark.spec("S030", "S190")
@pytest.mark.parametrize("k", [1, 7, 40, -7])
def test_the_page_proves_that_a_step_is_a_rotation_and_it_is(k):
    assert "**Claim.**" in PAGE and "**Proof.**" in PAGE and "∎" in PAGE

    at = torch.arange(50, 150, dtype=torch.float64)
    residual = sinusoidal_table(at, 512) @ step(k, 512).mT - sinusoidal_table(at + k, 512)

    assert residual.abs().max() <= 1e-12


@pytest.mark.spec("S190")
def test_steps_add_up_and_turn_back():
    assert_close(step(3, 64) @ step(5, 64), step(8, 64))
    assert_close(step(3, 64).mT, step(-3, 64))


@pytest.mark.spec("S190")
def test_a_head_that_turns_its_query_by_a_step_looks_that_far_ahead():
    positions = table(60, 64)
    scores = positions[:50] @ step(4, 64).mT @ positions.mT

    assert scores.argmax(-1).tolist() == list(range(4, 54))


@pytest.mark.spec("S031")
@pytest.mark.parametrize("width, last", [(64, 5), (128, 11), (256, 24), (512, 43), (1024, 68)])
def test_nearer_is_more_alike_up_to_the_distance_that_the_page_states_and_no_further(width, last):
    positions = table(200, width)
    alike = positions @ positions[0]

    assert (alike[: last + 1].diff() < 0).all()
    assert alike[last + 1] > alike[last]
    assert re.search(rf"\b{last} (steps )?at (d = )?{width}\b", PAGE)


@pytest.mark.spec("S031")
def test_likeness_depends_on_the_distance_alone():
    positions = table(100, 512)
    alike = positions @ positions.mT

    assert_close(alike[30, 30:90], alike[0, :60])
    assert_close(alike[0, 43:45], torch.tensor([134.759, 134.770], dtype=torch.float64), rtol=0, atol=1e-3)
