"""Beam search finds what a patient person finds: everything, if it may keep everything, and else the same few."""

import math
from contextlib import nullcontext
from itertools import product

import pytest
import torch
from generation.builders import POSITIONS, Parrot, S, V, model, prompts, slide, translator
from hypothesis import given
from hypothesis import strategies as st

from regard import config as C
from regard.config.generation import BeamSearchParams
from regard.core.hooks import looking
from regard.generation import beam_search as room
from regard.generation.beam_search import BeamHypothesis, beam_search, largest_columns
from regard.generation.limits import GenerationLimits
from regard.native.quantize import pack_model

LENGTHS = (5, 11, 2)  # three prompts, padded on the left to eleven
NEW = 9
FEW = 5  # words of a vocabulary small enough to say everything in it


def found(
    one, texts, ends=(), context=None, known=None, max_new_tokens=None, source=None, source_real=None, **settings
):
    limits = GenerationLimits(context=context, known=known, ends=frozenset(ends))
    c = BeamSearchParams(**dict(max_new_tokens=NEW) | settings)
    return beam_search(one, texts, c, limits, max_new_tokens=max_new_tokens, source=source, source_real=source_real)


def assert_same(ours: list[list[BeamHypothesis]], theirs: list[list[BeamHypothesis]], atol: float = 1e-10) -> None:
    assert [[one.ids for one in row] for row in ours] == [[one.ids for one in row] for row in theirs]
    scores = ([one.score for row in rows for one in row] for rows in (ours, theirs))
    torch.testing.assert_close(*map(torch.tensor, scores), atol=atol, rtol=0)


@torch.no_grad()
def logs(one, text: list[int], **source) -> torch.Tensor:  # (V,)
    """log p of what comes next, with everything read again."""
    return one(torch.tensor([text]), **source)[0, -1].log_softmax(-1)


def plain(one, text: list[int], c: BeamSearchParams, ends=(), new: int | None = None, **source) -> list[BeamHypothesis]:
    """Beam search as told aloud: no cache, no batch, no tensors but the model's."""
    beams, done, new = [(0.0, [])], [], new or c.max_new_tokens
    for length in range(1, new + 1):
        grown = [(log + step, [*said, id]) for log, said in beams
                 for id, step in enumerate(logs(one, text + said, **source).tolist())]  # fmt: skip
        grown = sorted(grown, key=lambda each: -each[0])[: max(2, 1 + len(ends)) * c.num_beams]
        over = [each[1][-1] in ends or length == new for each in grown]
        done += [BeamHypothesis(tuple(said), log / length**c.length_penalty)
                 for (log, said), ended in zip(grown[: c.num_beams], over, strict=False) if ended]  # fmt: skip
        done = sorted(done, key=lambda each: -each.score)[: c.num_beams]
        beams = [each for each, ended in zip(grown, over, strict=True) if not ended][: c.num_beams]
        at = new if c.early_stopping == "never" and c.length_penalty > 0 else length
        best = beams[0][0] / at**c.length_penalty if beams else -math.inf
        if len(done) == c.num_beams and (c.early_stopping is True or best <= done[-1].score):
            break
    return done[: c.num_return_sequences]


# ---------------------------------------------------------------- the true optimum


def every(one, text: list[int], new: int, end: int, penalty: float, **source) -> list[BeamHypothesis]:
    """All texts that can be said with few words, by their scores: what ends with `end`, or is as long as can be."""
    words = [id for id in range(FEW) if id != end]
    short = [[*said, end] for length in range(new) for said in product(words, repeat=length)]
    told = []
    for said in [*short, *map(list, product(words, repeat=new))]:
        with torch.no_grad():
            logs = one(torch.tensor([text + said[:-1]]), **source)[0, len(text) - 1 :].log_softmax(-1)
        score = logs.gather(1, torch.tensor(said)[:, None]).sum().item() / len(said) ** penalty
        told.append(BeamHypothesis(tuple(said), score))
    return sorted(told, key=lambda each: -each.score)


@pytest.mark.spec("S108")
@pytest.mark.parametrize("penalty", [-0.5, 0.0, 0.7, 1.0, 2.0])
def test_as_many_beams_as_texts_find_the_best_of_all_texts(penalty):
    one, text, new, end = model(embed=C.TextEmbedding(vocab=FEW)), [1, 3, 2], 3, 4
    best = every(one, text, new, end, penalty)
    (said,) = found(
        one, [text], [end], max_new_tokens=[new], num_beams=FEW**new, num_return_sequences=7, length_penalty=penalty
    )

    assert len(best) == 1 + 4 + 16 + 64
    assert_same([said], [best[:7]])


