"""Rotary positions and every published scaling of them, against `transformers`."""

import pytest
import torch
from parity.families import ids, pair
from parity.tolerance import NORM, assert_near
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from regard import config as C
from regard.core.positions import build_position
from regard.core.tokens import sequence_tokens

WIDTH, LENGTH = 14, 16  # of a head (7 pairs of channels, as in `families.llama`), and the trained length
SHORT, LONG = (1.0, 1.1, 1.3, 1.7, 2.0, 2.5, 3.0), (1.0, 1.5, 2.5, 4.0, 6.0, 8.0, 9.0)

# Each scaling: what transformers calls it, what we call it, and with how many tokens it is asked.
SCALINGS = {
    "linear": (dict(factor=3.0), dict(factor=3.0), 21),
    "dynamic within the length": (dict(factor=3.0), dict(factor=3.0, original_length=LENGTH), 9),
    "dynamic beyond the length": (dict(factor=3.0), dict(factor=3.0, original_length=LENGTH), 21),
    "yarn": (
        dict(factor=5.0, original_max_position_embeddings=4096),
        dict(factor=5.0, original_length=4096),
        21,
    ),
    "yarn with its own ramp": (
        dict(factor=5.0, original_max_position_embeddings=LENGTH, beta_fast=2.0, beta_slow=0.1),
        dict(factor=5.0, original_length=LENGTH, beta_fast=2.0, beta_slow=0.1),
        21,
    ),
    "yarn beyond the last channel": (
        dict(factor=5.0, original_max_position_embeddings=2**20, beta_fast=4096.0, beta_slow=0.001),
        dict(factor=5.0, original_length=2**20, beta_fast=4096.0, beta_slow=0.001),
        21,
    ),
    "yarn with its own loudness": (
        dict(factor=5.0, original_max_position_embeddings=4096, attention_factor=1.25),
        dict(factor=5.0, original_length=4096, attention_factor=1.25),
        21,
    ),
    "llama3": (
        dict(factor=8.0, original_max_position_embeddings=1024, low_freq_factor=1.0, high_freq_factor=4.0),
        dict(factor=8.0, original_length=1024, low_freq_factor=1.0, high_freq_factor=4.0),
        21,
    ),
    "longrope within the length": (
        dict(factor=4.0, original_max_position_embeddings=LENGTH, short_factor=list(SHORT), long_factor=list(LONG)),
        dict(factor=4.0, original_length=LENGTH, freq_factors=SHORT),
        9,
    ),
    "longrope beyond the length": (
        dict(factor=4.0, original_max_position_embeddings=LENGTH, short_factor=list(SHORT), long_factor=list(LONG)),
        dict(factor=4.0, original_length=LENGTH, freq_factors=LONG),
        21,
    ),
}
EVERY = pytest.mark.parametrize("name", SCALINGS)


def turned(scaling: str, ours: dict, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The angle by which each pair of channels turns per step, and its loudness, as token 1 of `count` meets them."""
    places = sequence_tokens(torch.zeros(1, count, 1))
    place = build_position(C.RotaryPosition(scaling=scaling, **ours), WIDTH, 1, WIDTH).prepare(places, places)
    cos, sin = place.cos[0, 0, 1], place.sin[0, 0, 1]
    return torch.atan2(sin, cos), torch.hypot(sin, cos)


def said(scaling: str, rope: dict) -> dict:
    """A scaling in the words of LlamaConfig; what was trained is shorter than what longrope may read."""
    length = 4 * LENGTH if scaling == "longrope" else LENGTH
    rope = dict(rope_type=scaling, rope_theta=10_000.0, **rope)
    return dict(max_position_embeddings=length, rope_parameters=rope)


def init(scaling: str, rope: dict, count: int) -> tuple[torch.Tensor, float]:
    return ROPE_INIT_FUNCTIONS[scaling](LlamaConfig(head_dim=WIDTH, **said(scaling, rope)), "cpu", seq_len=count)


@EVERY
def test_frequencies_are_equal(name):
    scaling, (rope, ours, count) = name.split()[0], SCALINGS[name]

    assert_near(turned(scaling, ours, count)[0], init(scaling, rope, count)[0], NORM)


@EVERY
def test_loudness_is_equal(name):
    scaling, (rope, ours, count) = name.split()[0], SCALINGS[name]
    loud = turned(scaling, ours, count)[1]

    assert_near(loud, torch.full_like(loud, init(scaling, rope, count)[1]), NORM)


def test_a_partly_turned_head_turns_the_same_channels_at_the_same_pace():
    part = init("linear", dict(factor=3.0, partial_rotary_factor=0.6), 5)[0]

    assert_near(turned("linear", dict(factor=3.0, fraction=0.6), 5)[0], part, NORM)


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
def test_llama_logits_are_equal_for_every_base(base):
    theirs, ours = pair("llama", said=dict(rope_parameters=dict(rope_theta=base)), base=base)
    words = ids(21)

    assert_near(ours(words), theirs(words).logits)


@EVERY
def test_llama_logits_are_equal_under_every_scaling(name):
    scaling, (rope, rotary, count) = name.split()[0], SCALINGS[name]
    theirs, ours = pair("llama", said=said(scaling, rope), scaling=scaling, **rotary)
    words = ids(count)

    assert_near(ours(words), theirs(words).logits)
