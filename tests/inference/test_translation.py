"""Translation in texts: laid out as in training, each as if alone, and with where every word came from."""

from random import Random

import pytest
import torch
from generation.builders import lively, trunk
from inference.toy_translator import AREA, CAT, LONGEST, NOUN, PACTS, VERB, fresh, learnt, long, pairs, speakers

import regard
from regard import config as C
from regard.config import generation
from regard.inference import translation as room
from regard.inference.batching import length_batches
from regard.inference.model import Model
from regard.inference.translation import Translator
from regard.tasks.collate import RowPadding
from regard.tasks.task import build_task
from regard.text.trainers import train_tokenizer

SENTENCE, TOLD = long(*AREA)
SOURCES = [SENTENCE, *(source for source, _ in pairs(9, Random(3)))]


def odd(**rest) -> Model:
    """A translator that has learnt nothing and says something, in double precision."""
    reads, speaks = speakers()
    one = lively(fresh(reads, speaks, **rest).c)
    one.tokenizer, one.target_tokenizer = reads, speaks
    return one


# ---------------------------------------------------------------- layout


def test_a_source_and_the_beginning_of_its_target_stand_as_in_training():
    one = odd()
    task = build_task(C.Translation(), one.tokenizer, rows=RowPadding(LONGEST), target=one.target_tokenizer)
    example = task.example({"source": SENTENCE, "target": TOLD}, one.tokenizer, one.target_tokenizer)
    batch = task.collate([example], None)
    read = torch.tensor([Translator(one).source(SENTENCE)])

    assert torch.equal(read, batch["source"])
    assert Translator(one).begin == batch["ids"][0, 0] == one.target_tokenizer.special_ids["bos"]


def test_a_translation_is_the_best_that_beams_find_after_the_beginning():
    one = odd()
    read = torch.tensor([Translator(one).source(SENTENCE)])
    ([found],) = one.beam_search([[Translator(one).begin]], source=read, max_new_tokens=LONGEST, num_beams=4)
    said = [id for id in found.ids if id not in one.generation_limits.ends]

    assert one.translate(SENTENCE, max_new_tokens=LONGEST) == one.target_tokenizer.decode(said)


def test_a_target_may_begin_with_another_token():
    one = odd()
    plain, one.decoder_start_id = one.translate(SENTENCE), one.target_tokenizer.special_ids["eos"]

    assert Translator(one).begin == one.decoder_start_id
    assert one.translate(SENTENCE) != plain


def test_a_target_that_begins_with_the_pad_token_is_read_from_it():
    """As T5's and Marian's do: only there padding is something to read."""
    reads, _ = speakers()
    c = fresh(reads, reads).c
    torch.manual_seed(3)
    plain = lively(c)
    padded = (
        Model(C.from_dict(C.Transformer, C.to_dict(c) | {"embed": C.to_dict(c.embed) | {"pad_id": 0}})).double().eval()
    )
    padded.load_state_dict(plain.state_dict())
    for one in (plain, padded):
        one.tokenizer, one.decoder_start_id = reads, reads.special_ids["pad"]
    known = [each.ids for each in plain.translations([SENTENCE, CAT[0]])]

    assert not any(0 in ids for ids in known)  # else they would differ: who knows of padding never says it
    assert [each.ids for each in padded.translations([SENTENCE, CAT[0]])] == known


def test_one_tokenizer_may_serve_both_sides():
    tokenizer = train_tokenizer(
        C.WordTokenizer(vocab=200, byte_fallback=False), [side for pair in pairs(500, Random(1)) for side in pair]
    )
    one = lively(fresh(tokenizer, tokenizer).c)
    one.tokenizer = tokenizer

    assert isinstance(one.translate(SENTENCE), str)


# ---------------------------------------------------------------- batches


@pytest.mark.slow
def test_texts_in_a_batch_are_translated_as_each_alone(monkeypatch):
    one = odd()
    alone = [one.translations([source], num_return_sequences=2)[0] for source in SOURCES]
    monkeypatch.setattr(room, "BATCH_TOKENS", 150)  # several batches
    together = one.translations(SOURCES, num_return_sequences=2)

    assert [each.prompt for each in together] == SOURCES
    assert [each.text for each in together] == [each.text for each in alone]
    assert [each.others[0].ids for each in together] == [each.others[0].ids for each in alone]
    torch.testing.assert_close(*(torch.tensor([each.score for each in rows]) for rows in (together, alone)))


