"""Nothing is lost: decode(encode(text)) == text, whole, in parts, and as a stream."""

from dataclasses import replace

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from regard import config as C
from regard.config.errors import DataError
from regard.text.tokenizer import Tokenizer
from regard.text.trainers import train_tokenizer

TEXT = (
    "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n"
    "After a long day at work, she sat down to enjoy a warm cup of coffee; it's 7 o'clock.\n\n\n\n    The end.\n"
) * 9  # runs of spaces and of line breaks become pieces too
SAYS_ALL = {
    "char": C.CharTokenizer(),
    "byte": C.ByteTokenizer(),
    "word": C.WordTokenizer(vocab=300),
    "bpe": C.SubwordTokenizer(kind="bpe", vocab=301),
    "wordpiece": C.SubwordTokenizer(kind="wordpiece", vocab=560),
    "unigram": C.SubwordTokenizer(kind="unigram", vocab=333),
}
MADE = {kind: train_tokenizer(setting, [TEXT]) for kind, setting in SAYS_ALL.items()}
LOWER = {
    kind: train_tokenizer(replace(SAYS_ALL[kind], lowercase=True), [TEXT])
    for kind in ("word", "bpe", "wordpiece", "unigram")
}
ODD = [
    "", " ", "  two  spaces  ", "\r\n\r\n\t\n", "\x00\x01\x1c\x85\u2028", "e\u0301 é \u200d\ufeff", "日本語 🙂👩‍👩‍👧",
    "<|endoftext|> [MASK] [UNK] <pad></s>", "<0x0A>", "##ing ## # ###", "\u2581the Ġthe", "\ufffd", "don't o''clock",
]  # fmt: skip


@pytest.mark.spec("S072")
@pytest.mark.parametrize("kind", SAYS_ALL)
@given(text=st.text() | st.text("ae '\n<>|#0xA[]") | st.sampled_from(ODD))
def test_any_text_survives_every_kind_with_bytes_to_fall_back_on(kind, text):
    tokenizer = MADE[kind]
    ids = tokenizer.encode(text)

    assert tokenizer.decode(ids) == text
    assert all(0 <= id < len(tokenizer) for id in ids)


@pytest.mark.parametrize("kind", SAYS_ALL)
@given(text=st.text() | st.sampled_from(ODD))
def test_special_tokens_cannot_be_typed(kind, text):
    assert not MADE[kind].specials & set(MADE[kind].encode(text))


@pytest.mark.parametrize("kind", LOWER)
@given(text=st.text())
@example(text="ÀÉ İstanbul ΣΑΣ")
def test_lower_changes_each_letter_to_its_small_one_and_nothing_else(kind, text):
    tokenizer = LOWER[kind]

    assert tokenizer.decode(tokenizer.encode(text)) == "".join(letter.lower() for letter in text)


@pytest.mark.parametrize("kind", SAYS_ALL)
@given(text=st.text() | st.sampled_from(ODD))
def test_looking_up_and_spelling_are_what_the_library_does(kind, text):
    """Characters and bytes are encoded by a table and all kinds decoded by one: the same as the long way round."""
    tokenizer = MADE[kind]
    ids = tokenizer.inner.encode(text, add_special_tokens=False).ids

    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == tokenizer.inner.decode(ids)


@pytest.mark.parametrize("kind", SAYS_ALL)
@given(data=st.data())
def test_a_stream_says_what_decode_says_and_never_half_a_character(kind, data):
    tokenizer = MADE[kind]
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=40) | st.text().map(tokenizer.encode))
    stream = tokenizer.stream()
    said = [stream.put(id) for id in ids]

    assert "".join(said) + stream.flush() == tokenizer.decode(ids)


@given(text=st.text())
def test_a_stream_of_a_text_never_shows_a_replacement_for_a_character_to_come(text):
    stream = MADE["byte"].stream()

    assert [said for id in text.encode() if (said := stream.put(id))] == list(text)
    assert stream.flush() == ""


@pytest.mark.parametrize("kind", SAYS_ALL)
@given(words=st.lists(st.sampled_from([*TEXT.split(" ")[:40], *ODD, " a", "\n\nB", "x\ny"])), size=st.integers(1, 50))
def test_a_text_cut_anew_is_encoded_as_the_whole(kind, words, size):
    text, tokenizer = " ".join(words), MADE[kind]
    parts = list(tokenizer.cut(text[start : start + size] for start in range(0, len(text), size)))

    assert "".join(parts) == text
    assert [id for part in parts for id in tokenizer.inner.encode(part).ids] == tokenizer.inner.encode(text).ids


@pytest.mark.parametrize("kind", SAYS_ALL)
def test_a_long_text_is_cut_into_many_parts_and_encoded_as_the_whole(kind):
    text, tokenizer = TEXT * 150, MADE[kind]

    assert len(list(tokenizer.cut(text[start : start + 9999] for start in range(0, len(text), 9999)))) > 20
    assert tokenizer.encode(text) == tokenizer.inner.encode(text).ids


def unsplit(inner):
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def joined(inner):
    inner.normalizer = tokenizers.normalizers.Replace("the end", "THE END")


def added(inner):
    inner.add_tokens(["the end"])


@pytest.mark.parametrize("change", [unsplit, joined, added])
def test_a_rule_that_could_see_across_a_border_is_never_cut(change):
    tokenizer = train_tokenizer(C.SubwordTokenizer(vocab=301), [TEXT])
    change(tokenizer.inner)
    tokenizer = Tokenizer(tokenizer.inner)
    text = "this is the end " * 5000

    assert list(tokenizer.cut([text[:12], text[12:]])) == [text]
    assert tokenizer.encode(text) == tokenizer.inner.encode(text).ids


@pytest.mark.parametrize("kind", SAYS_ALL)
def test_half_a_surrogate_pair_is_refused_by_name_and_place(kind):
    with pytest.raises(DataError, match=r"character 3 .*U\+D83D.*surrogate"):
        MADE[kind].encode("abc\ud83d")


@pytest.mark.parametrize("id", [-1, 256, 10**9])
def test_an_id_outside_the_vocabulary_is_refused(id):
    tokenizer = MADE["byte"]
    for use in (
        lambda: tokenizer.decode([65, id]),
        lambda: tokenizer.token_text(id),
        lambda: tokenizer.stream().put(id),
    ):
        with pytest.raises(DataError, match=f"token {id} is outside this vocabulary of 256"):
            use()


@pytest.mark.parametrize(("token", "shown"), [
    (b" ", "·"), (b"\n", "⏎"), (b"\t", "⇥"), (b"a", "a"), (b"\x00", "<0x00>"), (b"\xe2", "<0xE2>"), (b"\x7f", "<0x7F>"),
])  # fmt: skip
def test_a_piece_is_shown_so_that_a_person_can_see_it(token, shown):
    assert MADE["byte"].token_text(token[0]) == shown


def test_pieces_of_words_are_shown_with_their_space_and_specials_by_name():
    tokenizer = MADE["bpe"]

    assert tokenizer.token_text(tokenizer.special_ids["eos"]) == "<|endoftext|>"
    assert "".join(map(tokenizer.token_text, tokenizer.encode(" speak é\n"))) == "·speak·<0xC3><0xA9>⏎"
