"""A body in JSON, read strictly: what has two meanings, or none, is refused before anything is made of it.

    {"seed": 1, "seed": 2}      NaN      1e999      {"a": {"a": {"a": ...      "\\ud800"      0xff
"""

import json
import math
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NoReturn

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from regard.serve.refusals import Refusal

DEEPEST = 64  # tables and lists in each other
DIGITS = 64  # of a number: nobody means more
SHOWN = 40  # letters of what was given


class Asking(Request):
    """A request whose JSON is read here."""

    async def json(self) -> Any:
        return parsed(await self.body())


class Strict(APIRoute):
    """A route that reads JSON and nothing else.

    A page of any site may send us forms and plain texts from its reader's browser; for JSON the browser asks us first,
    and is told no.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            if request.method == "POST":
                check(request)
            return await handle(Asking(request.scope, request.receive))

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


def parsed(body: bytes) -> Any:
    """The value of a body; one sentence where there is none, or more than one."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise wrong(f"byte {problem.start:,} is not UTF-8; encode it so") from None
    try:
        value = json.loads(text, object_pairs_hook=once, parse_constant=never, parse_float=finite, parse_int=short)
    except json.JSONDecodeError as problem:
        raise wrong(f"no JSON: {problem.msg.lower()} at line {problem.lineno}, column {problem.colno}") from None
    except RecursionError:
        raise wrong(f"tables and lists stand in each other more than {DEEPEST} deep") from None
    whole(value, "\\ud" in text or "\\uD" in text)
    return value


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
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
        if any(isinstance(each, str) and any("\ud800" <= letter <= "\udfff" for letter in each) for each in level):
            raise wrong("a text has half a surrogate pair, which is no character; send both halves")
        inner = [each for some in level for each in parts(some) if isinstance(each, kinds)]
        if not (level := inner):
            return
    raise wrong(f"tables and lists stand in each other more than {DEEPEST} deep")


def parts(value: Any) -> Iterable[Any]:
    return (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()


def wrong(what: str) -> Refusal:
    return Refusal(400, f"the body: {what}", code="invalid_json")


def brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
