"""Text in, text out: streamed or whole, stopped in time, with errors that say what to do."""

import dataclasses
import re

import pytest
import torch
from generation.builders import Parrot, lively, slide, trunk
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, pre_tokenizers

import regard
from regard import config as C
from regard.inference import load as room
from regard.inference.load import load_model
from regard.inference.model import Model
from regard.text.tokenizer import Tokenizer
from regard.text.trainers import train_tokenizer

TEXT = "Der Jubel hallt über die Äcker: „ahoi!“ 日本 ☂ — naïve café, the the the cat sat on the mat.\n" * 3
KINDS = {
    "char": C.CharTokenizer(),
    "byte": C.ByteTokenizer(),
    "word": C.WordTokenizer(vocab=400),
    "bpe": C.SubwordTokenizer(vocab=400),
    "wordpiece": C.SubwordTokenizer(kind="wordpiece", vocab=600),
    "unigram": C.SubwordTokenizer(kind="unigram", vocab=400),
}
EVERY = pytest.mark.parametrize("kind", KINDS)
PROMPT = "the cat"
NEW = 41


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    return {name: train_tokenizer(kind, [TEXT]) for name, kind in KINDS.items()}


def speaker(tokenizer: Tokenizer, room: int = 3) -> Model:
    """A random model that speaks in these tokens; it has `room` ids more than they are, as padded vocabularies have."""
    embed = C.TextEmbedding(vocab=len(tokenizer) + room)
    one = lively(C.Transformer(embed=embed, trunk=trunk(), head=C.LMHead(tied=False)))
    one.tokenizer = tokenizer
    return one


def parrot(tokenizer: Tokenizer, *texts: str, ends: bool = False) -> Model:
    end = [tokenizer.special_ids["eos"]] if ends else tokenizer.encode(".")
    one = Parrot([tokenizer.encode(text) + end for text in texts], len(tokenizer))
    one.tokenizer = tokenizer
    return one


# ---------------------------------------------------------------- strings and ids


@EVERY
def test_a_string_gives_the_text_of_the_ids_that_the_loop_of_the_slide_gives(tokenizers, kind):
    tokenizer = tokenizers[kind]
    one = speaker(tokenizer, room=0)
    ids = tokenizer.encode(PROMPT)
    said = slide(one, ids, NEW, end=tokenizer.special_ids.get("eos"))

    whole = tokenizer.decode(ids + said)
    assert tokenizer.decode(ids) + one.generate(PROMPT, max_new_tokens=NEW, temperature=0) == whole


def test_several_strings_give_several_texts_each_as_if_alone(tokenizers):
    one, prompts = speaker(tokenizers["char"]), ["the cat", "a", "über die Äcker"]
    together = one.generate(prompts, max_new_tokens=NEW, temperature=0)

    assert together == [one.generate(prompt, max_new_tokens=NEW, temperature=0) for prompt in prompts]
    assert one.generate([], max_new_tokens=NEW) == []


@pytest.mark.parametrize("shape", [(5,), (3, 5)])
def test_ids_give_as_many_new_ids_in_the_same_shape(tokenizers, shape):
    one = speaker(tokenizers["byte"])
    said = one.generate(torch.randint(len(tokenizers["byte"]), shape), max_new_tokens=7)

    assert said.shape == (*shape[:-1], 7) and said.dtype == torch.long
    assert one.generate(torch.ones(shape, dtype=torch.int32), max_new_tokens=0).shape == (*shape[:-1], 0)


@pytest.mark.spec("S110")
def test_rows_of_ids_that_end_early_are_filled_with_the_token_that_ended_them():
    one = Parrot([[5, 2, 7], [5, 6, 7, 8]], vocab=11, eos_id=2)

    assert one.generate(torch.ones(2, 3, dtype=torch.long), max_new_tokens=4).tolist() == [[5, 2, 2, 2], [5, 6, 7, 8]]


@pytest.mark.spec("S110")
def test_ids_are_over_when_all_rows_have_ended():
    one = Parrot([[5, 2], [2, 7]], vocab=11, eos_id=2)

    assert one.generate(torch.ones(2, 3, dtype=torch.long), max_new_tokens=9).tolist() == [[5, 2], [2, 2]]


# ---------------------------------------------------------------- streams


@EVERY
@pytest.mark.parametrize("seed", [0, 3])
def test_the_pieces_of_a_stream_join_to_the_text(tokenizers, kind, seed):
    """Random ids: half characters, bytes that are no text, special tokens in the middle."""
    one, how = speaker(tokenizers[kind]), dict(max_new_tokens=150, temperature=1.5, seed=seed, stop=["zz", "the"])

    assert "".join(one.stream(PROMPT, **how)) == one.generate(PROMPT, **how)


