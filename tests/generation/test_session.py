"""A session says what the plain loop says: with a cache, in batches, in pieces, and beyond its window."""

import warnings

import pytest
import torch
from generation.builders import LONG, POSITIONS, S, V, model, prompts, session, slide, translator, trunk, written
from hypothesis import given
from hypothesis import strategies as st
from sizes import in_full

from regard import config as C
from regard.generation import session as room
from regard.generation.logits_process import row_generators, sample_tokens
from regard.inference.model import Model

LENGTHS = (5, 11, 2)  # three prompts, padded on the left to eleven
NEW = 23


@pytest.fixture
def small(monkeypatch):
    """Caches of 8, 32, 128, ... slots, so that small texts outgrow them."""
    monkeypatch.setattr(room, "SMALLEST", 8)


# ---------------------------------------------------------------- the loop of the slide


@pytest.mark.spec("S086", "S104")
def test_greedy_is_the_loop_of_the_slide():
    one, (text,) = model(), prompts(7)

    assert written(one, [text], max_new_tokens=NEW) == [slide(one, text, NEW)]


@pytest.mark.spec("S086", "S104", "S110")
@pytest.mark.parametrize("cross", ["last", "layerwise"])
def test_a_translation_is_the_loop_of_the_slide_from_start_to_end(cross):
    one, start, source = translator(cross), 1, torch.randint(V, (1, S))
    free = slide(one, [start], NEW, source=source)
    end = next(id for id in free if id != free[0])  # a token that does come, though not at once
    want = slide(one, [start], NEW, end, source=source)
    (said,) = written(one, [[start]], max_new_tokens=NEW, source=source, ends=frozenset({end}))

    assert 0 < len(want) < NEW
    assert said == [*want, end]


@pytest.mark.spec("S112")
@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)
def test_rows_of_a_padded_batch_say_what_each_says_alone_without_a_cache(position, small):
    one, texts = model(position), prompts(*LENGTHS)

    assert written(one, texts, max_new_tokens=NEW) == [slide(one, text, NEW) for text in texts]


ALIKE = ("sinusoidal", "learned", "alibi")
FAR = pytest.mark.parametrize("kind", ["rotary", "t5", "shaw", *(pytest.param(kind, marks=in_full) for kind in ALIKE)])


@pytest.mark.slow
@pytest.mark.spec("S112")
@FAR
def test_256_greedy_ids_are_those_of_the_loop_without_a_cache(kind):
    one, texts = model(POSITIONS[kind]), prompts(*LENGTHS)

    assert written(one, texts, max_new_tokens=256) == [slide(one, text, 256) for text in texts]


