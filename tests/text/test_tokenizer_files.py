"""tokenizer.json both ways: others open ours, we open others', and no file crashes us."""

import base64
import json
import os
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from regard import config as C
from regard.config.errors import DataError
from regard.text.tokenizer import Tokenizer
from regard.text.trainers import train_tokenizer

TEXT = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak; it's late.\n" * 7
KINDS = {
    "char": C.CharTokenizer(byte_fallback=False),
    "char and bytes": C.CharTokenizer(),
    "byte": C.ByteTokenizer(),
    "word": C.WordTokenizer(vocab=300),
    "word or unknown": C.WordTokenizer(vocab=99, byte_fallback=False),
    "bpe": C.SubwordTokenizer(kind="bpe", vocab=301),
    "wordpiece": C.SubwordTokenizer(kind="wordpiece", vocab=560),
    "unigram": C.SubwordTokenizer(kind="unigram", vocab=333),
    "lower": C.SubwordTokenizer(kind="bpe", vocab=301, lowercase=True),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folders = {name: tmp_path_factory.mktemp(name.replace(" ", "_")) for name in KINDS}
    for name, setting in KINDS.items():
        train_tokenizer(setting, [TEXT]).save(folders[name])
    return folders


# ---------------------------------------------------------------- ours, read by others and by us


@pytest.mark.parametrize("name", KINDS)
def test_saving_and_loading_changes_nothing(name, folders, tmp_path):
    first = train_tokenizer(KINDS[name], [TEXT])
    again = Tokenizer.load(folders[name])
    again.save(tmp_path)

    assert again.text() == first.text() and again.special_ids == first.special_ids
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        path.name: path.read_text() for path in folders[name].iterdir()
    }
    assert Tokenizer.load(folders[name] / "tokenizer.json").encode(TEXT[:50]) == first.encode(TEXT[:50])


@pytest.mark.spec("S072")
@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_transformers_opens_every_kind_and_agrees(name, folders):
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    ours, folder = Tokenizer.load(folders[name]), str(folders[name])
    by_file = PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")
    by_folder = AutoTokenizer.from_pretrained(folder)
    letters = sorted(set(TEXT)) if ours.alphabet is not None else None

    @given(st.text(letters) if letters else st.text() | st.lists(st.sampled_from(TEXT.split(" "))).map(" ".join))
    def agree(text):
        ids = ours.encode(text)
        for theirs in (by_file, by_folder):
            assert theirs.encode(text) == ids
            assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids)

    agree()
    assert len(by_folder) == len(ours)
    for role in ("pad", "bos", "eos", "mask", "cls", "sep"):
        assert getattr(by_folder, f"{role}_token_id") == ours.special_ids.get(role)


# ---------------------------------------------------------------- others', read by us


def bert() -> tokenizers.Tokenizer:
    """As `bert-base-uncased` is built: lower case, spaces dropped, ## inside words, [CLS] and [SEP] around."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##happy", "##s", "dog", "!", ","]
    vocab = {name: id for id, name in enumerate(names)}
    inner = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    inner.post_processor, inner.decoder = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)), decoders.WordPiece()
    inner.add_special_tokens(names[:5])
    return inner


def llama() -> tokenizers.Tokenizer:
    """As Llama 2's is built: spaces are ▁, one is put before the text, unknown characters are bytes."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abc", "▁a", "▁ab"]
    vocab, merges = {name: id for id, name in enumerate(names)}, [("▁", "a"), ("▁a", "b")]
    inner = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(steps)
    inner.add_special_tokens(names[:3])
    return inner


def test_a_tokenizer_as_berts_is_read_without_adding_specials(tmp_path):
    bert().save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)

    assert [tokenizer.token_text(id) for id in tokenizer.encode("Unhappy dogs!")] == [
        "un",
        "##happy",
        "dog",
        "##s",
        "!",
    ]
    assert tokenizer.decode(tokenizer.encode("Unhappy dogs!")) == "unhappy dogs!"
    assert tokenizer.special_ids == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}


@pytest.mark.parametrize("make", [bert, llama])
@given(data=st.data())
def test_a_stream_through_any_decoder_says_what_decode_says(make, data):
    tokenizer = Tokenizer(make())
    assert tokenizer.spelling is None
    ids = data.draw(st.text("ab cé🙂").map(tokenizer.encode) if make is llama else st.lists(st.integers(0, 10)))
    stream = tokenizer.stream()

    assert "".join(map(stream.put, ids)) + stream.flush() == tokenizer.decode(ids)


def test_a_stream_does_not_lose_the_spaces_of_a_decoder_that_strips():
    tokenizer = Tokenizer(llama())
    stream = tokenizer.stream()

    assert [stream.put(id) for id in tokenizer.encode("ab a é")] == ["ab", " a", " ", "", "é"]


def test_a_card_says_the_roles_and_is_kept_but_for_code(tmp_path):
    inner = tokenizers.Tokenizer(models.WordLevel({"a": 0, "<x>": 1, "<y>": 2}, unk_token="a"))
    inner.add_special_tokens(["<x>", "<y>"])
    inner.save(str(tmp_path / "tokenizer.json"))
    card = {"bos_token": "<x>", "eos_token": {"content": "<y>", "lstrip": False}, "chat_template": "{{ x }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**card, "auto_map": {"AutoTokenizer": "evil.py"}}))
    tokenizer = Tokenizer.load(tmp_path)
    tokenizer.save(tmp_path / "again")
    again = json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())

    assert tokenizer.special_ids == {"bos": 1, "eos": 2, "unk": 0}
    assert again.items() >= card.items() and "auto_map" not in again