@EVERY
def test_a_stream_never_shows_half_a_character_and_loses_no_space(tokenizers, kind):
    text = " über  die 日本 ☂ Äcker —  naïve 😀 the end"
    one = parrot(tokenizers[kind], text)
    pieces = list(one.stream("the", max_new_tokens=len(tokenizers[kind].encode(text)), temperature=0))

    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert "" not in pieces


def test_text_is_shown_as_soon_as_it_is_certain(tokenizers):
    one = parrot(tokenizers["char"], "cat sat")

    assert list(one.stream("the ", max_new_tokens=7, temperature=0)) == list("cat sat")


def test_a_stream_asks_the_model_only_as_it_is_read(tokenizers):
    one = parrot(tokenizers["char"], "cat sat")
    stream = one.stream("the ", max_new_tokens=7, temperature=0)
    next(stream)

    assert one.place == 1


@EVERY
@pytest.mark.parametrize("prompt", ["the", "the ", "the\n", "日", "the \ufffd", "the 😀"])
def test_a_text_goes_on_where_its_prompt_ended(tokenizers, kind, prompt):
    one = parrot(tokenizers[kind], " cat")

    assert one.generate(prompt, max_new_tokens=len(tokenizers[kind].encode(" cat")), temperature=0) == " cat"


def llama_like() -> Tokenizer:
    """Pieces that bring their space along as ▁, and a decoder that takes the first one away, as Llama's does."""
    pieces = ["<unk>", "▁", *"acehmnost", "▁the", "▁cat", "▁sat", *(f"<0x{byte:02X}>" for byte in range(256))]
    inner = Inner(models.BPE(vocab={piece: id for id, piece in enumerate(pieces)}, merges=[], ignore_merges=True,
                             byte_fallback=True, unk_token="<unk>"))  # fmt: skip
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(inner)


def test_a_decoder_that_takes_the_first_space_away_takes_none_between_prompt_and_text():
    tokenizer = llama_like()
    ids = tokenizer.encode("the cat sat on")
    one = Parrot([ids[1:]], len(tokenizer))
    one.tokenizer = tokenizer

    assert tokenizer.decode(ids[:1]) == "the"
    assert one.generate("the", max_new_tokens=len(ids) - 1, temperature=0) == " cat sat on"
    one.place = 0
    assert "".join(one.stream("the", max_new_tokens=len(ids) - 1, temperature=0)) == " cat sat on"


# ---------------------------------------------------------------- stopping


@pytest.mark.spec("S073", "S110")
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_text_ends_at_the_end_token_and_does_not_show_it(tokenizers, kind):
    one = parrot(tokenizers[kind], " sat on the mat", ends=True)
    told = one.complete(PROMPT, max_new_tokens=NEW, temperature=0)

    assert (told.text, told.reason) == (" sat on the mat", "eos")
    assert told.ids[-1] == tokenizers[kind].special_ids["eos"]


@pytest.mark.spec("S110")
def test_a_text_that_never_ends_is_as_long_as_asked_for(tokenizers):
    told = parrot(tokenizers["char"], "the the the").complete(PROMPT, max_new_tokens=5, temperature=0)

    assert (told.text, told.reason, len(told.ids)) == ("the t", "length", 5)


STOPS = {
    "over several tokens": ("the cat sat.\nUser: hm", ["\nUser:"], "the cat sat.", "stop"),
    "only its beginning": ("the cat sat.\nUse it", ["\nUser:"], "the cat sat.\nUse it", "length"),
    "its beginning at the very end": ("the cat\nUs", ["\nUser:"], "the cat\nUs", "length"),
    "at once": ("the cat", ["t"], "", "stop"),
    "begun twice": ("aaab the", ["aab"], "a", "stop"),
    "the one that is complete first": ("the cat sat", ["cat sat", "at"], "the c", "stop"),
    "none of them": ("the cat sat", ["dog", "saw"], "the cat sat", "length"),
    "half a character long": ("naïve café", ["ï"], "na", "stop"),
}


@pytest.mark.spec("S110")
@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
@pytest.mark.parametrize("text, stops, shown, reason", STOPS.values(), ids=STOPS)
def test_a_stop_string_ends_the_text_and_is_never_shown(tokenizers, kind, text, stops, shown, reason):
    new = len(tokenizers[kind].encode(text))
    told = parrot(tokenizers[kind], text).complete("a", max_new_tokens=new, temperature=0, stop=stops)
    pieces = list(parrot(tokenizers[kind], text).stream("a", max_new_tokens=new, temperature=0, stop=stops))

    assert (told.text, told.reason) == (shown, reason)
    assert "".join(pieces) == shown