@pytest.mark.spec("S108")
@pytest.mark.parametrize("cross", ["last", "layerwise"])
def test_as_many_beams_as_texts_find_the_best_of_all_translations(cross):
    one, source, new, end = translator(cross), torch.randint(FEW, (1, S)), 3, 4
    best = every(one, [1], new, end, 1.0, source=source)
    (said,) = found(
        one, [[1]], [end], known=FEW, max_new_tokens=[new], num_beams=FEW**new, num_return_sequences=7, source=source
    )

    assert_same([said], [best[:7]])


class Chain(Parrot):
    """What comes next depends on the last word alone: `chances` (V, V), a row for each word."""

    def __init__(self, chances: list[list[float]]) -> None:
        super().__init__([[0]], len(chances))
        self.chances = torch.tensor(chances, dtype=torch.float64)

    def forward(self, ids, **_):
        return self.chances.log()[ids]


#           the   nice  dog   woman  .             the likeliest first word leads into a crowd, the second to one
CROWD = [[0.02, 0.55, 0.41, 0.01, 0.01],         # the
         [0.22, 0.01, 0.37, 0.39, 0.01],         # nice
         [0.01, 0.01, 0.01, 0.02, 0.95],         # dog
         [0.20, 0.20, 0.20, 0.20, 0.20],         # woman
         [0.20, 0.20, 0.20, 0.20, 0.20]]  # fmt: skip


@pytest.mark.spec("S108")
def test_two_beams_find_a_likelier_text_than_always_the_likeliest_word():
    one = Chain(CROWD)
    greedy, (best,) = slide(one, [0], 2), found(one, [[0]], [4], max_new_tokens=[2], num_beams=2, length_penalty=0.0)

    def chance(said):
        return math.prod(CROWD[a][b] for a, b in zip([0, *said], said, strict=False))

    assert (greedy, best[0].ids) == ([1, 3], (2, 4))  # the nice woman; the dog.
    assert chance(greedy) == pytest.approx(0.55 * 0.39) and chance(best[0].ids) == pytest.approx(0.41 * 0.95)
    assert best[0].score == pytest.approx(math.log(chance(best[0].ids)))
    assert best[0].score > math.log(chance(greedy))


@pytest.mark.spec("S108")
def test_a_larger_penalty_on_length_never_gives_a_shorter_text():
    def length(penalty):
        return len(
            found(Chain(CROWD), [[0]], [4], max_new_tokens=[4], num_beams=FEW**4, length_penalty=penalty)[0][0].ids
        )

    assert [length(penalty) for penalty in (-3.0, 0.0, 3.0)] == [1, 2, 4]  # . – the dog. – the longest


# ---------------------------------------------------------------- the same as aloud


@pytest.mark.spec("S112")
@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)
def test_beams_of_a_padded_batch_find_what_each_text_finds_alone_without_a_cache(position):
    one, texts, c = (
        model(position),
        prompts(*LENGTHS),
        BeamSearchParams(max_new_tokens=NEW, num_beams=3, num_return_sequences=3),
    )
    free = plain(one, texts[0], c)
    ends = {each.ids[4] for each in free}  # tokens that do come, though not at once
    said = found(one, texts, ends, num_beams=3, num_return_sequences=3)

    assert_same(said, [plain(one, text, c, ends) for text in texts])
    assert min(len(each.ids) for row in said for each in row) < NEW


@pytest.mark.spec("S112")
@pytest.mark.parametrize("early", [False, True, "never"])
@pytest.mark.parametrize("cross", ["last", "layerwise"])
def test_beams_of_translations_find_what_each_finds_alone_without_a_cache(cross, early):
    one, texts, source, ends = translator(cross), prompts(3, 1), torch.randint(V, (2, S)), (2, 7, 11)
    real = torch.arange(S) < torch.tensor([[4], [S]])
    c = BeamSearchParams(max_new_tokens=NEW, num_beams=3, num_return_sequences=2, early_stopping=early)
    said = found(
        one, texts, ends, num_beams=3, num_return_sequences=2, early_stopping=early, source=source, source_real=real
    )

    alone = [plain(one, texts[0], c, ends, source=source[:1, :4]), plain(one, texts[1], c, ends, source=source[1:])]
    assert_same(said, alone)


