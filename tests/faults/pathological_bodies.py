"""Bodies of pathological shape by their number: deep, wide, long, huge, odd, wrong many times over, or in tiny chunks.

Each stands where a field of a right request stands, of any route. Some come out right and are answered.
"""

import json
from collections.abc import Callable
from random import Random

from faults.wrong_requests import in_pieces, posted

# Routes, what is right in a request besides the field, and fields that may hold anything.
PLACES = (
    ("/v1/completions", {"model": "writer", "max_tokens": 2, "prompt": "a"},
     ("prompt", "stop", "logit_bias", "model", "user", "regex", "seed", "temperature", "n", "suffix", "stream_options",
      "response_format", "max_tokens", "logprobs", "nothing")),
    ("/v1/completions", {"model": "talker", "max_tokens": 2, "prompt": "a"}, ("regex", "prompt", "stop", "schema")),
    ("/v1/chat/completions", {"model": "talker", "max_tokens": 2, "messages": [{"role": "user", "content": "a"}]},
     ("messages", "metadata", "tools", "content", "role", "tool_choice", "top_logprobs", "schema")),
    ("/v1/embeddings", {"model": "masked", "input": "the cat"}, ("input", "dimensions", "encoding_format")),
    ("/v1/classify", {"model": "judge", "input": "the cat"}, ("input", "pair", "top_k")),
    ("/v1/fill", {"model": "masked", "input": "the [MASK]"}, ("input", "top_k")),
    ("/v1/translate", {"model": "en-fr", "input": "A dog."}, ("input", "length_penalty", "num_beams", "max_tokens")),
    ("/tokenize", {"model": "talker", "text": "a"}, ("text", "model")),
    ("/detokenize", {"model": "talker", "ids": [5]}, ("ids", "user")),
)  # fmt: skip
LETTERS = ("a", "the cat ", " ", "\n", "\0", "é", "☃", "\U0001f600", "e\u0301\u0302\u0303", "\u202e\u2066", "\u200b",
           "\ufeff", "\u2028", "[MASK] ", "<|im_end|>", "\\", '"', "{{", "[{", "9", "%s", "\ud800", "\udc00\ud800", "ﷺ",
           "İ", "ß")  # fmt: skip
WRONG = (b"{}", b"[]", b"null", b"true", b"-1", b"0.5", b"1e308", b'""', b'"a"', b'{"a":1}', b"[[]]", b'["a",1]',
         b"1e999", b"NaN", b'{"role":"user"}', b'{"type":"text"}', b"9" * 70, b'"\\ud800"')  # fmt: skip


def strange(number: int) -> tuple[str, bytes]:
    """How it was made, and what is sent."""
    dice = Random(number)
    how = dice.choice(list(SHAPES))
    path, right, fields = dice.choice(PLACES)
    field = dice.choice(fields)
    if how in ("regex", "schema") and dice.random() < 0.7:  # where it is what it looks like
        path, right, field = "/v1/completions", PLACES[1][1], how
    inner = SHAPES[how](dice, size(dice))
    body = placed(right, field, inner)
    if dice.random() < 0.15 and len(body) > 1:
        return f"{how} in {field}, in chunks", in_chunks(path, body, dice)
    return f"{how} in {field} of {path}", posted(path, body)


def size(dice: Random) -> int:
    """Bytes, roughly: often some thousands, at times all that may be."""
    return dice.choice((100, 1_000, 5_000, 20_000, 20_000, 80_000, 300_000, 1_000_000))


def placed(right: dict, field: str, inner: bytes) -> bytes:
    """The value in the place of a field, also where that is inside another."""
    mark = json.dumps("here it is")
    body = {name: value for name, value in right.items() if name != field}
    if field in ("content", "role"):
        body["messages"] = [{"role": "user", "content": "a"} | {field: "here it is"}]
    elif field == "schema":
        body["response_format"] = {"type": "json_schema", "json_schema": {"schema": "here it is"}}
    else:
        body[field] = "here it is"
    return json.dumps(body).encode().replace(mark.encode(), inner)