def cut_at(text: str, stops: list[str]) -> str:
    """The text before the stop string that is complete first, letter by letter."""
    for end in range(len(text) + 1):
        found = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: min(found)]
    return text


@given(st.text("ab", min_size=1, max_size=30), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3))
def test_where_a_text_stops_does_not_depend_on_its_tokens(text, stops):
    tokenizer = train_tokenizer(C.CharTokenizer(byte_fallback=False), ["ab."])
    one = parrot(tokenizer, text)

    assert one.generate("a", max_new_tokens=len(text), temperature=0, stop=stops) == cut_at(text, stops)


def test_one_row_stops_and_the_others_go_on(tokenizers):
    one = parrot(tokenizers["char"], "cat. sat", "the mat, the")
    told = one.complete(["a", "the"], max_new_tokens=8, temperature=0, stop=".")

    assert [(each.text, each.reason) for each in told] == [("cat", "stop"), ("the mat,", "length")]


# ---------------------------------------------------------------- completions


def test_a_completion_says_what_a_script_wants_to_know(tokenizers):
    one = speaker(tokenizers["bpe"])
    told = one.complete(PROMPT, max_new_tokens=NEW)
    again = one.complete(PROMPT, max_new_tokens=NEW, seed=told.seed)

    assert dataclasses.replace(again, seconds=told.seconds) == told
    assert told.prompt == PROMPT and 0 < len(told.ids) <= NEW
    assert told.seconds > 0 and told.speed == len(told.ids) / told.seconds


def test_a_prompt_is_not_part_of_what_is_searched_for_stop_strings(tokenizers):
    told = parrot(tokenizers["char"], "cat").complete("the ", max_new_tokens=3, temperature=0, stop=["the", "e c"])

    assert told.text == "cat"


# ---------------------------------------------------------------- beams


@EVERY
def test_the_best_text_in_strings_is_the_best_in_ids(tokenizers, kind):
    tokenizer = tokenizers[kind]
    one, ids = speaker(tokenizer), tokenizer.encode(PROMPT)
    ([found],) = one.beam_search([ids], max_new_tokens=NEW, num_beams=3)
    end = found.ids[-1] in one.generation_limits.ends
    whole = tokenizer.decode(ids) + one.generate(PROMPT, max_new_tokens=NEW, num_beams=3)

    assert whole == tokenizer.decode([*ids, *found.ids[: len(found.ids) - end]])
    assert one.generate(torch.tensor(ids), max_new_tokens=NEW, num_beams=3).tolist() == list(found.ids)


def test_a_completion_by_beams_has_a_score_and_the_others(tokenizers):
    one = speaker(tokenizers["bpe"])
    told = one.complete(PROMPT, max_new_tokens=7, num_beams=5, num_return_sequences=3)
    (found,) = one.beam_search([one.tokenizer.encode(PROMPT)], max_new_tokens=7, num_beams=5, num_return_sequences=3)
    every = [told, *told.others]

    assert [(each.ids, each.score) for each in every] == [(each.ids, each.score) for each in found]
    assert [each.score for each in every] == sorted((each.score for each in every), reverse=True)
    assert all((each.seed, each.prompt, each.others) == (None, PROMPT, ()) for each in every[1:])
    assert (
        one.complete([PROMPT, "a"], max_new_tokens=7, num_beams=5)[0].text
        == told.text
        == one.generate(PROMPT, max_new_tokens=7, num_beams=5)
    )


@pytest.mark.spec("S110")
def test_a_text_found_by_beams_does_not_show_its_end_token(tokenizers):
    one = speaker(tokenizers["bpe"])
    end, ids = one.tokenizer.special_ids["eos"], one.tokenizer.encode(PROMPT)
    ([free],) = one.beam_search([ids], max_new_tokens=NEW, num_beams=9)
    with torch.no_grad():
        one.head.weight[end] = 1.1 * one.head.weight[free.ids[3]]  # an end that comes
    every = one.complete(PROMPT, max_new_tokens=NEW, num_beams=9, num_return_sequences=9, length_penalty=0.0)
    ended = [each for each in (every, *every.others) if each.reason == "eos"]

    assert ended and all(each.ids[-1] == end for each in ended)
    for each in ended:
        assert one.tokenizer.decode(ids) + each.text == one.tokenizer.decode([*ids, *each.ids[:-1]])