@pytest.mark.parametrize("mask", ["causal & window(3)", "prefix(4)", "causal & (window(2) | global_tokens(1))"])
def test_beams_hold_to_the_mask(mask):
    one, texts, c = (
        model(mask=mask),
        prompts(5, 11),
        BeamSearchParams(max_new_tokens=NEW, num_beams=3, num_return_sequences=3),
    )

    assert_same(found(one, texts, num_beams=3, num_return_sequences=3), [plain(one, text, c) for text in texts])


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 7), st.integers(1, 6)), min_size=2, max_size=3), st.integers(1, 4))
def test_texts_of_any_lengths_and_rooms_find_what_each_finds_alone(sizes, beams):
    one, texts, new = model(), prompts(*(size for size, _ in sizes)), [room for _, room in sizes]
    c = BeamSearchParams(max_new_tokens=NEW, num_beams=beams, num_return_sequences=beams, early_stopping="never")
    said = found(
        one, texts, (2, 7), max_new_tokens=new, num_beams=beams, num_return_sequences=beams, early_stopping="never"
    )

    assert_same(said, [plain(one, text, c, (2, 7), most) for text, most in zip(texts, new, strict=True)])


def test_one_beam_is_the_loop_of_the_slide():
    one, texts = model(), prompts(*LENGTHS)

    assert [list(row[0].ids) for row in found(one, texts, num_beams=1)] == [slide(one, text, NEW) for text in texts]


def test_a_prompt_and_its_source_are_read_once_for_all_beams():
    one, read = translator(), []
    one.encoder.blocks[0].register_forward_hook(lambda _, given, out: read.append(tuple(out.shape[:2])))
    one.trunk.blocks[0].cross.kv.register_forward_hook(lambda _, given, out: read.append(tuple(out.shape[:2])))
    one.trunk.blocks[0].register_forward_hook(lambda _, given, out: read.append(tuple(out.shape[:2])))
    found(one, prompts(3, 5), num_beams=4, max_new_tokens=[3, 3], source=torch.randint(V, (2, S)))
    keys = [shape for shape in read if shape == (2, S)]

    assert len(keys) == 2  # the encoder and the keys of the decoder: two rows and not eight, and only once
    assert [shape for shape in read if shape != (2, S)] == [(2, 5), (8, 1), (8, 1)]


@pytest.mark.parametrize("held", ["plain", "fp32"])
@pytest.mark.parametrize("watched", [False, True], ids=["alone", "watched"])
def test_beams_that_share_a_source_find_what_those_apart_find(held, watched, monkeypatch):
    one, texts, source = translator().float(), prompts(3, 1), torch.randint(V, (2, S))
    asked = dict(
        ends=(2, 7),
        num_beams=3,
        num_return_sequences=2,
        source=source,
        source_real=torch.arange(S) < torch.tensor([[4], [S]]),
    )
    if held == "fp32":
        pack_model(one)
    with looking(one, "trunk.1.cross.k", "trunk.1.cross.pattern") if watched else nullcontext() as seen:
        together = found(one, texts, **asked)
    if watched:
        assert len(seen["trunk.1.cross.k"]) == 6  # whoever looks sees a row for each beam
    monkeypatch.setattr(room, "is_loaded", lambda: False)

    assert_same(together, found(one, texts, **asked), 1e-5)


# ---------------------------------------------------------------- beginning and ending


@pytest.mark.spec("S110")
def test_a_text_is_as_long_as_asked_for_or_ends_with_an_end():
    one, texts = model(), prompts(*LENGTHS)
    every = [
        each for row in found(one, texts, (2, 7), num_beams=4, num_return_sequences=4, min_new_tokens=2) for each in row
    ]

    assert all(each.ids[-1] in (2, 7) or len(each.ids) == NEW for each in every)
    assert all(not {2, 7} & set(each.ids[:-1]) and len(each.ids) > 2 for each in every)


def test_fewer_texts_are_found_where_fewer_can_be_said():
    one = model(embed=C.TextEmbedding(vocab=FEW))
    (said,) = found(one, [[1]], max_new_tokens=[1], num_beams=9, num_return_sequences=9)

    assert sorted(each.ids for each in said) == [(id,) for id in range(FEW)]
    assert sum(math.exp(each.score) for each in said) == pytest.approx(1)


def test_words_without_a_piece_and_padding_are_never_said():
    one = model(embed=C.TextEmbedding(vocab=V, pad_id=3))
    every = [each for row in found(one, prompts(5, 2), known=11, num_beams=7, num_return_sequences=7) for each in row]

    assert {id for each in every for id in each.ids} <= set(range(11)) - {3}


def test_no_texts_find_nothing():
    assert found(model(), []) == []


