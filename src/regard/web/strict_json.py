r"""Strict JSON request bodies: ambiguous or invalid JSON is refused; and pydantic's errors in one sentence.

{"seed": 1, "seed": 2}      NaN      1e999      {"a": {"a": {"a": ...      "\ud800"      0xff
"""

import json
import math
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NoReturn, get_type_hints

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from regard.web.errors import ApiError, ClientDisconnected, error_response, shorten_value

# Fields of several types: pydantic reports an error for each type.
WAYS = {
    "prompt": "a text, a list of texts, a list of ids, or a list of such lists",
    "input": "a text, or a list of texts that is not empty",
    "pair": "a text, or a list of texts that is not empty",
    "stop": "a text, or a list of at most 16",
    "content": 'a text, or a list of {"type": "text", "text": ...}',
}
# OpenAI's fields that are accepted only where they change nothing.
SETTLED = {
    "suffix": "insertion is not supported, only continuation; leave suffix out",
    "tools": "tool calls are not supported; leave tools out",
    "tool_choice": "tool calls are not supported; leave it out",
    "store": "requests and responses are never stored; leave store out",
}
Found = Mapping[str, Any]


async def validation_handler(request: Request, problem: Exception) -> Response:
    """The handler of pydantic's validation errors."""
    assert isinstance(problem, RequestValidationError)
    message, param = first_error(problem.errors())
    return error_response(ApiError(400, message, param=param, code="invalid_value"))


def first_error(errors: Sequence[Found]) -> tuple[str, str | None]:
    """The message of the first error, and the field that it is about."""
    first = errors[0]
    path = [part for part in first["loc"] if part != "body"]
    if not path:
        return error_message(first), None
    field = next((place for place, part in enumerate(path) if part in WAYS or part in SETTLED), None)
    if field is not None and path[field] in SETTLED:
        return f"{path[field]}: {SETTLED[path[field]]}", str(path[0])
    if field is not None and first["type"] != "missing" and len(path) > field + 1:
        return f"{field_path(path[: field + 1])}: expected {WAYS[path[field]]}", str(path[0])
    return f"{field_path(path)}: {describe_error(first)}", str(path[0])


def error_message(found: Found) -> str:
    if found["type"] == "missing":
        return "the body is missing; send JSON"
    if found["type"] in ("unknown", "stream", "logprobs", "both"):
        return str(found["msg"])
    return f'the body: expected a JSON object, such as {{"model": ...}}, and this is {shorten_value(found["input"])}'