def test_rows_of_ids_that_beams_end_early_are_filled_with_the_token_that_ended_them():
    one = lively(C.Transformer(embed=C.TextEmbedding(vocab=11, eos_id=2), trunk=trunk(), head=C.LMHead(tied=False)))
    prompt = torch.randint(11, (7, 3))
    found = one.beam_search(prompt.tolist(), max_new_tokens=NEW, num_beams=3, length_penalty=0.0)
    said = one.generate(prompt, max_new_tokens=NEW, num_beams=3, length_penalty=0.0)

    assert [tuple(row[: len(each.ids)].tolist()) for row, (each,) in zip(said, found, strict=True)] == [
        each.ids for (each,) in found
    ]
    assert len({len(each.ids) for (each,) in found}) > 1
    assert all((row[len(each.ids) :] == 2).all() for row, (each,) in zip(said, found, strict=True))


def test_padding_in_a_tensor_of_prompts_is_not_read():
    c = C.Transformer(embed=C.TextEmbedding(vocab=11, pad_id=3), trunk=trunk(), head=C.LMHead(tied=False))
    one = lively(c)

    assert one.generate(torch.tensor([[3, 3, 5, 7]]), max_new_tokens=5, num_beams=2).tolist() == [
        one.generate(torch.tensor([5, 7]), max_new_tokens=5, num_beams=2).tolist()
    ]


NO_BEAMS = {
    "temperature": (
        dict(num_beams=4, temperature=0.7),
        "^temperature: beam search does not sample; leave",
    ),
    "top_k": (dict(num_beams=4, top_k=5), "^top_k: beam search"),
    "seed": (dict(num_beams=4, seed=5), "^seed: beam search"),
    "stop": (dict(num_beams=4, stop="x"), "^stop: beam search has no stop strings; leave out stop, or num_beams$"),
    "misspelt": (
        dict(num_beams=4, lenght_penalty=1.0),
        r"^lenght_penalty: no such setting; did you mean 'length_penalty'",
    ),
    "without beams": (dict(length_penalty=2.0), "^length_penalty: a setting of beam search; set num_beams as well"),
}


@pytest.mark.parametrize("settings, message", NO_BEAMS.values(), ids=NO_BEAMS)
def test_drawing_and_searching_are_not_mixed(tokenizers, settings, message):
    one = speaker(tokenizers["char"])

    for verb, prompt in ((one.generate, PROMPT), (one.complete, PROMPT), (one.generate, torch.tensor([1, 2]))):
        with pytest.raises(C.ConfigError, match=message):
            verb(prompt, **settings)


def test_settings_of_drawing_that_change_nothing_are_no_mistake(tokenizers):
    one, plain = (
        speaker(tokenizers["char"]),
        dict(temperature=1.0, top_k=None, repetition_penalty=1.0, stop=(), seed=None),
    )

    assert one.generate(PROMPT, max_new_tokens=5, num_beams=2, **plain) == one.generate(
        PROMPT, max_new_tokens=5, num_beams=2
    )


def test_beams_cannot_be_streamed_and_generate_gives_one_text(tokenizers):
    one = speaker(tokenizers["char"])

    with pytest.raises(C.ConfigError, match="^num_beams: the best text is known only at its end"):
        one.stream(PROMPT, num_beams=2)
    with pytest.raises(
        C.ConfigError, match="^num_return_sequences: generate returns the best text only; model.complete returns"
    ):
        one.generate(PROMPT, num_beams=2, num_return_sequences=2)


# ---------------------------------------------------------------- how a text begins


@pytest.mark.spec("S110")
def test_an_empty_prompt_begins_where_texts_begin(tokenizers):
    one = speaker(tokenizers["bpe"])
    start = one.tokenizer.special_ids.get("bos", one.tokenizer.special_ids["eos"])
    ids = one.generate(torch.tensor([start]), max_new_tokens=NEW, temperature=0).tolist()

    assert one.generate("", max_new_tokens=NEW, temperature=0) == one.tokenizer.decode(ids)


def test_a_start_token_goes_before_an_end_token_when_there_are_both(tokenizers):
    one = speaker(tokenizers["bpe"])
    one.tokenizer = Tokenizer(tokenizers["bpe"].inner)
    one.tokenizer.special_ids = {"bos": 5, "eos": 7}

    assert one.with_start_token([]) == [5] and one.with_start_token([3]) == [3]


# ---------------------------------------------------------------- mistakes

