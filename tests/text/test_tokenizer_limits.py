"""A small tokenizer.json cannot make much of a text: what its steps multiply to is known before it is built."""

import base64
import gc
import json
import time
import weakref

import pytest
from text.test_tokenizer_files import made

from regard.config.errors import DataError
from regard.text.gguf_vocab import GPT2, LLAMA3, QWEN2
from regard.text.special_parsing import compile_tokens
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_limits import check_regex, check_tokenizer_size


def replace(content: str, **pattern: str) -> dict:
    return {"type": "Replace", "pattern": pattern or {"String": "a"}, "content": content}


def template(single: list, ids: int = 1) -> dict:
    tokens = {"a": {"id": "a", "ids": [0] * ids, "tokens": ["a"] * ids}}
    return {"type": "TemplateProcessing", "single": single, "pair": [*single, B], "special_tokens": tokens}


A, B = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
SPECIAL = {"SpecialToken": {"id": "a", "type_id": 0}}
LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
NESTED = {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [replace("aaaa")] * 3}] * 3}
TABLE = base64.b64encode(b"\x08\0\0\0" + bytes(8) + b"a" * 9999 + b"\0").decode()
CHARACTERS = {"type": "Precompiled",
              "precompiled_charsmap": base64.b64encode(bytes(4) + b"a" * 50 + b"\0").decode()}  # fmt: skip
CTC = {"type": "CTC", "pad_token": "p", "word_delimiter_token": "", "cleanup": True}


def sequence(inside: str, *steps) -> dict:
    return {"type": "Sequence", inside: [*steps]}


def added(content: str, id: int = 99) -> dict:
    return {"id": id, "content": content, "special": True, "normalized": True, "lstrip": False, "rstrip": False,
            "single_word": False}  # fmt: skip


def metaspace(sign: str) -> dict:
    return {"type": "Metaspace", "replacement": sign, "prepend_scheme": "always", "split": True}


MANY = {
    "normalizers one after the other": made(normalizer={"type": "Sequence", "normalizers": [replace("aa")] * 30}),
    "normalizers in each other": made(normalizer=NESTED),
    "nothing replaced by much": made(normalizer=replace("a" * 2000, Regex="")),
    "Unicode again and again": made(normalizer={"type": "Sequence", "normalizers": [{"type": "NFKD"}] * 9}),
    "much before each word": made(normalizer={"type": "Prepend", "prepend": "a" * 5000}),
    "a table of characters": made(normalizer={"type": "Precompiled", "precompiled_charsmap": TABLE}),
    "bytes of bytes": made(pre_tokenizer={"type": "Sequence", "pretokenizers": [LEVEL] * 30}),
    "decoders one after the other": made(decoder={"type": "Sequence", "decoders": [replace("aa")] * 30}),
    "a book around a text": made(post_processor=template([SPECIAL] * 900 + [A], ids=900)),
    "a text many times": made(post_processor={"type": "Sequence", "processors": [template([A, A])] * 12}),
    "decoders that look for nothing": made(decoder=sequence("decoders", *[{"type": "BPEDecoder", "suffix": ""}] * 40)),
    "delimiters that are nothing": made(decoder=sequence("decoders", *[CTC] * 40)),
    "signs before each other": made(pre_tokenizer=sequence("pretokenizers", *[metaspace("▁"), metaspace("x")] * 20)),
    "much before a word, then much of each letter": made(
        normalizer=sequence("normalizers", {"type": "Prepend", "prepend": "a" * 999}, *[replace("aa")] * 9)
    ),
    "a little of a normalizer and a little of a pre-tokenizer": made(
        normalizer=replace("a" * 200), pre_tokenizer=sequence("pretokenizers", *[LEVEL] * 3)
    ),
    "a table of characters behind another": made(normalizer=sequence("normalizers", *[CHARACTERS] * 2)),
    "many steps that read much": made(
        normalizer=replace("a" * 200), pre_tokenizer=sequence("pretokenizers", *[{"type": "Whitespace"}] * 40)
    ),
    "many added tokens that grow": made(
        normalizer=replace("a" * 200), added_tokens=[added(f"<{n}>" + "a" * 99, 99 + n) for n in range(100)]
    ),
    "a long text to look for in each token": made(decoder={"type": "BPEDecoder", "suffix": "a" * 100_000}),
    "a token that is a book": made(model={"vocab": {"a": 0, "b" * 100_000: 1}}),
    "an added token that is one": made(added_tokens=[added("a" * 100_000)]),
    "a token that the decoder makes one of": made(model={"vocab": {"a" * 999: 0}}, decoder=replace("a" * 100)),
    "a step without a type": made(normalizer={"pattern": {"String": ""}, "content": "a"}),
    "a step of a type that there is not": made(decoder={"type": "Nothing", "suffix": ""}),
    "a step without names": made(normalizer=sequence("normalizers", *[[{"String": ""}, "aaa"]] * 20)),
    "many steps": made(decoder={"type": "Sequence", "decoders": [{"type": "Fuse"}] * 1000}),
    "much before each letter": made(model={"continuing_subword_prefix": "a" * 1000}),
    "repeats of repeats": made(normalizer=replace("a", Regex="((a{999}){999}){999}")),
}


