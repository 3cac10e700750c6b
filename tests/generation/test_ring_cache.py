"""Behind a window a cache is a ring: a text goes on for ever in the same room, and says what it says without one."""

import warnings

import pytest
import torch
from generation.builders import POSITIONS, S, V, model, prompts, session, slide, translator, trunk, written
from hypothesis import given
from hypothesis import strategies as st
from laws.test_compile import graphs  # noqa: F401  counts the graphs of compiled code
from torch import Tensor
from torch.testing import assert_close

from regard import config as C
from regard.core import model as core
from regard.generation import session as room
from regard.generation.limits import GenerationLimits, ring_length
from regard.inference.model import Model

RADIUS, NEW = 4, 61
LENGTHS = (5, 11, 2)
ENDLESS = [kind for kind in POSITIONS if kind not in ("learned", "onehot")]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Caches of 8, 32, 128, ... slots, so that small texts outgrow them."""
    monkeypatch.setattr(room, "SMALLEST", 8)


def windowed(kind: str = "rotary", **rest) -> Model:
    return model(POSITIONS[kind], mask=f"causal & window({RADIUS})", **rest)


@pytest.mark.spec("S112")
@pytest.mark.parametrize("kind", ENDLESS)
def test_a_ring_says_what_the_loop_without_a_cache_says(kind):
    one, texts = windowed(kind), prompts(*LENGTHS)

    assert written(one, texts, max_new_tokens=NEW) == [slide(one, text, NEW) for text in texts]


@pytest.mark.parametrize("kind", [kind for kind in ENDLESS if kind != "sinusoidal"])
def test_where_distances_count_what_was_said_long_ago_makes_no_difference(kind):
    """Each of two layers sees four tokens back: eight back and itself are all that a token can know of."""
    one, (text,) = windowed(kind), prompts(5)
    said = [*text, *written(one, [text], max_new_tokens=NEW)[0]]

    for place in range(20, len(said)):
        assert slide(one, said[place - 2 * RADIUS - 1 : place], 1) == [said[place]]


@pytest.mark.parametrize("length", [3, 70])
def test_it_takes_the_same_room_for_ever_and_reads_nothing_twice(length):
    one = session(windowed(), prompts(length), max_new_tokens=200)
    reads, inner = [], one.prefill
    one.prefill = lambda: reads.append(1) or inner()
    sizes = [one.cache.capacity for _ in one]

    assert len(reads) <= 2 and set(sizes[10:]) == {RADIUS + 8}
    assert one.cache.order.max() == length + 199 - 1


def test_beyond_its_context_a_window_goes_on_and_nothing_is_said_of_sliding():
    one, (text,) = windowed(), prompts(5)

    assert written(one, [text], max_new_tokens=NEW, context=9) == [slide(one, text, NEW)]  # a warning would be an error


def test_a_translation_has_a_ring_too():
    c, source = trunk(cross="last", mask=f"causal & window({RADIUS})"), torch.randint(V, (1, S))
    one = translator()
    ringed = Model(C.Transformer(embed=one.c.embed, trunk=c, encoder=one.c.encoder, head=one.c.head)).double()
    ringed.load_state_dict(one.state_dict())

    assert written(ringed, [[1]], max_new_tokens=NEW, source=source) == [slide(ringed, [1], NEW, source=source)]


NOT = {
    "no window": dict(mask="causal"),
    "a layer without": dict(mask=("causal", "causal & window(3)")),
    "a way around": dict(mask="causal & (window(3) | global_tokens(2))"),
    "places that end": dict(mask="causal & window(3)", position=POSITIONS["learned"]),
}


@pytest.mark.parametrize("rest", NOT.values(), ids=NOT)
def test_there_is_no_ring_where_something_old_is_still_seen(rest):
    one, texts = model(**rest), prompts(*LENGTHS)

    assert ring_length(one, GenerationLimits()) == 0
    assert written(one, texts, max_new_tokens=40) == [slide(one, text, 40) for text in texts]


def test_sines_go_on_in_a_ring_unless_they_were_trained_on_so_many_places():
    assert ring_length(windowed("sinusoidal"), GenerationLimits()) == RADIUS + 1
    assert ring_length(windowed("sinusoidal"), GenerationLimits(context=99)) == 0
    assert ring_length(windowed("rotary"), GenerationLimits(context=99)) == RADIUS + 1


def test_the_narrowest_window_counts_and_the_widest_layer():
    assert ring_length(model(mask="causal & window(3) & window(5)"), GenerationLimits()) == 4
    assert ring_length(model(mask=("causal & window(3)", "causal & window(6)")), GenerationLimits()) == 7


@pytest.mark.parametrize("kernel", ["linear", "performer"])
def test_a_state_needs_no_larger_cache_however_long_the_text(kernel):
    one = model(attention=C.Attention(heads=3, head_dim=4, kernel=kernel))
    texts, reads = prompts(*LENGTHS), []
    spoken = session(one, texts, max_new_tokens=NEW)
    inner = spoken.prefill
    spoken.prefill = lambda: reads.append(1) or inner()
    said = [list(row) for row in zip(*spoken, strict=True)]

    assert len(reads) == 1
    assert said == [slide(one, text, NEW) for text in texts]


# ---------------------------------------------------------------- the cache itself


def fed(one, given: Tensor, pieces: list[int], capacity: int, real: Tensor | None = None) -> Tensor:
    cache = one.cache(len(given), capacity)
    cache.reach = RADIUS + 1
    parts = zip(given.split(pieces, 1), [None] * len(pieces) if real is None else real.split(pieces, 1), strict=True)
    return torch.cat([one(part, real=there, cache=cache) for part, there in parts], 1)


@torch.no_grad()
@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.integers(0, 3), st.lists(st.integers(0, 6), min_size=3,
       max_size=3), st.sampled_from(["reference", "fused"]))  # fmt: skip
def test_a_ring_is_the_whole_text_however_it_is_cut_and_padded(pieces, spare, left, kernel):
    one = windowed("alibi", attention=C.Attention(heads=3, head_dim=4, kernel=kernel))
    texts = torch.randint(V, (3, sum(pieces)))
    real = torch.arange(sum(pieces)) >= torch.tensor(left)[:, None]
    whole = one(texts, real=real)

    assert_close(fed(one, texts, pieces, RADIUS + max(pieces) + spare, real)[real], whole[real], atol=1e-10, rtol=0)


def test_a_piece_that_would_write_over_what_it_sees_is_refused():
    one = windowed()
    with pytest.raises(ValueError, match="^the cache holds 7 tokens and more were given"):
        fed(one, torch.randint(V, (1, 10)), [6, 4], 7)
    assert fed(one, torch.randint(V, (1, 10)), [7, 3], 7).shape[1] == 10


def test_a_ring_that_has_come_round_cannot_be_rewound_and_one_that_has_not_can():
    one = windowed()
    cache = one.cache(1, 9)
    cache.reach = RADIUS + 1
    one(torch.randint(V, (1, 8)), cache=cache)
    cache.truncate(5)
    one(torch.randint(V, (1, 4)), cache=cache)
    one(torch.randint(V, (1, 3)), cache=cache)

    with pytest.raises(ValueError, match="^rewind: .* nor can a ring cache"):
        cache.truncate(10)


@pytest.mark.slow
@torch.no_grad()
def test_steps_all_around_a_ring_are_one_graph(graphs):  # noqa: F811
    one, texts = core.Transformer(windowed().c).eval(), torch.randint(V, (2, 40))
    eager = fed(one, texts, [5] + [1] * 35, 9)
    graphs.compile(one)

    assert_close(fed(one, texts, [5] + [1] * 35, 9), eager)  # other kernels may run here and there: the last digits
    assert graphs.count == 2


def test_guesses_ahead_do_without_a_ring():
    one, (text,) = windowed(), prompts(5)
    with warnings.catch_warnings(action="ignore"):
        said = one.generate(torch.tensor(text), max_new_tokens=40, temperature=0, prompt_lookup=2)

    assert said.tolist() == slide(one, text, 40)
