"""What wrong requests are made of: right ones for each route, odd values, and odd words of HTTP. Nothing but tables."""

from typing import Any

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "who?"}]}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", None]}}, "required": ["a"]}
RIGHT: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"model": "writer", "prompt": "the cat", "max_tokens": 3, "temperature": 0.7, "seed": 4}),
    ("/v1/completions", {"model": "talker", "prompt": ["who", "a dog"], "n": 2, "max_tokens": 2, "logprobs": 2,
                         "echo": True, "stop": ["x", "yz"], "seed": 6,
                         "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/completions", {"model": "writer", "prompt": [[3, 4], [5]], "max_tokens": 2, "best_of": 3, "top_k": 4,
                         "top_p": 0.9, "min_p": 0.1, "typical_p": 0.5, "repetition_penalty": 1.2,
                         "no_repeat_ngram_size": 2, "min_new_tokens": 1, "seed": 7,
                         "frequency_penalty": 0.5, "presence_penalty": -0.5, "logit_bias": {"3": 1.5, "7": -100}}),
    ("/v1/completions", {"model": "talker", "prompt": "a", "max_tokens": 9, "seed": 8,
                         "regex": "(yes|no), [a-z]{2,5}"}),
    ("/v1/chat/completions", {"model": "talker", "messages": CHAT, "max_completion_tokens": 3, "logprobs": True,
                              "top_logprobs": 2, "seed": 9, "stream": True, "user": "me", "metadata": {"a": "b"}}),
    ("/v1/chat/completions", {"model": "talker", "messages": CHAT, "max_tokens": 5, "seed": 9, "response_format": {
        "type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": SCHEMA}}}),
    ("/v1/embeddings", {"model": "masked", "input": ["the cat sat", "a dog"], "encoding_format": "base64"}),
    ("/v1/embeddings", {"model": "writer", "input": "the cat sat", "encoding_format": "float"}),
    ("/v1/classify", {"model": "judge", "input": ["it was good", "bad film"], "pair": "the film", "top_k": 2}),
    ("/v1/fill", {"model": "masked", "input": "the [MASK] sat on a [MASK]", "top_k": 3}),
    ("/v1/translate", {"model": "en-fr", "input": ["A dog."], "num_beams": 2, "num_return_sequences": 2,
                       "length_penalty": 0.5, "max_tokens": 5}),
    ("/tokenize", {"model": "talker", "text": "the cat ☃"}),
    ("/detokenize", {"model": "talker", "ids": [5, 6, 7]}),
)  # fmt: skip

# ---------------------------------------------------------------- values, and names of fields

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 127, 128, 1 << 20, 1 << 31, (1 << 63) - 1, 1 << 63, 1 << 64, 10**63, -(10**40),
    0.0, -0.0, 0.5, 1.0, 1.5, -2.0, 1e-320, 1e16, 1e308, float("nan"), float("inf"), -float("inf"),
    "", " ", "\0", "3", "nan", "writer", "masked", "judge", "en-fr", "none", "[MASK]" * 40, "<|im_end|>", "\ud800",
    "☃é\u2028", "\U0001f600", "x" * 5000, "the cat " * 2000, "../../etc/passwd", "file:///etc/passwd", "{{ 7 }}", "%s",
    [], {}, [[]], [{}], [None], [""], [[], []], ["a", 1], [1, "a"], [-1], [1 << 40], [0.5], [[1], "a"], ["a"] * 200,
    list(range(900)), [[3]] * 150, {"": ""}, {"a": 1, "b": [2]}, {"0": 1e3}, {"-1": 1}, {"99999999999": 1}, {"²": 1},
    {"type": "text"}, {"type": "json_object"}, {"role": "user"}, {"role": "tool", "content": "x"},
    {"role": "assistant", "content": None}, {"include_usage": True},
    "(", "[", "a{2147483647}", "(a{99}){99}", "((a*)*)*b", "(?=a)b", "\\p{L}{50}", "\\d+(?P<x>", "[^\\0]*", "()",
    "a{500}",
    {"type": "object", "properties": {"a": {"$ref": "#"}}}, {"$ref": "#/nowhere"}, {"$ref": "http://127.0.0.1:1/x"},
    {"type": "array", "minItems": 10**9}, {"type": "nothing"}, {"enum": []}, {"not": {}}, {"pattern": "("},
    {"type": "string", "minLength": 50000}, {"allOf": [{"type": "string"}, {"type": "number"}]},
)  # fmt: skip
NAMES = ("", "Prompt", "seeds", "suffix", "functions", "tools", "__class__", "model_", "x" * 300, "☃", "n", "stream",
         "best_of", "echo", "regex", "\0")  # fmt: skip
