"""Writing for a client: from the fields of a request to the settings of the library, and from pieces to an answer.

    request ── settings ──► line ──┬── stream: an event for each piece, then [DONE]
                                   └── or else: one answer with everything

What an answer looks like is the route's business: a `Form`.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from regard.generate.many import Piece, Token
from regard.serve.house import House, Resident
from regard.serve.lines import Line, while_there
from regard.serve.refusals import Refusal, in_json, spell, table, written
from regard.serve.settings import Settings
from regard.serve.wire import Writing

# What a request calls a setting, and what the library calls it.
NAMES = {
    "temperature": "temperature", "top_p": "top_p", "presence_penalty": "presence", "frequency_penalty": "frequency",
    "top_k": "top_k", "min_p": "min_p", "typical": "typical", "repetition": "repetition", "no_repeat": "no_repeat",
    "shortest": "shortest", "regex": "regex",
}  # fmt: skip
ODDS = 1 << 18  # log-probabilities of one answer, those of alternatives included
TURN = 8  # pieces of a stream, after which others have their turn
REASONS = {"length": "length", "end": "stop", "stop": "stop"}  # ours, and theirs


@dataclass
class Choice:
    """One text, as far as it has come; `place` counts those of a request."""

    place: int
    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    reason: str | None = None

    def hear(self, piece: Piece) -> None:
        self.text += piece.text
        self.tokens += piece.tokens
        self.reason = piece.reason

    @property
    def likely(self) -> float:
        """The mean log-probability of its tokens."""
        return sum(each.logprob for each in self.tokens) / max(len(self.tokens), 1)


class Form(Protocol):
    """How a route shows choices. Each method gives what stands in the list "choices"."""

    kind: str  # "chat.completion"
    event: str  # the same of an event in a stream
    letters: str  # what ids begin with
    is_long: bool  # whether openings may be long

    def opening(self, place: int) -> list[dict[str, Any]]:
        """What a stream tells of a choice before its first piece."""
        ...

    def part(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        """A piece of a choice, which has been heard."""
        ...

    def whole(self, choice: Choice) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Order:
    """All that is to be written for one request: a prompt in ids and the settings for each text."""

    prompts: list[list[int]]
    settings: list[dict[str, Any]]
    read: int  # tokens of the prompts, each counted once
    made: int  # texts for each prompt
    kept: int  # how many of them are shown


def sampling(asked: Writing, new: int) -> dict[str, Any]:
    """The settings of `config.Sampling`; what is not said is as the model's folder has it."""
    given = {ours: value for theirs, ours in NAMES.items() if (value := getattr(asked, theirs)) is not None}
    if asked.stop is not None:
        given["stop"] = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop)
    if asked.logit_bias:
        given["bias"] = biased(asked.logit_bias)
    if asked.response_format is not None and asked.response_format.type != "text":
        schema = asked.response_format.json_schema
        given["schema"] = json.dumps({"type": "object"} if schema is None else schema.schema_)
    return given | {"new": new}


def biased(bias: dict[str, float]) -> dict[int, float]:
    """Ids are keys of a JSON object, so they come as texts."""
    for word in bias:
        if not (word.isascii() and word.isdigit() and len(word) < 10):
            raise Refusal(400, f"logit_bias: {word[:20]!r} is no id; its names are ids of tokens, as /tokenize tells "
                          "them", param="logit_bias")  # fmt: skip
    return {int(word): number for word, number in bias.items()}


def ordered(
    asked: Writing, prompts: list[list[int]], given: dict[str, Any], settings: Settings, best: int = 1
) -> Order:  # fmt: skip
    """`best` texts for each prompt, of which n are shown; each has a seed of its own, if there is one."""
    kept = asked.n or 1
    made = max(kept, best)
    count, room = len(prompts) * made, settings.slots + settings.waiting
    if count > settings.texts:
        raise Refusal(400, f"n: {count} texts are more than the {settings.texts} that one request may ask for; ask for "
                      "less", param="n")  # fmt: skip
    if count > room:  # they would not find room in an empty house either
        name = "n" if made > 1 else "prompt"
        raise Refusal(400, f"{name}: {count} texts are more than the {room} that this server has room for at a time; "
                      "ask for less, in several requests", param=name)  # fmt: skip
    seeds = [{} if asked.seed is None else {"seed": (asked.seed + place) % (1 << 63)} for place in range(made)]
    every = [given | seed for _ in prompts for seed in seeds]
    rows = [prompt for prompt in prompts for _ in range(made)]
    return Order(rows, every, sum(map(len, prompts)), made, kept)