def test_a_batch_holds_texts_of_like_length_and_not_too_many():
    assert list(length_batches([9, 2, 3, 50, 2], 40, copies=4)) == [[1, 4, 2], [0], [3]]
    assert list(length_batches([], 40, copies=4)) == []


def test_no_texts_have_no_translations():
    assert odd().translate([]) == []


def test_a_translation_has_at_most_twice_its_source_and_a_few_tokens_unless_said(monkeypatch):
    monkeypatch.setattr(room, "MORE", 3)
    one = odd()
    with torch.no_grad():
        one.head.weight[one.target_tokenizer.special_ids["eos"]] = -100 * one.head.weight.mean(0)
    source, most = "The cat sat.", 2 * 5 + 3
    free = one.translations([source], length_penalty=9.0)[0]

    assert (
        len(free.ids) <= most
        and Translator(one).max_target_tokens(5, C.from_dict(generation.BeamSearchParams, {})) == most
    )
    assert len(one.translations([source], max_new_tokens=4, length_penalty=9.0)[0].ids) <= 4
    assert (
        Translator(one).max_target_tokens(15, C.from_dict(generation.BeamSearchParams, {})) == LONGEST
    )  # no more than the decoder has places for


# ---------------------------------------------------------------- a toy that has learnt


@pytest.mark.slow
@pytest.mark.spec("S173")
def test_the_sentence_of_the_lecture_is_translated_though_never_seen():
    assert len(SENTENCE.split()) == 12
    assert SENTENCE == "The agreement on the European Economic Area was signed in August 1992."
    assert learnt().translate(SENTENCE) == "L'accord sur la zone économique européenne a été signé en août 1992."


@pytest.mark.slow
@pytest.mark.spec("S157", "S173")
def test_adjectives_that_change_places_are_found_where_they_stood():
    seen = dict(learnt().align(SENTENCE).likeliest())
    found = {told: seen[f"·{told}"] for told in ("zone", "économique", "européenne")}

    assert found == {"zone": "·Area", "économique": "·Economic", "européenne": "·European"}


@pytest.mark.slow
@pytest.mark.spec("S157", "S172")
def test_the_cat_is_looked_at_while_its_word_is_told():
    seen = learnt().align("The cat sat.")
    row = seen.weights[seen.target.index("·chat")]

    assert learnt().translate("The cat sat.") == "Le chat dormit."
    assert seen.source == ("The", "·cat", "·sat", ".", "<end>") and seen.source[row.argmax()] == "·cat"
    assert row[1] > 0.5  # the lecture's own has .8


@pytest.mark.slow
@pytest.mark.spec("S157")
def test_most_words_are_told_while_looking_at_the_word_that_they_translate():
    words = {told: source for table in (*PACTS[1:], NOUN, VERB) for source, told in table.items()}
    pairs_ = [pair for source, _ in pairs(40, Random(7)) for pair in learnt().align(source).likeliest()]
    right = [words[told.strip("·")] == source.strip("·") for told, source in pairs_ if told.strip("·") in words]

    assert len(right) > 100 and sum(right) / len(right) > 0.85


@pytest.mark.slow
@pytest.mark.spec("S108")
def test_beams_find_a_likelier_translation_than_one_beam_or_the_same():
    sources = [source for source, _ in pairs(20, Random(5))]
    one, many = (learnt().translations(sources, num_beams=beams, length_penalty=0.0) for beams in (1, 6))

    assert all(b.score >= a.score - 1e-6 for a, b in zip(one, many, strict=True))


# ---------------------------------------------------------------- alignment


def test_rows_of_an_alignment_sum_to_one_and_have_the_names_of_their_tokens():
    one = odd(depth=3)
    seen = one.align(SENTENCE, TOLD)

    assert seen.layer == 1  # the last but one
    assert seen.weights.shape == (len(seen.target), len(seen.source)) == (14, 14)
    assert seen.source[-1] == seen.target[-1] == "<end>" and seen.source[4] == "·European"
    torch.testing.assert_close(seen.weights.sum(-1), torch.ones(14))


@pytest.mark.parametrize("layer", [0, 2, -1])
def test_an_alignment_is_the_pattern_of_cross_attention_averaged_over_heads(layer):
    one = odd(depth=3, attention=C.Attention(heads=3))
    read, told = Translator(one).source(SENTENCE), one.target_tokenizer.encode(TOLD)
    heard = [one.target_tokenizer.special_ids["bos"], *told]
    with regard.looking(one, f"trunk.{layer % 3}.cross.pattern") as seen, torch.no_grad():
        one(torch.tensor([heard]), source=torch.tensor([read]))
    pattern = seen[f"trunk.{layer % 3}.cross.pattern"][0]

    assert pattern.shape[0] == 3
    torch.testing.assert_close(one.align(SENTENCE, TOLD, layer).weights, pattern.mean(0).float())
    torch.testing.assert_close(one.align(SENTENCE, told, layer).weights, pattern.mean(0)[:-1].float())  # told no end