SPLINTERS = (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\0", b"\\u12", b"\\ud800", b"NaN", b"1e999", b"9" * 5000, b"-", b",",
             b"}", b'"')  # fmt: skip
DEEP = (b"[", b'{"a":', b"[{")

# ---------------------------------------------------------------- words of HTTP

METHODS = (b"GET", b"PUT", b"DELETE", b"PATCH", b"HEAD", b"OPTIONS", b"TRACE", b"CONNECT", b"post", b"FOO", b"X" * 999,
           b"P\0ST")  # fmt: skip
PATHS = (
    b"/", b"//", b"/..", b"/%00", b"/\xff", b"*", b"http://example.org/health", b"/v1/models/%ff",
    b"/v1/models/a/b%2fc",
    b"/v1/models/" + b"x" * 5000, b"/v1/completions/", b"/v1/completions?a=%zz&a", b"/docs", b"/openapi.json",
    b"/metrics/../health", b"/?" + b"a=b&" * 9000, b"/health#x", b"health", b"/health;x=1",
    b"/%2e%2e/%2e%2e/etc/passwd",
)  # fmt: skip
VERSIONS = (b"", b" HTTP/0.9", b" HTTP/1.0", b" HTTP/1.9", b" HTTP/2.0", b" HTTP/x", b" http/1.1", b"  HTTP/1.1",
            b" HTTP/1.1 x")  # fmt: skip
HEADERS = (
    b"X: " + b"y" * 20_000, b"X: " + b"y" * 200_000, b"\r\n".join(b"X-%d: y" % n for n in range(300)), b"X: \0",
    b"X: \xff\xfe", b"X: a\r\n b", b": y", b"X : y", b"X", b"X: a\nY: b", b"Content-Encoding: gzip",
    b"Expect: 100-continue", b"Expect: wonders", b"Authorization: \xe9", b"Authorization: Bearer " + b"k" * 9000,
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAA", b"Content-Length: 3", b"Host: other",
    b"Transfer-Encoding: gzip", b"Range: bytes=0-1", b"X-Forwarded-For: 8.8.8.8", b"Cookie: a=b;;=;", b"Accept: a/b",
    b"Origin: http://example.org",
)  # fmt: skip
HOSTS = (b"", b"Host:", b"Host: example.org", b"Host: localhost:99999999", b"Host: [::1", b"Host: \xff", b"Host: 127.1",
         b"Host: 127.0.0.1.example.org", b"Host: localhost, localhost", b"Host: a\r\nHost: b", b"Host: @localhost",
         b"Host: [::1]:80")  # fmt: skip
KINDS = (b"", b"Content-Type:", b"Content-Type: text/plain", b"Content-Type: application/x-www-form-urlencoded",
         b"Content-Type: \xff", b"Content-Type: multipart/form-data; boundary=x", b"Content-Type: application/jsonp",
         b"Content-Type: application/json; charset=utf-16")  # fmt: skip
LENGTHS = (-1, "x", "1, 2", "0x10", "", "+5", 10**15, 10**40, 4 << 20, "5\r\nContent-Length: 6", "１２")
PIECES = (b"\r\nzz\r\n", b"\r\nffffffffffffffff\r\n", b"\r\n-1\r\n", b"\r\n0;x=" + b"y" * 9000 + b"\r\n",
          b"\r\n0\r\nX: y\r\n", b"\n0\n")  # fmt: skip
OTHERS = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + b"a" * 99, b"GET\r\n\r\n", b"{}",
    b"\r\n\r\n", b"\0" * 99, b"GET / HTTP/1.1\r\n" * 500, b"A" * 100_000, b"GET /health HTTP/1.1\nHost: localhost\n\n",
    bytes(range(255, 0, -1)), b"\r\n" * 9 + b"\x80\x81 / \r\n\r\n",
)  # fmt: skip
