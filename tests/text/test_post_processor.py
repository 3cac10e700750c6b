"""Texts between the special tokens that a model was trained to see: as `transformers` puts them."""

import json
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text.test_tokenizer_files import bert, llama
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from regard import config as C
from regard.config.errors import DataError
from regard.text.special_tokens import truncate_encoding
from regard.text.tokenizer import Tokenizer
from regard.text.trainers import train_tokenizer

TEXTS = st.text("dogs unhapy!,é", max_size=30)
OTHERS = st.text("dogs unhapy!,é", min_size=1, max_size=30)  # transformers takes an empty one for none


def roberta():
    """As RoBERTa's is built: pairs are <s> one </s></s> two </s>, and <mask> takes the space before it."""
    inner = train_tokenizer(C.SubwordTokenizer(kind="bpe", vocab=301), ["unhappy dogs, happy dogs!"]).inner
    inner.add_special_tokens(["<s>", "</s>"])
    ids = {name: inner.token_to_id(name) for name in ("<s>", "</s>")}
    inner.post_processor = processors.RobertaProcessing(("</s>", ids["</s>"]), ("<s>", ids["<s>"]))
    return inner


def t5():
    """As T5's is built: one </s> after each text."""
    inner = llama()
    inner.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 2)])
    return inner


MAKES = {make.__name__: make for make in (bert, llama, roberta, t5)}


@cache
def both(name):
    return Tokenizer(MAKES[name]()), PreTrainedTokenizerFast(tokenizer_object=MAKES[name]())


@pytest.mark.parametrize("name", MAKES)
@given(text=TEXTS, other=st.none() | OTHERS, longest=st.none() | st.integers(6, 40))
def test_what_stands_around_texts_and_what_is_cut_of_them_is_as_transformers_has_it(name, text, other, longest):
    ours, theirs = both(name)
    want = theirs(text, other, truncation=longest is not None, max_length=longest, return_token_type_ids=True,
                  return_offsets_mapping=True)  # fmt: skip
    got = ours.encode_with_specials(text, other, longest)

    assert (got.ids, got.segments, got.spans) == (want["input_ids"], want["token_type_ids"], want["offset_mapping"])
    assert got.owners == want.sequence_ids()


def test_what_is_cut_off_two_long_texts_is_not_kept():
    """The library would put each of 300 pieces of one beside each of the other: ninety thousand."""
    tokenizer = Tokenizer(bert())
    text, other = "dogs " * 600, "unhappy dogs " * 300
    framed = tokenizer.encode_with_specials(text, other, longest=11)
    part = tokenizer.inner.encode(text, add_special_tokens=False)
    whole = part.ids
    truncate_encoding(part, 4)

    assert len(framed) == 11
    assert part.ids == whole[:4] and sum(map(len, part.overflowing)) == 1


def test_spans_are_the_characters_of_the_text_that_owns_the_token():
    text, other = "Unhappy dogs!", "Dogs, unhappy"
    framed = Tokenizer(bert()).encode_with_specials(text, other)
    said = [(text, other)[owner][slice(*span)] for owner, span in zip(framed.owners, framed.spans, strict=True)
            if owner is not None]  # fmt: skip

    assert said == ["Un", "happy", "dog", "s", "!", "Dog", "s", ",", "un", "happy"]


@pytest.mark.parametrize("name, before", [("bert", [2]), ("t5", []), ("llama", [])])
def test_what_every_text_begins_with_is_known(name, before):
    assert Tokenizer(MAKES[name]()).leading_ids == before


def test_a_mask_is_seen_in_a_text_only_when_it_is_asked_for():
    plain = Tokenizer(bert(), specials="plain")
    seeing = plain.without_special("mask")
    text = "dogs [MASK] dog [SEP]"

    assert plain.special_ids["mask"] not in plain.encode(text)
    assert seeing.encode(text).count(plain.special_ids["mask"]) == 1 and plain.special_ids["sep"] not in seeing.encode(
        text
    )
    assert seeing.encode_with_specials("dogs dog").ids == plain.encode_with_specials("dogs dog").ids
    assert plain.special_ids["mask"] not in plain.encode(text)


def test_a_text_without_the_role_asked_for_is_refused():
    with pytest.raises(DataError, match="no mask token; it has bos, unk"):
        Tokenizer(llama(), {"bos_token": "<s>"}).without_special("mask")


def test_too_little_room_is_refused():
    with pytest.raises(DataError, match="2 tokens are too few"):
        Tokenizer(bert()).encode_with_specials("dogs", longest=2)


def test_a_character_that_cannot_be_said_is_told_by_its_place_in_its_own_text():
    with pytest.raises(DataError, match="character 2 of the text"):
        Tokenizer(bert()).encode_with_specials("dogs", "ab\ud800")


def test_a_file_cannot_put_ids_around_a_text_that_its_vocabulary_lacks(tmp_path):
    spec = json.loads(bert().to_str())
    spec["post_processor"] |= {"sep": ["[SEP]", 1_000_003]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))

    with pytest.raises(DataError, match="1000003 is outside this vocabulary of 11"):
        Tokenizer.load(tmp_path).encode_with_specials("dogs")