@pytest.mark.parametrize("name", MANY)
def test_a_small_file_that_makes_much_of_a_text_is_refused_before_it_is_built(name, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(MANY[name])
    began = time.process_time()
    with pytest.raises(DataError, match="not a tokenizer.json that can be used: ") as caught:
        Tokenizer.load(path)

    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert time.process_time() - began < 1
    with pytest.raises(ValueError, match="most|more than|times|letters|forever|a step is"):
        check_tokenizer_size(MANY[name])


def test_what_people_publish_is_far_below_the_bounds():
    """The chains of ALBERT, Llama, BERT and CLIP; the regular expressions of GPT-2, Llama 3, Qwen 2, GPT-4o, OLMo 2."""
    table = base64.b64encode(bytes(4) + "صلى الله عليه وسلم\0".encode()).decode()
    albert = [replace('"', String="``"), {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"},
              {"type": "Precompiled", "precompiled_charsmap": table}, replace(" ", Regex=" {2,}")]  # fmt: skip
    llama = [{"type": "Prepend", "prepend": "▁"}, replace("▁", String=" ")]
    clip = [{"type": "NFC"}, replace(" ", Regex=r"\s+"), {"type": "Lowercase"}]
    decoders = [replace(" ", String="▁"), {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " "}]
    words, split = {"type": "WhitespaceSplit"}, {"type": "Split", "pattern": {"Regex": GPT2[0]}}
    chains = ((albert, [words, metaspace("▁")]), (llama, []), ([{"type": "BertNormalizer"}], [words]),
              (clip, [split, LEVEL]))  # fmt: skip
    for normalizers, cuts in chains:
        check_tokenizer_size(json.dumps({"normalizer": sequence("normalizers", *normalizers),
                               "decoder": sequence("decoders", *decoders),
                               "pre_tokenizer": sequence("pretokenizers", *cuts),
                               "post_processor": template([SPECIAL, A, SPECIAL])}).encode())  # fmt: skip
    gpt4o = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}]*[\p{Ll}\p{Lm}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
             r"| ?[^\s\p{L}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")  # fmt: skip
    for pattern in (*GPT2, *LLAMA3, *QWEN2, gpt4o, r"\d{1,3}(?=(?:\d{3})*\b)", r" ?[^(\s|[.,!?…])]+", r"[\[\]()*+?]+"):
        check_regex(pattern)


def test_the_pattern_of_many_special_tokens_goes_with_its_tokenizer():
    kept = weakref.ref(compile_tokens(f"<{number}>" + "a" * 99 for number in range(400)))
    gc.collect()

    assert kept() is None


def test_a_name_that_stands_twice_hides_no_step(tmp_path):
    """Of two types the library takes neither, and then the first step that has such values."""
    decoder = json.dumps(sequence("decoders", *[{"type": "Fuse", "suffix": ""}] * 40))
    source = made(decoder=None).decode().replace('"decoder": null', '"decoder": ' + decoder, 1)
    twice = source.replace('"type": "Fuse"', '"type": "BPEDecoder", "type": "Fuse"')
    path = tmp_path / "tokenizer.json"
    path.write_text(twice, encoding="utf8")

    assert twice != source
    with pytest.raises(DataError, match="decoder: the steps up to it may make more than 256 letters of one"):
        Tokenizer.load(path)


@pytest.mark.parametrize("pattern", ["(a+)+$", "((a*)*)*b", "(?:a{2,})+", "a*a*a*a*a*b", r"(\w+)\1", "a{99999}"])
def test_a_regular_expression_that_may_take_forever_is_refused(pattern):
    with pytest.raises(ValueError, match="the regular expression"):
        check_regex(pattern)