def in_chunks(path: str, body: bytes, dice: Random) -> bytes:
    if dice.random() < 0.5 or len(body) > 20_000:
        return in_pieces(path, body, dice)
    head = posted(path, b"", b"Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")
    step = dice.choice((1, 2, 7))
    parts = [body[start : start + step] for start in range(0, len(body), step)]
    return head + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


# ---------------------------------------------------------------- shapes


def deep(dice: Random, size: int) -> bytes:
    opening, closing = dice.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]"), (b'{"not":', b"}")))
    many = dice.choice((10, 60, 63, 66, 900, size // len(opening)))
    return opening * many + dice.choice(WRONG) + dice.choice((closing * many, b"", closing))


def wide(dice: Random, size: int) -> bytes:
    element = dice.choice((*WRONG, b"1", b'"a"', b"[1]"))
    last = dice.choice((element, dice.choice(WRONG)))
    return b"[%s]" % b",".join([element] * (size // (len(element) + 1)) + [last])


def names(dice: Random, size: int) -> bytes:
    value, form = dice.choice((*WRONG, b"1")), dice.choice((b'"%d":', b'"k%d":', b'"\\u%04x":'))
    found = [form % (number % 0xD000) + value for number in range(size // (len(value) + 9))]
    return b"{%s}" % b",".join(found + found[: dice.choice((0, 0, 1))])


def long(dice: Random, size: int) -> bytes:
    letters = "".join(dice.choices(LETTERS, k=dice.choice((1, 1, 3))))
    text = letters * max(1, size // max(1, len(letters.encode("utf-8", "surrogatepass"))))
    return json.dumps(text, ensure_ascii=dice.random() < 0.5).encode("utf-8", "surrogatepass")


def number(dice: Random, size: int) -> bytes:
    digits = dice.choice("0179").encode() * dice.choice((1, 20, 63, 64, 65, 5_000, size))
    after = dice.choice((b"", b".5", b"e999", b"e-999", b"." + digits, b"e" + digits))
    return dice.choice((b"", b"-")) + digits + after


def texts(dice: Random, size: int) -> bytes:
    """Many texts of some letters each."""
    one, many = "".join(dice.choices(LETTERS, k=6)), dice.choice((2, 127, 128, 129, 4096, 5000))
    found = [one * max(1, size // (many * len(one.encode("utf-8", "surrogatepass"))))] * min(many, size)
    return json.dumps(found, ensure_ascii=False).encode("utf-8", "surrogatepass")


def regex(dice: Random, size: int) -> bytes:
    one = dice.choice((".?", "(a*)*", "(a|b)?", "[a-z]{1,99}", ".*x", "(", "\\w+ ", "(?:a{9}){9}", "[^\\n]", "\\p{L}",
                       "(?=a)"))  # fmt: skip
    text = one * min(dice.choice((1, 9, 99, 999)), max(1, min(size, 5_000) // len(one)))
    return json.dumps(dice.choice((text, f"({text}){{1,500}}", f"({text})*"))).encode()


def schema(dice: Random, size: int) -> bytes:
    many = min(dice.choice((1, 9, 99, 999)), max(1, size // 60))
    kinds = [{"type": "integer"}, {"type": "string", "maxLength": 9_999}, {"enum": list(range(99))}, {"$ref": "#"}, {},
             {"pattern": "(a*)*b"}, {"type": "array", "minItems": 10**6, "items": {}}, {"const": None},
             {"$ref": "#/properties/p1"}]  # fmt: skip
    some = {f"p{place}": dice.choice(kinds) for place in range(many)}
    found = dice.choice(({"type": "object", "properties": some}, {"anyOf": list(some.values())},
                         {"allOf": [{"type": "object", "properties": some}] * 9}, {"$defs": some, "$ref": "#/$defs/p0"},
                         {"type": "object", "properties": some, "required": list(some)}))  # fmt: skip
    return json.dumps(found).encode()


SHAPES: dict[str, Callable[[Random, int], bytes]] = {
    "deep": deep, "wide": wide, "names": names, "long": long, "number": number, "texts": texts, "regex": regex,
    "schema": schema,
}  # fmt: skip