def test_a_file_cannot_cut_pad_or_drop_what_it_encodes(tmp_path):
    tokenizer = train_tokenizer(C.SubwordTokenizer(vocab=301), [TEXT])
    spec = json.loads(tokenizer.text())
    spec["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    spec["padding"] = {"strategy": {"Fixed": 10**8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                       "pad_type_id": 0, "pad_token": "x"}  # fmt: skip
    spec["model"]["dropout"] = 0.9
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))

    assert Tokenizer.load(tmp_path).encode(TEXT) == tokenizer.encode(TEXT)


# ---------------------------------------------------------------- files that are no tokenizers

BASE = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
              "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
              "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
}  # fmt: skip


def made(model=None, **changes) -> bytes:
    return json.dumps({**BASE, **changes, "model": {**BASE["model"], **(model or {})}}).encode()


def bomb(pattern: str) -> bytes:
    return made(pre_tokenizer={"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False})


CRAFTED = {
    "empty": b"",
    "no JSON": b"hello",
    "not UTF-8": b'{"version": "\xff\xfe"}',
    "another JSON": b'{"model_type": "gpt2"}',
    "a list": b"[]",
    "a number that is too large": b"1e99999",
    "deep lists": b"[" * 100_000,
    "deep tables": b'{"normalizer":' * 100_000,
    "deep sequences": made(normalizer=0).replace(b"0", b'{"type":"Sequence","normalizers":[' * 500, 1),
    "cut short": made()[:-60],
    "no vocabulary": made({"vocab": {}, "merges": []}),
    "an id far out": made({"vocab": {"a": 4_294_967_295, "b": 1, "ab": 2}}),
    "an id too large": made({"vocab": {"a": 2**63, "b": 1, "ab": 2}}),
    "an id below zero": made({"vocab": {"a": -1, "b": 1, "ab": 2}}),
    "merges of unknown tokens": made({"merges": ["a c"]}),
    "merges of one": made({"merges": ["abc"]}),
    "a prefix longer than tokens (panics)": made({"continuing_subword_prefix": "ééé"}),
    "an unknown model": made({"type": "GPT"}),
    "a bad pattern": bomb("(a"),
    "a pattern that explodes (panics)": bomb("(a+)+$"),
    "another that explodes (panics)": bomb("(a|aa)+$"),
    "a charsmap that is none (panics)": made(
        normalizer={"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\xff" * 54).decode()}
    ),
    "chunks of nothing (panics)": made(pre_tokenizer={"type": "FixedLength", "length": 0}),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_file_is_one_sentence_with_its_path(name, tmp_path, capfd):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(CRAFTED[name])
    for given_path in (path, tmp_path):
        with pytest.raises(DataError) as caught:
            Tokenizer.load(given_path)

        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
        assert caught.value.__suppress_context__
    assert capfd.readouterr().err == ""  # panics show their stack unless somebody holds it back


def test_panics_after_loading_are_errors_too(tmp_path):
    """The trial sentence does not meet every trap."""
    (tmp_path / "tokenizer.json").write_bytes(bomb("(b|b)+$"))
    tokenizer = Tokenizer.load(tmp_path)

    with pytest.raises(DataError, match="cannot be encoded"):
        tokenizer.encode("b" * 40 + "a")


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"[" * 100_000, b'{"eos_token": {"contents": 1}}'])
def test_a_damaged_card_is_one_sentence_with_its_path(name, content, tmp_path):
    train_tokenizer(C.ByteTokenizer(), []).save(tmp_path)
    (tmp_path / name).write_bytes(content)

    with pytest.raises(DataError, match=str(tmp_path)):
        Tokenizer.load(tmp_path)


def test_what_is_not_a_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(300 << 20)  # a hole: takes no room

    for path, reason in {
        "missing.json": "no such file", "pipe": "not a regular file", "folder": "no such file", "large.json": "bytes",
        "nul\0byte": "null byte",
    }.items():  # fmt: skip
        with pytest.raises(DataError, match=f"{reason}.*name a tokenizer.json or a folder with one"):
            Tokenizer.load(tmp_path / path)
    with pytest.raises(DataError, match="not a regular file"):
        Tokenizer.load("/dev/zero")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_refused(tmp_path):
    train_tokenizer(C.ByteTokenizer(), []).save(tmp_path)
    (tmp_path / "tokenizer.json").chmod(0)

    with pytest.raises(DataError, match="permission denied"):
        Tokenizer.load(tmp_path)


def test_interrupting_is_not_an_error_of_the_file():
    def texts():
        yield "some text"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_tokenizer(C.SubwordTokenizer(), texts())


def test_what_the_error_stream_says_while_loading_is_shown_after_all(tmp_path, capfd):
    from regard.text.tokenizer_files import mute_stderr

    with mute_stderr():
        os.write(2, b"said meanwhile\n")

    assert capfd.readouterr().err == "said meanwhile\n"


def test_a_saved_tokenizer_is_a_kind_too(folders):
    made = train_tokenizer(C.TokenizerFile(path=str(folders["bpe"])), [])

    assert made.text() == Tokenizer.load(Path(folders["bpe"])).text()