def check_odds(resident: Resident, order: Order, new: int, top: int, read: int, param: str) -> None:
    """Refuses more log-probabilities than an answer may have, before one of them is made."""
    room = resident.room or new
    made = sum(min(new, max(room - len(prompt) + 1, 0)) for prompt in order.prompts)
    if (count := (read + made) * (1 + top)) > ODDS:
        raise Refusal(400, f"{param}: {count:,} log-probabilities are more than the {ODDS:,} that one answer may have; "
                      "ask for fewer texts, tokens or alternatives", param=param)  # fmt: skip


# ---------------------------------------------------------------- answers


async def answer(request: Request, resident: Resident, asked: Writing, order: Order, form: Form) -> Response:
    """Have it written, and give it whole or in pieces."""
    house: House = request.app.state.house
    note(request, resident, prompt_tokens=order.read)
    line = Line(house, resident, len(order.prompts), request.app.state.post)
    try:
        formed = not order.settings[0].keys().isdisjoint(("regex", "schema"))
        take = house.compiling.run if formed else house.texts.finish
        await while_there(request, take(line.ask, order.prompts, order.settings))
        house.figures.tokens.labels(resident.name, "read").inc(order.read)
        head = {"id": f"{form.letters}-{uuid4().hex}", "created": int(time.time()), "model": resident.name}
        if asked.stream:
            wants = asked.stream_options is not None and asked.stream_options.include_usage
            return Events(line, events(request, line, order, form, head, bool(wants)))
        return await while_there(request, whole(request, line, order, form, head))
    except BaseException:
        line.close()
        raise


async def whole(request: Request, line: Line, order: Order, form: Form, head: dict[str, Any]) -> Response:
    """One answer, when all texts have ended."""
    choices = [Choice(place) for place in range(line.count)]
    async for place, piece in line:
        choices[place].hear(piece)
    line.close()
    usage = used(request, line.resident, order.read, choices)

    def work() -> bytes:
        shown = [form.whole(choice) for choice in picked(choices, order)]
        return spell(head | {"object": form.kind, "choices": shown, "usage": usage})

    return in_json(await line.house.parsing.finish(work))


def picked(choices: list[Choice], order: Order) -> list[Choice]:
    """The likeliest of those made for each prompt, numbered anew; all, if all are wanted."""
    if order.made == order.kept:
        return choices
    rows = [choices[start : start + order.made] for start in range(0, len(choices), order.made)]
    best = [each for row in rows for each in sorted(row, key=lambda choice: -choice.likely)[: order.kept]]
    for place, choice in enumerate(best):
        choice.place = place
    return best


async def events(
    request: Request, line: Line, order: Order, form: Form, head: dict[str, Any], wants: bool
) -> AsyncIterator[bytes]:
    """The same piece by piece; what goes wrong on the way is told as the last one."""
    choices = [Choice(place) for place in range(line.count)]
    head = head | {"object": form.event}
    more: dict[str, Any] = {"usage": None} if wants else {}
    try:
        for choice in choices:
            given = (form, choice.place, head, more)
            for opening in await line.house.parsing.finish(opened, *given) if form.is_long else opened(*given):
                yield opening
        told = 0
        async for place, piece in line:
            choices[place].hear(piece)
            yield event(head | {"choices": [form.part(choices[place], piece)]} | more)
            if (told := told + 1) % TURN == 0:  # many pieces may wait, and so may other clients
                await asyncio.sleep(0)
        usage = used(request, line.resident, order.read, choices)
        if wants:
            yield event(head | {"choices": [], "usage": usage})
    except Refusal as refusal:
        used(request, line.resident, order.read, choices)
        yield event(table(refusal))
    yield b"data: [DONE]\n\n"


def opened(form: Form, place: int, head: dict[str, Any], more: dict[str, Any]) -> list[bytes]:
    """What stands before the first piece: with `echo` that is a whole prompt."""
    return [b"data: %s\n\n" % spell(head | {"choices": [each]} | more) for each in form.opening(place)]


def event(value: dict[str, Any]) -> bytes:
    return b"data: " + written(value) + b"\n\n"


class Events(StreamingResponse):
    """Server-sent events; when nobody reads them any more, the line is closed at once."""

    media_type = "text/event-stream"

    def __init__(self, line: Line, parts: AsyncIterator[bytes]) -> None:
        super().__init__(parts, headers={"X-Accel-Buffering": "no"})
        self.line = line

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.line.close()


# ---------------------------------------------------------------- what is told of it


def used(request: Request, resident: Resident, read: int, choices: list[Choice]) -> dict[str, int]:
    made = sum(len(choice.tokens) for choice in choices)
    house: House = request.app.state.house
    house.figures.tokens.labels(resident.name, "written").inc(made)
    note(request, resident, completion_tokens=made)
    return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}


def note(request: Request, resident: Resident, **figures: int) -> None:
    """For the line in the log."""
    request.scope["state"]["notes"] |= {"model": resident.name, **figures}