MISTAKES = {
    "misspelt": (dict(temprature=1.0), C.ConfigError, r"^temprature: no such setting; did you mean 'temperature'\?"),
    "no number": (dict(top_k="many"), C.ConfigError, "^top_k: expected a whole number"),
    "below zero": (dict(temperature=-1.0), C.ConfigError, "^temperature: -1.0 is less than 0"),
    "no probability": (dict(top_p=2.0), C.ConfigError, "^top_p: 2.0 is not between 0 and 1"),
    "an empty stop": (dict(stop=""), C.ConfigError, "^stop: an empty string would stop at once"),
    "a source": (dict(source=torch.ones(1, 3).long()), C.ConfigError, "^source: this model has no encoder"),
}


@pytest.mark.parametrize("settings, error, message", MISTAKES.values(), ids=MISTAKES)
def test_a_mistaken_setting_is_told_before_anything_is_read(tokenizers, settings, error, message):
    one = speaker(tokenizers["char"])

    for verb in (one.generate, one.stream, one.complete):
        with pytest.raises(error, match=message):
            verb(PROMPT, **settings)


def test_an_empty_prompt_without_a_start_token_says_that_one_is_needed():
    one = speaker(train_tokenizer(C.CharTokenizer(byte_fallback=False), ["the cat"]))

    with pytest.raises(C.DataError, match="^prompt: it is empty, .* give it something to continue"):
        one.generate("")


def test_a_prompt_that_cannot_be_said_is_refused():
    one = speaker(train_tokenizer(C.CharTokenizer(byte_fallback=False), ["the cat"]))

    with pytest.raises(C.DataError, match="'z'"):
        one.generate("a zebra")


def test_text_for_a_model_without_a_tokenizer_is_refused():
    with pytest.raises(C.DataError, match="^prompt: this model has no tokenizer; .* give a tensor of ids$"):
        Parrot([[1]], vocab=3).generate("the")


NO_IDS = [torch.ones(2, 3), torch.ones(2, 3, 4).long(), torch.ones(0, 3).long(), torch.ones(2).bool()]


@pytest.mark.parametrize("prompt", NO_IDS, ids=["fractions", "too deep", "no rows", "booleans"])
def test_a_tensor_that_is_no_batch_of_ids_is_refused(prompt):
    with pytest.raises(C.DataError, match=re.escape(f"got {prompt.dtype} {tuple(prompt.shape)}")):
        Parrot([[1]], vocab=3).generate(prompt)


def test_stop_strings_do_not_stop_ids():
    with pytest.raises(C.ConfigError, match="^stop: stop strings need text"):
        Parrot([[1]], vocab=3).generate(torch.ones(1, dtype=torch.long), stop="x")


# ---------------------------------------------------------------- load, build, save


def test_a_saved_model_says_the_same_after_loading(tokenizers, tmp_path):
    one, how = speaker(tokenizers["bpe"]).float(), dict(max_new_tokens=NEW, seed=6, temperature=0.9, top_p=0.95)
    one.context = 64
    one.save(tmp_path / "saved")
    again = load_model(tmp_path / "saved", device="cpu")

    assert again.generate(PROMPT, **how) == one.generate(PROMPT, **how)
    assert (again.context, again.training, again.tokenizer.special_ids) == (64, False, one.tokenizer.special_ids)


def test_a_model_without_a_tokenizer_is_saved_without_one(tmp_path):
    one = lively(C.Transformer(embed=C.TextEmbedding(vocab=7), trunk=trunk())).float()
    one.save(tmp_path / "saved")

    assert load_model(str(tmp_path / "saved")).tokenizer is None


def test_a_built_model_is_fresh():
    one = regard.build(regard.preset("gpt2", depth=1, dim=24, heads=3))

    assert (one.tokenizer, one.context, one.training) == (None, None, True)


def test_a_folder_that_is_none_is_told_in_a_sentence(tmp_path):
    with pytest.raises(C.DataError, match="nowhere"):
        load_model(tmp_path / "nowhere")


@pytest.mark.parametrize("name, message", [("gpu", "^device: no .gpu.; there are auto"), ("mps", "not available")])
def test_a_device_that_is_not_there_is_told_in_a_sentence(name, message, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)

    with pytest.raises(C.ConfigError, match=message):
        room.resolve_device(name)


def test_the_automatic_device_is_the_fastest_there_is(monkeypatch):
    for there, name in (((True, True), "cuda"), ((False, True), "mps"), ((False, False), "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there[0])
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda there=there: there[1])
        assert room.resolve_device("auto").type == name
