"""API errors, as OpenAI's clients expect them: a status, and {"error": {"message", "type", "param", "code"}}.

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
from regard.engine.request_queue import QueueFull
from regard.web.field_names import FIELD_OF_SETTING, OTHER_FIELDS, SETTING_OF_FIELD

SHOWN = 40  # characters of a value in a message
PORTION = 4096  # elements of a list that are serialised at a time
CODES = {401: "invalid_api_key", 404: "not_found", 405: "method_not_allowed", 413: "too_large",
         429: "rate_limit_exceeded"}  # fmt: skip
KINDS = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}


class ClientDisconnected(Exception):
    """Raised when the client has disconnected."""


class ApiError(HTTPException):
    """An error response, with its status and its reason."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(status, message, dict(headers or {}))
        self.param, self.code = param, CODES.get(status) if code is None else code


def error_body(refusal: ApiError) -> dict[str, Any]:
    """The JSON body of an error response."""
    kind = KINDS.get(refusal.status_code, "invalid_request_error")
    return {"error": {"message": refusal.detail, "type": kind, "param": refusal.param, "code": refusal.code}}


def error_response(refusal: ApiError) -> Response:
    return json_response(error_body(refusal), refusal.status_code, refusal.headers)


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response."""
    return bytes_response(to_json_bytes(value), status, headers)


def bytes_response(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response of serialised JSON."""
    return Response(body, status, dict(headers or {}), media_type="application/json")


def to_json_bytes(value: Any) -> bytes:
    """JSON in UTF-8; lone surrogates, which UTF-8 cannot encode, are escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False).encode()


def dump_json(value: Any, depth: int = 5) -> bytes:
    """Serialise large values as JSON in parts: one call for all would hold the GIL and block all other threads."""
    if depth and isinstance(value, dict):
        return b"{%s}" % b",".join(
            b"%s:%s" % (to_json_bytes(name), dump_json(each, depth - 1)) for name, each in value.items()
        )
    if depth and isinstance(value, list):
        if any(isinstance(each, dict | list) for each in value):
            return b"[%s]" % b",".join(dump_json(each, depth - 1) for each in value)
        parts = [to_json_bytes(value[start : start + PORTION])[1:-1] for start in range(0, len(value), PORTION)]
        return b"[%s]" % b",".join(parts)
    return to_json_bytes(value)


def shorten_value(value: Any) -> str:
    """The beginning of a value's repr, without building the rest."""
    text = ""
    for part in repr_parts(value):
        text += part
        if len(text) > SHOWN:
            return f"{text[: SHOWN - 1]}…"
    return text


def repr_parts(value: Any) -> Iterator[str]:
    """repr(value), lazily in parts."""
    if isinstance(value, dict):
        for place, (name, each) in enumerate(value.items()):
            yield ", " if place else "{"
            yield from (*repr_parts(name), ": ")
            yield from repr_parts(each)
        yield "}" if value else "{}"
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield ", " if place else "["
            yield from repr_parts(each)
        yield "]" if value else "[]"
    else:
        yield repr(value[:SHOWN] if isinstance(value, str) else value)


def to_api_error(problem: Exception) -> ApiError:
    """The ApiError of an exception of the library; unexpected exceptions are raised again."""
    match problem:
        case ApiError():
            return problem
        case QueueFull():
            return ApiError(429, str(problem), headers={"Retry-After": str(max(1, math.ceil(problem.seconds)))})
        case HTTPException():
            return ApiError(problem.status_code, problem.detail.lower(), headers=problem.headers)
        case config.ConfigError() | config.DataError():
            return request_error(str(problem))
        case config.RunError():
            return ApiError(500, str(problem), code="run_failed")
    raise problem


def request_error(sentence: str) -> ApiError:
    """The ApiError of a message that begins with a setting's name, which is translated to the request field."""
    name, colon, rest = sentence.partition(":")
    name = FIELD_OF_SETTING.get(name, name)
    known = field if (field := name.partition("[")[0]) in (*SETTING_OF_FIELD, *OTHER_FIELDS) else None
    param = known if colon else None
    long = ("more than the" in rest and "reads at once" in rest) or "exceed the context window" in rest
    return ApiError(400, f"{name}{colon}{rest}", param=param, code="context_length_exceeded" if long else None)


async def error_handler(request: Request, problem: Exception) -> Response:
    """The exception handler of the application."""
    if isinstance(problem, QueueFull):
        request.app.state.house.figures.refused.labels(request.scope["state"]["notes"].get("model", "none")).inc()
    return error_response(to_api_error(problem))
