"""A small tokenizer.json cannot make much of a text: what its steps multiply to is known before it is built."""

import base64
import json
import time

import pytest
from text.test_files import made

from regard.config import DataError
from regard.text import Tokenizer
from regard.text.expansion import check_file, check_regex
from regard.text.lists import GPT2, LLAMA3, QWEN2


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
    with pytest.raises(ValueError, match="most|more than|times|letters|forever"):
        check_file(MANY[name])


def test_what_people_publish_is_far_below_the_bounds():
    """The chains of ALBERT, Llama and BERT, and the regular expressions of GPT-2, Llama 3, Qwen 2, GPT-4o, OLMo 2."""
    albert = [replace('"', String="``"), {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"},
              {"type": "Precompiled", "precompiled_charsmap": ""}, replace(" ", Regex=" {2,}")]  # fmt: skip
    llama = [{"type": "Prepend", "prepend": "▁"}, replace("▁", String=" ")]
    decoders = [replace(" ", String="▁"), {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " "}]
    for normalizers in (albert, llama, [{"type": "BertNormalizer"}]):
        check_file(json.dumps({"normalizer": {"type": "Sequence", "normalizers": normalizers},
                               "decoder": {"type": "Sequence", "decoders": decoders}, "pre_tokenizer": LEVEL,
                               "post_processor": template([SPECIAL, A, SPECIAL])}).encode())  # fmt: skip
    gpt4o = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}]*[\p{Ll}\p{Lm}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
             r"| ?[^\s\p{L}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")  # fmt: skip
    for pattern in (*GPT2, *LLAMA3, *QWEN2, gpt4o, r"\d{1,3}(?=(?:\d{3})*\b)", r" ?[^(\s|[.,!?…])]+", r"[\[\]()*+?]+"):
        check_regex(pattern)


@pytest.mark.parametrize("pattern", ["(a+)+$", "((a*)*)*b", "(?:a{2,})+", "a*a*a*a*a*b", r"(\w+)\1", "a{99999}"])
def test_a_regular_expression_that_may_take_forever_is_refused(pattern):
    with pytest.raises(ValueError, match="the regular expression"):
        check_regex(pattern)
