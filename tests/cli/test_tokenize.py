"""regard tokenize: what it writes is a tokenizer that others open, and nothing is lost between text and ids."""

import json

import pytest
import tokenizers

ODD = "  two  spaces,\r\n\ttabs, é, 日本, 🙂 and a NUL\x00.\n\n"


@pytest.mark.parametrize("kind", ["char", "byte", "word", "bpe", "wordpiece", "unigram"])
def test_a_trained_tokenizer_is_a_file_that_tokenizers_opens(say, desk, kind):
    told = say("tokenize", "train", kind, "text.txt", "--out", "made", "--json")
    theirs = tokenizers.Tokenizer.from_file("made/tokenizer.json")

    assert (told.code, told.err) == (0, "")
    assert json.loads(told.out)["vocab"] == theirs.get_vocab_size()
    assert say("tokenize", "encode", "made", "the cat").out.split() == [
        str(id) for id in theirs.encode("the cat", add_special_tokens=False).ids
    ]


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_text_through_a_pipe_of_encode_and_decode_is_the_same_text(say, desk, kind):
    say("tokenize", "train", kind, "text.txt", "--out", "made")
    ids = say("tokenize", "encode", "made", "-", stdin=ODD.encode()).out
    told = say("tokenize", "decode", "made", "-", stdin=ids.encode())

    assert told.out == ODD


def test_the_size_of_the_vocabulary_is_the_one_asked_for(say, desk):
    told = json.loads(say("tokenize", "train", "bpe", "text.txt", "--vocab-size", 300, "--out", "made", "--json").out)

    assert told["vocab"] <= 300 and told["roles"]["eos"] == 0


def test_lower_reads_capitals_as_small_letters(say, desk):
    say("tokenize", "train", "word", "text.txt", "--lowercase", "--out", "made")

    assert say("tokenize", "encode", "made", "THE cat").out == say("tokenize", "encode", "made", "the cat").out


def test_standard_input_may_be_learnt_from(say, desk):
    say("tokenize", "train", "char", "-", "--out", "made", stdin=b"cab")
    told = json.loads(say("tokenize", "encode", "made/tokenizer.json", "abc", "--json").out)

    assert told == {"ids": [0, 1, 2], "pieces": ["a", "b", "c"]}


def test_ids_may_be_several_words_or_one(say, desk):
    say("tokenize", "train", "char", "-", "--out", "made", stdin=b"abc")

    assert say("tokenize", "decode", "made", 2, 0, 1).out == say("tokenize", "decode", "made", "2 0 1").out == "cab"
    assert json.loads(say("tokenize", "decode", "made", 2, "--json").out) == {"text": "c"}


def test_special_tokens_in_a_text_are_parsed_unless_it_is_plain(say, desk):
    say("tokenize", "train", "bpe", "text.txt", "--vocab-size", 300, "--out", "made")
    text = "the<|endoftext|>cat"
    encode = ("tokenize", "encode", "made", text, "--specials")
    parsed, plain = (say(*encode, how).out.split() for how in ("parse", "plain"))

    assert say("tokenize", "encode", "made", text).out.split() == parsed and parsed.count("0") == 1
    assert "0" not in plain and say("tokenize", "decode", "made", *plain).out == text
    told = say(*encode, "split")
    assert (told.code, told.err) == (2, "regard: --specials: no 'split'; there are parse and plain\n")