def test_without_a_target_the_own_translation_is_aligned():
    one = odd()
    [best] = one.translations([SENTENCE])

    assert one.align(SENTENCE).target == tuple(map(one.target_tokenizer.token_text, best.ids))


def test_looking_leaves_nothing_behind():
    one = odd(dropout=C.Dropout(attention=0.5))
    one.train()
    first, again = one.align(SENTENCE, TOLD), one.align(SENTENCE, TOLD)

    assert one.training and one.hooks == ()
    assert torch.equal(first.weights, again.weights)


# ---------------------------------------------------------------- mistakes

LONG_TEXT = " ".join(["The cat sat."] * 20)


def no_encoder() -> Model:
    one = lively(C.Transformer(embed=C.TextEmbedding(vocab=9), trunk=trunk()))
    one.tokenizer = speakers()[0]
    return one


def no_tokenizer() -> Model:
    one = odd()
    one.tokenizer = one.target_tokenizer = None
    return one


def other_words() -> Model:
    one = odd()
    one.tokenizer = train_tokenizer(C.WordTokenizer(vocab=900), ["a zebra crossing"])
    return one


MISTAKES = {
    "no encoder": (no_encoder, "a", {}, C.ConfigError, "^this model has no encoder; .* use generate$"),
    "no tokenizer": (no_tokenizer, "a", {}, C.DataError, "^this model has no tokenizer"),
    "empty": (odd, "  ", {}, C.DataError, "^text: '  ' is empty; give it some words$"),
    "one of several": (odd, ["The cat.", ""], {}, C.DataError, "^text 2: '' is empty"),
    "too long": (odd, LONG_TEXT, {}, C.DataError, "^text: 80 tokens are more than the 30 .* in shorter pieces"),
    "other words": (other_words, "a zebra", {}, C.DataError, "^text: id .* is outside .*; use the tokenizer"),
    "too many": (
        odd,
        "The cat.",
        dict(max_new_tokens=32),
        C.ConfigError,
        "^max_new_tokens: 32 tokens .* set max_new_tokens to 31 or less$",
    ),
    "drawn": (odd, "The cat.", dict(temperature=0.5), C.ConfigError, "^temperature: beam search does not sample"),
    "several": (
        odd,
        "The cat.",
        dict(num_return_sequences=2),
        C.ConfigError,
        "^num_return_sequences: translate returns the best .* model.translations",
    ),
    "misspelt": (odd, "The cat.", dict(beam=5), C.ConfigError, "^beam: no such setting; did you mean 'num_beams'"),
}


@pytest.mark.parametrize("one, text, settings, error, message", MISTAKES.values(), ids=MISTAKES)
def test_what_cannot_be_translated_is_told_in_a_sentence(one, text, settings, error, message):
    with pytest.raises(error, match=message):
        one().translate(text, **settings)


def test_what_cannot_be_aligned_is_told_in_a_sentence():
    one = odd()

    with pytest.raises(C.ConfigError, match="^layer: 4 is none of the decoder's layers, 0 to 0$"):
        one.align(SENTENCE, TOLD, layer=4)
    with pytest.raises(C.DataError, match="^target: 81 tokens, and this model reads 1 to 31 at once"):
        one.align(SENTENCE, LONG_TEXT.replace("The", "Le"))
    with pytest.raises(C.DataError, match="^source: '' is empty"):
        one.align("", TOLD)
    with pytest.raises(C.DataError, match="^target: id 500 is outside the model's vocabulary"):
        one.align(SENTENCE, [1, 500])


def test_a_second_tokenizer_and_the_first_token_of_a_target_are_saved_too(tmp_path):
    one = odd().float()
    one.save(tmp_path / "saved")
    again = regard.load(tmp_path / "saved", "cpu")

    assert again.tokenizer.text() == one.tokenizer.text()
    assert again.target_tokenizer.text() == one.target_tokenizer.text()
    assert again.decoder_start_id == one.decoder_start_id
    assert again.translate(SENTENCE) == one.translate(SENTENCE)