def describe_error(found: Found) -> str:
    """What is wrong with a value, and what is expected."""
    match found["type"]:
        case "missing":
            return "it is missing"
        case "extra_forbidden":
            return "there is no such field; leave it out"
        case "unknown" | "schema" | "content" | "many":
            return str(found["msg"])
    wanted = str(found["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{shorten_value(found['input'])} is refused; expected {wanted[:1].lower()}{wanted[1:]}"


def field_path(path: Sequence[Any]) -> str:
    """The path of a field, such as messages[0].content."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in path]
    return "".join(parts).removeprefix(".")


DEEPEST = 64  # nesting depth of objects and lists
DEEP = f"objects and lists are nested more than {DEEPEST} deep"
DIGITS = 64  # digits of a number
TABLES = 1 << 14  # objects and lists in a body: the garbage collector scans each of them
NAMES = 1 << 14  # keys of one object
SMALL = 1 << 12  # bytes of a body that is parsed at once, since a thread would take longer
# A JSON string, complete or cut off, or a bracket. Possessive: no backtracking.
MARKS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{\]}]', re.DOTALL)


class StrictRoute(APIRoute):
    """A route that accepts JSON and nothing else.

    A page of any site can make a browser send us forms and plain text; for JSON the browser asks first (CORS
    preflight), and the request is denied.

    A route with a body names its schema, a pydantic model, as the type of `body`. A worker parses and validates it,
    since the time for that grows with its size.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle, form = super().get_route_handler(), get_type_hints(self.endpoint).get("body")

        async def handle_json(request: Request) -> Response:
            if form is None:
                return await handle(request)
            check_content_type(request)
            try:
                raw = await request.body()
            except ClientDisconnect:
                raise ClientDisconnected from None
            workers = request.app.state.house.parsing
            body = validate_body(form, raw) if len(raw) <= SMALL else await workers.run(validate_body, form, raw)
            answer: Response = await self.endpoint(request, body)
            return answer

        return handle_json


def check_content_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        said = f"is {shorten_value(kind)}" if kind else "says nothing"
        raise ApiError(415, f"Content-Type {said}; send JSON as application/json", code="unsupported_media_type")
    coding = request.headers.get("content-encoding", "identity").lower()
    if coding != "identity":
        raise ApiError(415, f"Content-Encoding is {shorten_value(coding)}; send the body as it is",
                      code="unsupported_media_type")  # fmt: skip


def validate_body(form: type[BaseModel], body: bytes) -> Any:
    """The validated body of a request; ApiError in one sentence otherwise."""
    if not body:
        raise ApiError(400, "the body is missing; send JSON", code="invalid_value")
    try:
        return form.model_validate(parse_body(body))
    except ValidationError as problem:
        message, param = first_error(problem.errors(include_url=False))
        raise ApiError(400, message, param=param, code="invalid_value") from None


def parse_body(body: bytes) -> Any:
    """Parse a body as JSON; ApiError in one sentence if it is invalid or ambiguous."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise json_error(f"byte {problem.start:,} is not UTF-8; encode it so") from None
    check_container_count(text)
    try:
        value = json.loads(
            text,
            object_pairs_hook=reject_duplicates,
            parse_constant=reject_constant,
            parse_float=parse_finite,
            parse_int=parse_short_int,
        )
    except json.JSONDecodeError as problem:
        raise json_error(f"no JSON: {problem.msg.lower()} at line {problem.lineno}, column {problem.colno}") from None
    except RecursionError:
        raise json_error(DEEP) from None
    check_depth(value, "\\ud" in text or "\\uD" in text)
    return value


def check_container_count(text: str) -> None:
    """Refuse too many objects and lists, before any is allocated."""
    if text.count("{") + text.count("[") <= TABLES:  # those inside strings are counted as well
        return
    count = depth = 0
    for mark in MARKS.finditer(text):
        if (letter := text[mark.start()]) in "[{":
            count, depth = count + 1, depth + 1
        elif letter != '"':
            depth -= 1
        if depth > DEEPEST:
            raise json_error(DEEP)
        if count > TABLES:
            raise json_error(f"there are more than {TABLES:,} objects and lists in it; send less at a time")


def reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > NAMES:
        raise json_error(f"an object has {len(pairs):,} keys, more than the {NAMES:,} allowed; send less at a time")
    found = dict(pairs)
    if len(found) < len(pairs):
        met = set[str]()
        twice = next(name for name, _ in pairs if name in met or met.add(name))  # type: ignore[func-returns-value]
        raise json_error(f"{shorten_value(twice)} is given twice; keep one of the two")
    return found


def reject_constant(word: str) -> NoReturn:
    raise json_error(f"{word} is no number in JSON; leave it out, or give one")


def parse_finite(word: str) -> float:
    if not math.isfinite(number := float(word)):
        raise json_error(f"{shorten_value(word)} is too large for a number")
    return number


def parse_short_int(word: str) -> int:
    if len(word) > DIGITS:
        raise json_error(f"a number of {len(word):,} digits is too large")
    return int(word)


def check_depth(value: Any, halves: bool) -> None:
    """Refuse deep nesting, and lone surrogates if there may be `halves`."""
    level, kinds = [value], (dict, list, str) if halves else (dict, list)
    for _ in range(DEEPEST + 1):
        if halves and not all(is_valid_unicode(each) for each in level if isinstance(each, str)):
            raise json_error("a text has half a surrogate pair, which is no character; send both halves")
        inner = [each for some in level for each in child_values(some) if isinstance(each, kinds)]
        if not (level := inner):
            return
    raise json_error(DEEP)


def is_valid_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def child_values(value: Any) -> Iterable[Any]:
    return (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()


def json_error(what: str) -> ApiError:
    return ApiError(400, f"the body: {what}", code="invalid_json")
