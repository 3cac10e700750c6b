"""A session can be copied, branched and saved at any step: what comes after is what would have come."""

import json
import warnings

import pytest
import torch
from generation.builders import POSITIONS, S, V, model, prompts, session, translator

from regard import config as C
from regard.generation import limits
from regard.generation import session as room
from regard.generation.session_file import load_session

NEW, CUT = 23, 9
HOW = {
    "greedy": dict(),
    "drawn": dict(temperature=1.4, top_p=0.95, seed=3),
    "all filters": dict(temperature=1.2, typical_p=0.9, repetition_penalty=1.3, frequency_penalty=0.4,
                        presence_penalty=0.2, no_repeat_ngram_size=3, logit_bias={4: 1.5}, min_new_tokens=7, seed=5,
                        ends=frozenset({3, 8})),
}  # fmt: skip
EVERY = pytest.mark.parametrize("how", HOW.values(), ids=HOW)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Caches of 8, 32, 128, ... slots, so that small texts outgrow them."""
    monkeypatch.setattr(room, "SMALLEST", 8)


def steps(one, count: int) -> list[list[int | None]]:
    return [step for _, step in zip(range(count), one, strict=False)]


@pytest.mark.parametrize("cut", [0, 1, CUT])
@EVERY
def test_a_copy_says_what_the_original_says_and_neither_hears_the_other(how, cut):
    one = session(model(), prompts(5, 11, 2), max_new_tokens=NEW, **how)
    begun = steps(one, cut)
    other, third = one.copy(), one.copy()
    said = list(one)

    assert list(other) == said and list(third) == said
    assert len(begun) + len(said) <= NEW


@EVERY
def test_a_row_may_branch_many_times_and_rows_may_be_left_out(how):
    one = session(model(), prompts(5, 11, 2), max_new_tokens=NEW, **how)
    steps(one, CUT)
    rows = [2, 0, 2, 2]
    other = one.branch(rows)
    want, said = list(zip(*one, strict=True)), list(zip(*other, strict=True))

    for place, row in enumerate(rows):
        whole = min(len(want[row]), len(said[place]))  # the session of other rows may go on for longer
        assert said[place][:whole] == want[row][:whole]


def test_branches_with_seeds_of_their_own_differ():
    one = session(model(), prompts(5), max_new_tokens=NEW, temperature=1.5, seed=1)
    steps(one, CUT)
    other = one.branch([0, 0])
    other.sampler.reseed(7)
    first, second = zip(*other, strict=True)

    assert first != second


@pytest.mark.parametrize("cross", ["last", "layerwise"])
def test_a_translation_branches_with_its_source(cross):
    source = torch.randint(V, (2, S))
    real = torch.arange(S) < torch.tensor([[4], [S]])
    one = session(translator(cross), [[1], [2]], max_new_tokens=NEW, source=source, source_real=real)
    steps(one, CUT)
    other, want = one.branch([1, 0]), list(zip(*one, strict=True))

    assert list(zip(*other, strict=True)) == want[::-1]


@pytest.mark.parametrize("mask", ["causal", "causal & window(3)"])
@pytest.mark.parametrize("cut", [0, 1, CUT, 17])
@EVERY
def test_a_saved_session_goes_on_with_the_same_ids(how, cut, mask, tmp_path):
    made = model(mask=mask)
    one = session(made, prompts(5, 11, 2), max_new_tokens=NEW, **how)
    steps(one, cut)
    one.save(tmp_path / "session")
    found = limits.GenerationLimits(ends=how.get("ends", frozenset()))
    other = load_session(made, tmp_path / "session", found)

    assert [len(text) for text in other.texts] == [len(text) for text in one.texts]
    assert list(other) == list(one)
    assert other.texts == one.texts and other.seed == one.seed


def test_what_was_computed_is_kept_to_the_last_bit(tmp_path):
    made = model().float()
    one = session(made, prompts(5, 11), max_new_tokens=NEW)
    steps(one, CUT)
    one.save(tmp_path / "session")
    other = load_session(made, tmp_path / "session", made.generation_limits)

    for mine, kept in zip(one.cache.tables(), other.cache.tables(), strict=True):
        assert torch.equal(mine, kept)


@pytest.mark.parametrize("cross", ["last", "layerwise"])
def test_a_saved_translation_goes_on(cross, tmp_path):
    made, source = translator(cross), torch.randint(V, (2, S))
    one = session(made, [[1], [2]], max_new_tokens=NEW, source=source)
    steps(one, CUT)
    one.save(tmp_path / "session")

    assert list(load_session(made, tmp_path / "session", made.generation_limits)) == list(one)


def test_a_saved_session_slides_as_it_would_have(tmp_path):
    made = model()
    with warnings.catch_warnings(action="ignore"):
        one = session(made, prompts(5, 7), max_new_tokens=40, context=9)
        steps(one, 15)
        one.save(tmp_path / "session")
        assert list(load_session(made, tmp_path / "session", limits.GenerationLimits(context=9))) == list(one)


def test_a_session_of_another_model_is_refused(tmp_path):
    one = session(model(), prompts(5), max_new_tokens=NEW)
    steps(one, CUT)
    one.save(tmp_path / "session")

    with pytest.raises(C.DataError, match="this session is of another model; load the one"):
        load_session(other := model(POSITIONS["alibi"]), tmp_path / "session", other.generation_limits)


def test_a_damaged_file_is_told_in_a_sentence(tmp_path):
    from regard.hub.weights import load_tensors_lazy, save_tensors

    made, path = model(), tmp_path / "session"
    one = session(made, prompts(5), max_new_tokens=NEW)
    steps(one, CUT)
    one.save(path)
    tensors = {name: table.clone() for name, table in load_tensors_lazy(path).items()}
    told = json.loads(bytes(tensors["said"].tolist()))
    for harm in ({"texts": 3}, {"format": 99}, {"settings": {"top_k": -1}}, {"cache": {"rows": 2}}, {"whole": [[999]]}):
        words = torch.tensor(list(json.dumps(told | harm).encode()), dtype=torch.uint8)
        save_tensors(path, tensors | {"said": words})
        with pytest.raises(C.DataError, match="^.*session"):
            load_session(made, path, made.generation_limits)
    for name in ("said", "chance.0", "cache.order", "cache.1.0"):
        save_tensors(path, {other: table for other, table in tensors.items() if other != name})
        with pytest.raises(C.DataError, match="incomplete or damaged session file"):
            load_session(made, path, made.generation_limits)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(C.DataError, match="not whole safetensors"):
        load_session(made, path, made.generation_limits)


def test_nothing_is_left_behind_where_a_session_cannot_be_written(tmp_path):
    one = session(model(), prompts(5), max_new_tokens=NEW)
    steps(one, CUT)
    (tmp_path / "session").mkdir()

    with pytest.raises(OSError):
        one.save(tmp_path / "session")
    assert [path.name for path in tmp_path.iterdir()] == ["session"]


def test_a_session_that_is_iterated_in_two_goes_makes_no_more_than_asked():
    one = session(model(), prompts(5), max_new_tokens=7)

    assert len(steps(one, 3)) + len(list(one)) == 7