@pytest.mark.parametrize("position", [C.LearnedPosition(length=13), C.RotaryPosition()], ids=["learned", "context"])
def test_a_text_that_just_fits_its_window_is_searched_for(position):
    one, (text,) = model(position), prompts(5)
    context = 13 if position.kind == "rotary" else None
    c = BeamSearchParams(max_new_tokens=NEW, num_beams=3, num_return_sequences=1)

    assert_same(found(one, [text], context=context, num_beams=3), [plain(one, text, c)])  # the last token is never read
    with pytest.raises(
        C.ConfigError,
        match="^max_new_tokens: 10 tokens after a prompt of 5 exceed the context window of 13.* max_new_tokens to 9 or",
    ):
        found(one, [text], context=context, max_new_tokens=[NEW + 1])
    with pytest.raises(C.ConfigError, match="shorten the prompt$"):
        found(one, prompts(14), context=context)


@pytest.mark.parametrize("need, most, size", [(3, None, 32), (32, None, 32), (33, None, 64), (3, 20, 20), (9, 9, 9)],
                         ids=str)  # fmt: skip
def test_a_cache_has_one_of_few_sizes_and_none_beyond_the_window(need, most, size):
    assert room.cache_capacity(need, most) == size


# ---------------------------------------------------------------- the model, before and after


def test_a_model_in_training_searches_without_dropout_and_goes_on_training():
    one, (text,) = model(dropout=C.Dropout(embed=0.5, residual=0.5)), prompts(5)
    calm = found(one, [text])
    one.train()
    one.trunk.blocks[1].eval()
    modes = [each.training for each in one.modules()]

    assert_same(found(one, [text]), calm)
    assert [each.training for each in one.modules()] == modes


def test_broken_weights_are_told_in_a_sentence():
    one = model()
    with torch.no_grad():
        one.head.weight[0, 0] = torch.nan

    with pytest.raises(C.RunError, match="^the model's logits are not finite"):
        found(one, prompts(3))


READ = torch.ones(1, S, dtype=torch.long)
WRONG = {
    "an empty text": (lambda: found(model(), [[1], []]), C.DataError, "^prompt: 0 tokens are too few"),
    "an id too large": (lambda: found(model(), [[1, V]]), C.DataError, f"^prompt: id {V} is outside"),
    "an encoder": (lambda: found(model(mask="full"), [[1]]), C.ConfigError, "not autoregressive: trunk.mask"),
    "no source": (lambda: found(translator(), [[1]]), C.ConfigError, "^source: none given for 1 rows"),
    "a needless source": (lambda: found(model(), [[1]], source=READ), C.ConfigError, "^source: .* no encoder"),
    "nothing to say": (lambda: found(model(), [[1]], known=0), C.ConfigError, "^every token is forbidden"),
}


@pytest.mark.parametrize("wrong, error, message", WRONG.values(), ids=WRONG)
def test_what_cannot_be_searched_for_is_refused(wrong, error, message):
    with pytest.raises(error, match=message):
        wrong()


SETTINGS = {
    "no beams": (dict(num_beams=0), "^num_beams: 0 is less than 1"),
    "more than are kept": (
        dict(num_beams=3, num_return_sequences=4),
        "^num_return_sequences: 4 texts are more than the 3 .*; set num_beams to 4 or more$",
    ),
    "too steep": (dict(length_penalty=11.0), "^length_penalty: 11.0 is not between"),
    "no room for an end": (
        dict(max_new_tokens=4, min_new_tokens=4),
        "^min_new_tokens: 4 tokens and an end are more than max_new_tokens, 4;",
    ),
    "another way to stop": (dict(early_stopping="soon"), "^early_stopping: "),
    "no tokens": (dict(max_new_tokens=0), "^max_new_tokens: 0 is less than 1"),
}


@pytest.mark.parametrize("settings, message", SETTINGS.values(), ids=SETTINGS)
def test_settings_that_make_no_sense_are_told_by_name(settings, message):
    with pytest.raises(C.ConfigError, match=message):
        C.from_dict(BeamSearchParams, settings)


@pytest.mark.parametrize("size, count", [(130, 3), (4097, 8), (9000, 1), (64 * 40, 20)])
@pytest.mark.parametrize("native", [True, False])
def test_the_largest_of_a_long_row_are_found_piece_by_piece(size, count, native, monkeypatch):
    if not native:
        monkeypatch.setattr(room, "is_readable", lambda table: False)
    table = torch.randn(5, size).masked_fill(torch.rand(5, size) > 0.9, -torch.inf)
    best, places = largest_columns(table, count)
    right = table.topk(count).values

    assert torch.equal(best, right) and torch.equal(table.gather(1, places), right)
