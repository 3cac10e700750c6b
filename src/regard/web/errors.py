"""What is refused, as OpenAI's clients expect it: a status, and {"error": {"message", "type", "param", "code"}}.

    400 the request    401 the key    404 the model or the route    413 too large    429 come again later    503 closing

The message is one sentence: what was given, what was expected, what to do.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from regard import config
from regard.generate.queueing import Busy

SHOWN = 40  # letters of what was given
PORTION = 4096  # numbers or words of a list that are written at a time
CODES = {401: "invalid_api_key", 404: "not_found", 405: "method_not_allowed", 413: "too_large",
         429: "rate_limit_exceeded"}  # fmt: skip
KINDS = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}
# What the library calls a setting, and what a request calls it.
NAMES = {
    "new": "max_tokens", "frequency": "frequency_penalty", "presence": "presence_penalty", "bias": "logit_bias",
    "schema": "response_format",
}  # fmt: skip
WHOLE = ("prompt", "input", "messages", "model", "stop", "seed", "temperature", "top_p", "top_k", "min_p", "typical",
         "repetition", "no_repeat", "shortest", "regex", "beams", "length_penalty", "best", "top", "pair",
         *NAMES.values())  # fmt: skip


class Gone(Exception):
    """Nobody waits for the answer any more."""


class Refusal(HTTPException):
    """A request that is not answered, and why."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(status, message, dict(headers or {}))
        self.param, self.code = param, CODES.get(status) if code is None else code


def table(refusal: Refusal) -> dict[str, Any]:
    """The body of the answer."""
    kind = KINDS.get(refusal.status_code, "invalid_request_error")
    return {"error": {"message": refusal.detail, "type": kind, "param": refusal.param, "code": refusal.code}}


def answered(refusal: Refusal) -> Response:
    return said(table(refusal), refusal.status_code, refusal.headers)


def said(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return in_json(written(value), status, headers)


def in_json(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer whose JSON is made already."""
    return Response(body, status, dict(headers or {}), media_type="application/json")


def written(value: Any) -> bytes:
    """JSON in bytes; half a surrogate pair, which no UTF-8 has, as its escape."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False).encode()


def spell(value: Any, depth: int = 5) -> bytes:
    """The same JSON, made piece by piece: one call for a large answer would keep all other threads waiting."""
    if depth and isinstance(value, dict):
        return b"{%s}" % b",".join(b"%s:%s" % (written(name), spell(each, depth - 1)) for name, each in value.items())
    if depth and isinstance(value, list):
        if any(isinstance(each, dict | list) for each in value):
            return b"[%s]" % b",".join(spell(each, depth - 1) for each in value)
        parts = [written(value[start : start + PORTION])[1:-1] for start in range(0, len(value), PORTION)]
        return b"[%s]" % b",".join(parts)
    return written(value)


def brief(value: Any) -> str:
    """The beginning of a value, of which no more is spelt than is shown."""
    text = ""
    for part in spelt_parts(value):
        text += part
        if len(text) > SHOWN:
            return f"{text[: SHOWN - 1]}…"
    return text


def spelt_parts(value: Any) -> Iterator[str]:
    """repr(value) bit by bit."""
    if isinstance(value, dict):
        for place, (name, each) in enumerate(value.items()):
            yield ", " if place else "{"
            yield from (*spelt_parts(name), ": ")
            yield from spelt_parts(each)
        yield "}" if value else "{}"
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield ", " if place else "["
            yield from spelt_parts(each)
        yield "]" if value else "[]"
    else:
        yield repr(value[:SHOWN] if isinstance(value, str) else value)


def refusal_of(problem: Exception) -> Refusal:
    """What a problem of the library is to a client; those that are nobody's mistake are raised again."""
    match problem:
        case Refusal():
            return problem
        case Busy():
            return Refusal(429, str(problem), headers={"Retry-After": str(max(1, math.ceil(problem.seconds)))})
        case HTTPException():
            return Refusal(problem.status_code, problem.detail.lower(), headers=problem.headers)
        case config.ConfigError() | config.DataError():
            return mistaken(str(problem))
        case config.RunError():
            return Refusal(500, str(problem), code="run_failed")
    raise problem


def mistaken(sentence: str) -> Refusal:
    """A mistake in a setting or a text: it begins with the setting's name, which is another one here at times."""
    name, colon, rest = sentence.partition(":")
    name = NAMES.get(name, name)
    param = field if colon and (field := name.partition("[")[0]) in WHOLE else None
    long = "more than the" in rest and "reads at once" in rest
    return Refusal(400, f"{name}{colon}{rest}", param=param, code="context_length_exceeded" if long else None)


async def refused(request: Request, problem: Exception) -> Response:
    """The handler of all of them."""
    if isinstance(problem, Busy):
        request.app.state.house.figures.refused.labels(request.scope["state"]["notes"].get("model", "none")).inc()
    return answered(refusal_of(problem))
