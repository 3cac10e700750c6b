"""A body in JSON, read strictly: what has two meanings, or none, is refused before anything is made of it.

    {"seed": 1, "seed": 2}      NaN      1e999      {"a": {"a": {"a": ...      "\\ud800"      0xff
"""

import json
import math
import re
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NoReturn, get_type_hints

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from regard.serve.refusals import Gone, Refusal, brief
from regard.serve.sentences import sentence

DEEPEST = 64  # tables and lists in each other
DEEP = f"tables and lists stand in each other more than {DEEPEST} deep"
DIGITS = 64  # of a number: nobody means more
TABLES = 1 << 14  # tables and lists of a body: each is an object that the collector of garbage looks at
NAMES = 1 << 14  # of one table
SMALL = 1 << 12  # bytes of a body that is read at once, since a thread would take longer
# A text in JSON, whole or cut off, or where a table or list begins or ends. Possessive: nothing is tried twice.
MARKS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{\]}]', re.DOTALL)


class Strict(APIRoute):
    """A route that reads JSON and nothing else.

    A page of any site may send us forms and plain texts from its reader's browser; for JSON the browser asks us first,
    and is told no.

    A route that takes a body names its form, a pydantic model, as the type of `asked`. The body is parsed and validated
    by a worker: the time that it takes grows with it.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle, form = super().get_route_handler(), get_type_hints(self.endpoint).get("asked")

        async def handled(request: Request) -> Response:
            if form is None:
                return await handle(request)
            check(request)
            try:
                body = await request.body()
            except ClientDisconnect:
                raise Gone from None
            workers = request.app.state.house.parsing
            asked = validated(form, body) if len(body) <= SMALL else await workers.run(validated, form, body)
            answer: Response = await self.endpoint(request, asked)
            return answer

        return handled


def check(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        said = f"is {brief(kind)}" if kind else "says nothing"
        raise Refusal(415, f"Content-Type {said}; send JSON as application/json", code="unsupported_media_type")
    coding = request.headers.get("content-encoding", "identity").lower()
    if coding != "identity":
        raise Refusal(415, f"Content-Encoding is {brief(coding)}; send the body as it is",
                      code="unsupported_media_type")  # fmt: skip


def validated(form: type[BaseModel], body: bytes) -> Any:
    """What is asked by a body; one sentence where it asks for nothing."""
    if not body:
        raise Refusal(400, "the body is missing; send JSON", code="invalid_value")
    try:
        return form.model_validate(parsed(body))
    except ValidationError as problem:
        message, param = sentence(problem.errors(include_url=False))
        raise Refusal(400, message, param=param, code="invalid_value") from None


def parsed(body: bytes) -> Any:
    """The value of a body; one sentence where there is none, or more than one."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise wrong(f"byte {problem.start:,} is not UTF-8; encode it so") from None
    few(text)
    try:
        value = json.loads(text, object_pairs_hook=once, parse_constant=never, parse_float=finite, parse_int=short)
    except json.JSONDecodeError as problem:
        raise wrong(f"no JSON: {problem.msg.lower()} at line {problem.lineno}, column {problem.colno}") from None
    except RecursionError:
        raise wrong(DEEP) from None
    whole(value, "\\ud" in text or "\\uD" in text)
    return value


def few(text: str) -> None:
    """Refuses more tables and lists than anybody means, before one of them is made."""
    if text.count("{") + text.count("[") <= TABLES:  # those inside of texts as well
        return
    count = depth = 0
    for mark in MARKS.finditer(text):
        if (letter := text[mark.start()]) in "[{":
            count, depth = count + 1, depth + 1
        elif letter != '"':
            depth -= 1
        if depth > DEEPEST:
            raise wrong(DEEP)
        if count > TABLES:
            raise wrong(f"there are more than {TABLES:,} tables and lists in it; send less at a time")


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > NAMES:
        raise wrong(f"a table has {len(pairs):,} names, and more than {NAMES:,} are not read; send less at a time")
    found = dict(pairs)
    if len(found) < len(pairs):
        met = set[str]()
        twice = next(name for name, _ in pairs if name in met or met.add(name))  # type: ignore[func-returns-value]
        raise wrong(f"{brief(twice)} is given twice; keep one of the two")
    return found


def never(word: str) -> NoReturn:
    raise wrong(f"{word} is no number in JSON; leave it out, or give one")


def finite(word: str) -> float:
    if not math.isfinite(number := float(word)):
        raise wrong(f"{brief(word)} is too large for a number")
    return number


def short(word: str) -> int:
    if len(word) > DIGITS:
        raise wrong(f"a number of {len(word):,} digits is too large")
    return int(word)


def whole(value: Any, halves: bool) -> None:
    """Refuses what stands too deep, and half characters if there may be `halves`."""
    level, kinds = [value], (dict, list, str) if halves else (dict, list)
    for _ in range(DEEPEST + 1):
        if halves and not all(whole_text(each) for each in level if isinstance(each, str)):
            raise wrong("a text has half a surrogate pair, which is no character; send both halves")
        inner = [each for some in level for each in parts(some) if isinstance(each, kinds)]
        if not (level := inner):
            return
    raise wrong(DEEP)


def whole_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parts(value: Any) -> Iterable[Any]:
    return (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()


def wrong(what: str) -> Refusal:
    return Refusal(400, f"the body: {what}", code="invalid_json")
