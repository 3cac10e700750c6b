"""Steps that are taken ahead: a session that has gone on before it was heard is the same session to everybody."""

import gc

import pytest
import torch

import regard
from regard import config as C
from regard.generation import cuda_graphs

NEW = 60


@pytest.fixture
def devices():
    """The devices that record, to be changed."""
    kinds = list(cuda_graphs.GRAPH_DEVICES)
    yield cuda_graphs.GRAPH_DEVICES
    cuda_graphs.GRAPH_DEVICES[:] = kinds


@pytest.fixture
def ahead(devices):
    """Steps are played here as well, though a CPU gains nothing by it."""
    devices[:] = ["cpu"]


@pytest.fixture
def model():
    torch.manual_seed(0)
    trunk = C.Trunk(dim=32, depth=2, mask="causal", position=C.RotaryPosition(), attention=C.Attention(heads=4))
    model = regard.Model(C.Transformer(embed=C.TextEmbedding(vocab=50), trunk=trunk)).double()
    for each in model.parameters():
        each.data = torch.randn_like(each) * 0.4
    return model


def session(model, **settings):
    return model.session([[1, 2, 3], [4, 5, 6, 7, 8]], **({"temperature": 0, "max_new_tokens": NEW} | settings))


@pytest.fixture
def plain(model):
    return list(session(model))


def begun(model, count=20, **settings):
    one = session(model, **settings)
    steps = iter(one)
    return one, [next(steps) for _ in range(count)], steps


def test_what_is_said_is_the_same(model, plain, ahead):
    one = session(model)

    assert list(one) == plain
    assert one.decode_graph is not None


def test_drawn_texts_are_the_same(model, devices):
    told = list(session(model, temperature=1.0, seed=3))
    devices[:] = ["cpu"]

    assert list(session(model, temperature=1.0, seed=3)) == told


def test_a_copy_goes_on_from_what_was_heard(model, plain, ahead):
    one, first, rest = begun(model)
    other = one.copy()

    assert first + list(other) == plain
    assert first + list(rest) == plain


def test_a_saved_session_goes_on_from_what_was_heard(model, plain, ahead, tmp_path):
    one, first, _ = begun(model)
    one.save(tmp_path / "session")

    assert first + list(model.resume_session(tmp_path / "session")) == plain


def test_whoever_looks_sees_the_step_that_is_heard(model, plain, ahead):
    one, first, rest = begun(model)
    with regard.looking(model, "logits") as seen:
        first.append(next(rest))

    assert first + list(rest) == plain
    assert seen["logits"][:, -1].argmax(-1).tolist() == plain[20]


def test_a_window_that_is_full_begins_again_from_its_newest_half(model, devices):
    model.context = 30
    with pytest.warns(UserWarning, match="the text has more tokens"):
        told = list(session(model))
    devices[:] = ["cpu"]

    with pytest.warns(UserWarning, match="the text has more tokens"):
        assert list(session(model)) == told


def test_a_recording_is_used_again_and_not_by_two_at_once(model, plain, ahead):
    one, first, rest = begun(model)
    two, second, _ = begun(model)
    assert one.decode_graph is not two.decode_graph
    assert first + list(rest) == plain
    used = one.decode_graph
    del one, rest
    gc.collect()

    three = session(model)
    assert list(three) == plain
    assert three.decode_graph is used


def pairs():
    """Two prompts at a time: of one shape, of another, of the first again; others each time."""
    for place, lengths in enumerate([(5, 3), (5, 3), (4, 4), (5, 1), (4, 4), (5, 5), (2, 5), (4, 4)]):
        yield [[(7 * place + 3 * row + at) % 50 for at in range(length)] for row, length in enumerate(lengths)]


def test_prompts_of_a_shape_that_came_before_are_played(model, ahead):
    told, seen = [], []
    for texts in pairs():
        one = model.session(texts, temperature=0, max_new_tokens=NEW)
        told.append(list(one))
        seen.append(one.decode_graph)
        del one
    assert len(set(map(id, seen))) == 1
    assert {shape: reading is not None for shape, reading in seen[0].readings.known.items()} == {
        (5, True): True, (5, False): False, (4, False): True,
    }  # fmt: skip
    cuda_graphs.GRAPH_DEVICES.clear()

    assert told == [list(model.session(texts, temperature=0, max_new_tokens=NEW)) for texts in pairs()]


def test_the_shapes_that_are_kept_are_the_newest(model, ahead, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MAX_PREFILL_SHAPES", 2)
    for length in (3, 4, 3, 5, 3):
        one = model.session([list(range(length))], temperature=0, max_new_tokens=NEW)
        list(one)
        known = one.decode_graph.readings.known
        del one

    assert list(known) == [(5, False), (3, False)]


def test_a_long_prompt_is_read_as_written(model, ahead, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MOST", 3)
    for _ in range(3):
        one = model.session([[1, 2, 3, 4]], temperature=0, max_new_tokens=NEW)
        list(one)

    assert not one.decode_graph.readings.known


def test_whoever_looks_sees_a_prompt_read(model, ahead):
    for _ in range(3):
        list(session(model))
    with regard.looking(model, "logits") as seen:
        next(iter(session(model)))

    assert seen["logits"].shape == (2, 5, 50)


def test_a_prompt_that_cannot_be_recorded_is_read_as_written_and_told_once(model, plain, ahead, monkeypatch):
    def fail(*given):
        raise RuntimeError("not while capturing\nand more")

    monkeypatch.setattr(cuda_graphs, "PrefillGraph", fail)
    list(session(model)), list(session(model))  # one has no recording to be read into yet
    with pytest.warns(UserWarning, match=r"cannot be captured \(not while capturing\)"):
        assert list(session(model)) == plain
    assert list(session(model)) == plain


def test_weights_that_moved_are_not_played(model, ahead):
    list(session(model))
    for each in model.parameters():
        each.data = each.data * 1.1
    gc.collect()
    told = list(session(model))
    cuda_graphs.GRAPH_DEVICES.clear()

    assert list(session(model)) == told


def test_weights_that_lie_flipped_are_laid_out(model, plain, ahead):
    weight = model.trunk.blocks[0].mlp.up.weight
    weight.data = weight.data.T.contiguous().T

    assert list(session(model)) == plain
    assert weight.is_contiguous()


def test_a_short_text_is_not_recorded(model, ahead):
    one = session(model, max_new_tokens=cuda_graphs.MIN_STEPS - 1)
    list(one)

    assert one.decode_graph is None


def test_logits_that_are_no_numbers_are_told(model, ahead):
    _, _, rest = begun(model)
    with torch.no_grad():
        for each in model.parameters():
            each.fill_(torch.nan)

    with pytest.raises(C.RunError, match="not finite"):
        list(rest)


def test_an_engine_says_the_same_with_a_recorded_step(model, plain, ahead):
    from regard.engine.engine import Engine
    from regard.engine.request_queue import GenerationRequest

    engine, told = Engine(model, slots=2, max_context=100), [[], []]
    for row, ids in enumerate(([1, 2, 3], [4, 5, 6, 7, 8])):
        asked = GenerationRequest(ids=tuple(ids), c=C.SamplingParams(temperature=0, max_new_tokens=NEW))
        engine.submit(asked, lambda one, row=row: told[row].append(one.id) if one.id is not None else None)
    while engine.step():
        pass

    assert engine.slots.captured is not None
    assert [list(row) for row in zip(*told, strict=True)] == plain
