"""What each kind of tokenizer learns from a text."""

import subprocess
import sys

import pytest

from regard import config as C
from regard.config.errors import ConfigError, DataError
from regard.data.sources import read_texts
from regard.text.tokenizer import Tokenizer
from regard.text.trainers import train_tokenizer

LECTURE = "After a long day at work, she sat down to enjoy a warm cup of"
SLIDE = [22, 0, 432, 150, 15, 1700, 898, 900, 99, 1200, 501, 0, 1895, 203, 332]


@pytest.fixture(scope="module")
def shakespeare():
    [document] = read_texts(("shakespeare",))
    return document.text


@pytest.mark.spec("S072")
def test_the_characters_of_shakespeare_are_65_in_their_order_and_nothing_else(shakespeare):
    tokenizer = train_tokenizer(C.CharTokenizer(byte_fallback=False), [shakespeare])

    assert len(tokenizer) == 65 and tokenizer.special_ids == {} and not tokenizer.specials
    assert [tokenizer.decode([id]) for id in range(65)] == sorted(set(shakespeare))
    assert tokenizer.encode("hii there") == [46, 47, 47, 1, 58, 46, 43, 56, 43]  # as in Karpathy's lecture on GPT


def test_a_character_outside_is_refused_by_name_place_and_remedy():
    tokenizer = train_tokenizer(C.CharTokenizer(byte_fallback=False), ["abc\n"])

    with pytest.raises(DataError, match=r"character 2 of the text, 'é' \(U\+00E9\).*tokenizer.byte_fallback=true"):
        tokenizer.encode("abé")


def test_with_the_fallback_a_character_outside_becomes_bytes():
    tokenizer = train_tokenizer(C.CharTokenizer(), ["cab"])

    assert len(tokenizer) == 3 + 256
    assert [tokenizer.token_text(id) for id in tokenizer.encode("aéb")] == ["a", "<0xC3>", "<0xA9>", "b"]


def test_the_id_of_a_byte_is_the_byte():
    tokenizer = train_tokenizer(C.ByteTokenizer(), [])

    assert len(tokenizer) == 256
    assert tokenizer.encode("né\n") == list("né\n".encode())


@pytest.mark.spec("S074")
def test_the_lectures_sentence_is_fifteen_words_and_both_a_are_one(shakespeare):
    """The slide has an id for each word and none for the comma; here a mark is a token of its own."""
    tokenizer = train_tokenizer(C.WordTokenizer(byte_fallback=False), [LECTURE, shakespeare])
    ids = tokenizer.encode(LECTURE)
    words = [id for id in ids if tokenizer.token_text(id) != ","]

    assert len(ids) == 16 and len(words) == len(SLIDE) == 15
    assert [words.index(id) for id in words] == [SLIDE.index(id) for id in SLIDE]  # who is the same as whom
    assert tokenizer.token_text(words[1]) == tokenizer.token_text(words[11]) == "·a"
    assert tokenizer.decode(ids) == LECTURE


def test_the_most_frequent_words_are_kept_and_others_are_unknown():
    tokenizer = train_tokenizer(C.WordTokenizer(vocab=6, byte_fallback=False), [" to be or not to be to"])

    assert len(tokenizer) == 6 and set(tokenizer.special_ids) == {"pad", "bos", "eos", "unk"}
    assert tokenizer.decode(tokenizer.encode(" to be or not")) == " to be<unk><unk>"


def test_unknown_words_are_spelt_in_bytes_with_the_fallback():
    tokenizer = train_tokenizer(C.WordTokenizer(vocab=3 + 256 + 2), [" to be to be or"])

    assert tokenizer.encode(" to") == [3 + 256 + 1]  # after specials and bytes; " be" is as frequent, and before it
    assert tokenizer.encode(" to do") == [3 + 256 + 1, 3 + ord(" "), 3 + ord("d"), 3 + ord("o")]


@pytest.mark.spec("S073")
@pytest.mark.parametrize(
    ("setting", "roles"),
    [
        (C.CharTokenizer(), {}),
        (C.ByteTokenizer(), {}),
        (C.WordTokenizer(), {"pad": "<pad>", "bos": "<start>", "eos": "<end>"}),
        (C.WordTokenizer(byte_fallback=False), {"pad": "<pad>", "bos": "<start>", "eos": "<end>", "unk": "<unk>"}),
        (C.SubwordTokenizer(kind="bpe"), {"eos": "<|endoftext|>"}),
        (
            C.SubwordTokenizer(kind="wordpiece"),
            {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
        ),
        (C.SubwordTokenizer(kind="unigram"), {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_special_tokens_have_roles_and_survive_the_file(setting, roles, tmp_path):
    tokenizer = train_tokenizer(setting, ["some words and some more words"])
    tokenizer.save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()  # the names alone must do

    for found in (tokenizer, Tokenizer.load(tmp_path)):
        assert {role: found.token_text(id) for role, id in found.special_ids.items()} == roles
        assert found.decode([*found.specials]) == ""


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_pieces_shorten_text_and_stay_within_the_vocabulary(kind, shakespeare):
    tokenizer = train_tokenizer(C.SubwordTokenizer(kind=kind, vocab=777), [shakespeare[:200_000]])

    assert len(tokenizer) <= 777
    assert len(tokenizer.encode(shakespeare[:9999])) < 0.6 * 9999


def test_a_vocabulary_without_room_names_the_setting():
    for setting in (C.WordTokenizer(vocab=200), C.SubwordTokenizer(kind="wordpiece", vocab=400)):
        with pytest.raises(ConfigError, match=r"tokenizer.vocab: \d+ is too few"):
            train_tokenizer(setting, ["a b c"])
    with pytest.raises(ConfigError, match=r"tokenizer.vocab: 300 is too few for all characters"):
        train_tokenizer(C.SubwordTokenizer(kind="unigram", vocab=300), ["".join(map(chr, range(0x4E00, 0x4F00)))])


@pytest.mark.parametrize(
    "setting",
    [C.CharTokenizer(), C.WordTokenizer(), C.SubwordTokenizer(kind="unigram"), C.SubwordTokenizer(kind="bpe")],
)
def test_training_on_nothing_is_refused(setting):
    with pytest.raises(DataError, match="no text to train"):
        train_tokenizer(setting, ["", ""])


def test_a_text_given_bare_is_one_text():
    assert (
        train_tokenizer(C.SubwordTokenizer(vocab=300), "be be be to be").text()
        == train_tokenizer(C.SubwordTokenizer(vocab=300), ["be be be to be"]).text()
    )


PROGRAM = """
import hashlib
from regard import config as C
from regard.data import read_texts
from regard.text import train_tokenizer
[document] = read_texts(("shakespeare",))
kinds = ("bpe", "wordpiece", "unigram")
pieces = [C.SubwordTokenizer(kind=kind, vocab=vocab) for kind in kinds for vocab in (600, 1500)]
for setting in (C.WordTokenizer(), *pieces):
    print(hashlib.sha256(train_tokenizer(setting, [document.text[:60_000]]).text().encode()).hexdigest())
"""


@pytest.mark.slow
def test_the_same_text_gives_the_same_file_in_every_process():
    """`tokenizers` hashes with keys that differ from process to process; none of that may show."""
    runs = [subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True) for _ in range(3)]
    said = {run.stdout for run in runs}

    assert len(said) == 1 and len(said.pop().split()) == 7