@pytest.mark.slow
@pytest.mark.spec("S112")
@FAR
def test_256_sampled_ids_are_those_of_the_loop_without_a_cache(kind):
    """Small models that are greedy go round in circles; these do not."""
    one, texts, c = model(POSITIONS[kind]), prompts(*LENGTHS), C.SamplingParams(temperature=1.5, seed=8)

    def loop(row: int) -> list[int]:
        dice = row_generators(8, 3)[row]
        return slide(one, texts[row], 256, pick=lambda logits: int(sample_tokens(logits[None], c, [dice])))

    said = written(one, texts, max_new_tokens=256, temperature=1.5, seed=8)
    assert said == [loop(row) for row in range(3)]
    assert all(len(set(row)) > V // 2 for row in said)


# ---------------------------------------------------------------- pieces, sizes, rows


@pytest.mark.parametrize("piece", [1, 3, 4, 11])
def test_a_prompt_read_in_pieces_is_the_prompt_read_at_once(piece, monkeypatch):
    one, texts = model(), prompts(*LENGTHS)
    whole = written(one, texts, max_new_tokens=NEW)
    monkeypatch.setattr(room, "PREFILL_CHUNK", piece)

    assert written(one, texts, max_new_tokens=NEW) == whole


def test_a_prefix_is_read_in_one_piece(monkeypatch):
    one, texts = model(mask="prefix(4)"), prompts(5, 11)
    monkeypatch.setattr(room, "PREFILL_CHUNK", 3)

    assert len(written(one, texts, max_new_tokens=NEW)[0]) == NEW


@given(st.lists(st.integers(1, 9), min_size=2, max_size=3))
def test_rows_of_any_lengths_say_what_each_says_alone(lengths):
    one, texts = model(), prompts(*lengths)

    assert written(one, texts, max_new_tokens=4) == [written(one, [text], max_new_tokens=4)[0] for text in texts]


def test_sampled_rows_do_not_depend_on_what_stands_below_them(small):
    one, texts, how = (
        model(),
        prompts(*LENGTHS),
        dict(max_new_tokens=NEW, temperature=1.3, top_p=0.9, repetition_penalty=1.2, seed=4),
    )

    assert written(one, texts, **how)[:2] == written(one, [texts[0], prompts(3)[0]], **how)[:1] + [
        written(one, [texts[2], texts[1]], **how)[1]
    ]


@pytest.mark.parametrize("length, size", [(1, 256), (255, 256), (256, 1024), (1023, 1024), (1024, 4096)])
def test_a_cache_has_one_of_few_sizes(length, size):
    assert room.cache_bucket(length) == size


def test_a_text_that_outgrows_its_cache_moves_to_a_larger_one(small):
    one = session(model(), prompts(5), max_new_tokens=NEW)
    sizes = [one.cache.capacity for _ in one]

    assert sizes == [8] * 4 + [32] * (NEW - 4)  # the prompt's five slots and three more, then all is read again


def test_the_encoder_reads_its_source_once_however_often_the_cache_grows(small):
    one, calls, source = translator(), [], torch.randint(V, (2, S))
    one.encoder.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    texts = prompts(1, 3)
    said = written(one, texts, max_new_tokens=NEW, source=source)

    assert len(calls) == 1
    assert said == [slide(one, text, NEW, source=source[row : row + 1]) for row, text in enumerate(texts)]


def test_padding_of_a_source_is_not_read():
    one, source = translator(), torch.randint(V, (2, S))
    real = torch.arange(S) < torch.tensor([[4], [S]])
    said = written(one, [[1], [1]], max_new_tokens=NEW, source=source, source_real=real)

    assert said[0] == slide(one, [1], NEW, source=source[:1, :4])


# ---------------------------------------------------------------- ending


@pytest.mark.spec("S110")
def test_a_row_ends_with_its_end_token_and_the_others_go_on():
    one, texts = model(), prompts(*LENGTHS)
    free = written(one, texts, max_new_tokens=NEW)
    end = next(id for id in free[0][2:] if id not in free[0][:2])  # the first row says it at the third token or later
    said = written(one, texts, max_new_tokens=NEW, ends=frozenset({end}))

    assert said == [row[: row.index(end) + 1] if end in row else row for row in free]
    assert len(said[0]) < NEW


@pytest.mark.spec("S110")
@pytest.mark.parametrize("new", [0, 1, 5])
def test_no_row_is_longer_than_asked_for(new):
    assert [len(row) for row in written(model(), prompts(*LENGTHS), max_new_tokens=new)] == [new] * 3


def test_a_row_that_is_ended_from_outside_is_not_listened_to():
    one = session(model(), prompts(3, 3), max_new_tokens=NEW)
    steps = []
    for ids in one:
        one.stop_row(0)
        steps.append(ids)

    assert [ids[0] is None for ids in steps] == [False] + [True] * (NEW - 1)
    assert None not in [ids[1] for ids in steps]


def test_a_session_is_over_when_all_its_rows_are():
    one = session(model(), prompts(3, 3), max_new_tokens=NEW)
    steps = 0
    for _ in one:
        steps += 1
        one.stop_row(0)
        one.stop_row(1)

    assert steps == 1


def test_rows_that_have_ended_do_not_make_the_others_read_again(small):
    one = session(model(), prompts(7, 1), max_new_tokens=NEW, context=8)
    reads, inner = [], one.prefill
    one.prefill = lambda: reads.append(1) or inner()
    with warnings.catch_warnings(action="ignore"):
        for _ in one:
            one.stop_row(0)  # the long row, whose text alone would fill the window again and again

    assert len(reads) <= 2 + NEW // 4


# ---------------------------------------------------------------- beyond the window


def windowed(one, text: list[int], new: int, window: int) -> list[int]:
    """What a session promises: read the last `window` tokens, and when they are full, the newest half of them."""
    kept, said = text[-window:], []
    for _ in range(new):
        (token,) = slide(one, kept, 1)
        said.append(token)
        kept = [*kept, token]
        kept = kept[-(window // 2) :] if len(kept) > window else kept
    return said


@pytest.mark.parametrize("how", ["context", "learned", "both"])
def test_a_long_text_slides_by_half_its_window_and_each_row_in_its_own_time(how):
    position = C.LearnedPosition(length=9 if how == "learned" else 13) if how != "context" else C.RotaryPosition()
    one, texts = model(position), prompts(4, 9, 1)
    context = None if how == "learned" else 9

    with pytest.warns(
        UserWarning, match="^max_new_tokens: .* the 9 that this model reads at once; it continues from the newest 4,"
    ):
        said = written(one, texts, max_new_tokens=40, context=context)
    assert said == [windowed(one, text, 40, 9) for text in texts]


def test_a_prompt_longer_than_the_window_keeps_its_end():
    one, (text,) = model(), prompts(17)

    with pytest.warns(UserWarning, match="^prompt: 17 tokens are more than the 9 .*; it begins from the last 9$"):
        said = written(one, [text], max_new_tokens=1, context=9)
    assert said == [slide(one, text[-9:], 1)]


def test_sliding_is_said_once():
    with warnings.catch_warnings(record=True, action="always") as caught:
        written(model(), prompts(17, 3), max_new_tokens=60, context=9)

    assert len(caught) == 1


def test_a_text_that_just_fits_its_window_is_told_nothing():
    written(
        model(C.LearnedPosition(length=9)), prompts(4), max_new_tokens=6
    )  # the sixth token is never read; a warning would be an error


@pytest.mark.parametrize("window", [1, 2])
def test_the_smallest_windows_work(window):
    one, (text,) = model(), prompts(3)
    with warnings.catch_warnings(action="ignore"):
        (said,) = written(one, [text], max_new_tokens=9, context=window)

    assert said == windowed(one, text, 9, window) if window > 1 else len(said) == 9


def test_a_translation_slides_too():
    one, source = translator(), torch.randint(V, (1, S))

    with pytest.warns(UserWarning, match="newest 4"):
        assert len(written(one, [[1]], max_new_tokens=30, source=source, context=9)[0]) == 30


# ---------------------------------------------------------------- what is never said


def test_ids_without_a_piece_in_the_tokenizer_are_never_said():
    one = model()
    with torch.no_grad():
        one.head.weight[11:] *= 5  # the model would love to
    free = written(one, prompts(4), max_new_tokens=NEW, temperature=1.0, seed=1)
    said = written(one, prompts(4), max_new_tokens=NEW, temperature=1.0, seed=1, known=11)

    assert max(free[0]) >= 11 > max(said[0])


def test_padding_is_never_said_and_not_read():
    one, (text,) = model(embed=C.TextEmbedding(vocab=V, pad_id=3)), prompts(6)
    text = [id for id in text if id != 3]
    free = written(one, [text], max_new_tokens=60, temperature=5.0, seed=1)[0]

    assert 3 not in free and len(set(free)) > V // 2
    assert written(one, [[3, 3, *text]], max_new_tokens=NEW) == written(one, [text], max_new_tokens=NEW)


@pytest.mark.parametrize("penalty, more", [(3.0, False), (0.5, True)])
def test_repetition_is_paid_for_prompt_and_text_alike(penalty, more):
    one, texts = model(), prompts(5, 9)
    plain, said = (
        written(one, texts, max_new_tokens=NEW, repetition_penalty=p, temperature=0.8, seed=2) for p in (1.0, penalty)
    )
    variety = [sum(len(set(a + b)) for a, b in zip(texts, rows, strict=True)) for rows in (plain, said)]

    assert (variety[1] < variety[0]) == more


# ---------------------------------------------------------------- the model afterwards


def test_a_model_in_training_writes_without_dropout_and_goes_on_training():
    one, (text,) = model(dropout=C.Dropout(embed=0.5, residual=0.5)), prompts(5)
    calm = written(one, [text], max_new_tokens=NEW)
    one.train()
    one.trunk.blocks[1].eval()
    modes = [each.training for each in one.modules()]

    assert written(one, [text], max_new_tokens=NEW) == calm
    assert [each.training for each in one.modules()] == modes


def test_between_steps_gradients_and_training_are_as_they_were():
    one = model().train()
    for _ in session(one, prompts(5), max_new_tokens=3):
        loss = one(torch.tensor(prompts(4))).square().sum()
        loss.backward()
        assert one.training and not torch.is_inference_mode_enabled()

    assert all(weight.grad is not None for weight in one.parameters())


def test_the_same_seed_writes_the_same_text_and_a_fresh_one_is_told():
    one, texts = model(), prompts(5, 3)
    first = session(one, texts, max_new_tokens=NEW, temperature=1.0)
    again = written(one, texts, max_new_tokens=NEW, temperature=1.0, seed=first.seed)

    assert [list(row) for row in zip(*first, strict=True)] == again
    assert session(one, texts).seed != first.seed


# ---------------------------------------------------------------- refusals

READ = torch.ones(1, S, dtype=torch.long)
WRONG = {
    "an empty row": (lambda: session(model(), [[1], []]), C.DataError, "^prompt: 0 tokens are too few"),
    "an id too large": (lambda: session(model(), [[1, V]]), C.DataError, f"^prompt: id {V} is outside .* of {V};"),
    "an id below zero": (lambda: session(model(), [[-1]]), C.DataError, "^prompt: id -1 is outside"),
    "half a prefix": (lambda: session(model(mask="prefix(4)"), [[1, 2]]), C.DataError, "^prompt: 2 .* needs 4"),
    "an encoder": (lambda: session(model(mask="full"), [[1]]), C.ConfigError, "not autoregressive: trunk.mask"),
    "no source": (lambda: session(translator(), [[1]]), C.ConfigError, "^source: none given for 1 rows"),
    "too few sources": (lambda: session(translator(), [[1], [1]], source=READ), C.ConfigError, "^source: 1 given"),
    "a needless source": (lambda: session(model(), [[1]], source=READ), C.ConfigError, "^source: .* no encoder"),
}  # fmt: skip


@pytest.mark.parametrize("wrong, error, message", WRONG.values(), ids=WRONG)
def test_what_cannot_be_continued_is_refused_before_the_first_step(wrong, error, message):
    with pytest.raises(error, match=message):
        wrong()


def test_a_head_without_words_is_refused():
    c = C.Transformer(embed=C.TextEmbedding(vocab=V), trunk=trunk(), head=C.PoolingHead())

    with pytest.raises(C.ConfigError, match="^head.kind: 'pooling' has no vocabulary logits"):
        session(Model(c), [[1]])


def test_broken_weights_are_told_in_a_sentence():
    one = model()
    with torch.no_grad():
        one.head.weight[0, 0] = torch.nan

    with pytest.raises(C.RunError, match="^the model's logits are not finite"):
        written(one, prompts(3), max_new_tokens=2)


def test_positions_of_these_tests_reach_far_enough():
    assert max(LENGTHS) + 256 <= LONG
