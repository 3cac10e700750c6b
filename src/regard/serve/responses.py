"""Responses of generation: request fields to SamplingParams, and completion chunks to one body or to SSE events.

    request ── settings ──► stream ──┬── stream: an event for each chunk, then [DONE]
                                     └── or else: one response with everything

Each route has its own `ResponseForm`. OpenAI has two forms of logprobs: a list for each quantity (completions), and an
object for each token (chat completions); both are here, and the usage.
"""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from regard.engine.text_engine import CompletionChunk, TokenLogprob
from regard.serve.schemas import GenerationFields
from regard.text.tokenizer import Tokenizer
from regard.web.errors import ApiError, bytes_response, dump_json, error_body, to_json_bytes
from regard.web.field_names import SETTING_OF_FIELD
from regard.web.model_pool import ModelPool, ServedModel
from regard.web.settings import ServerSettings
from regard.web.stream_bridge import CompletionStream, run_while_connected

CONVERTED = ("max_tokens", "seed", "stop", "logit_bias", "response_format")  # fields that need a conversion
ODDS = 1 << 18  # limit of log-probabilities in one response, alternatives included
TURN = 8  # chunks of a stream, after which the event loop serves others
FINISH_REASONS = {"length": "length", "eos": "stop", "stop": "stop"}  # our reasons, and OpenAI's


@dataclass
class ResponseChoice:
    """One choice of a response, as far as it has been generated; `place` is its index in the request."""

    place: int
    text: str = ""
    tokens: list[TokenLogprob] = field(default_factory=list)
    reason: str | None = None

    def hear(self, piece: CompletionChunk) -> None:
        self.text += piece.text
        self.tokens += piece.tokens
        self.reason = piece.reason

    @property
    def likely(self) -> float:
        """The mean log-probability of its tokens."""
        return sum(each.logprob for each in self.tokens) / max(len(self.tokens), 1)


class ResponseForm(Protocol):
    """Protocol of a route's response format. Each method returns entries of the list "choices"."""

    kind: str  # "chat.completion"
    event: str  # the same for an event of a stream
    letters: str  # the prefix of response ids
    is_long: bool  # whether openings may be long

    def opening(self, place: int) -> list[dict[str, Any]]:
        """The entries of a stream before the first chunk of a choice."""
        ...

    def part(self, choice: ResponseChoice, piece: CompletionChunk) -> dict[str, Any]:
        """The entry of one chunk of a choice, which is appended to the choice already."""
        ...

    def full_choice(self, choice: ResponseChoice) -> dict[str, Any]: ...


@dataclass(frozen=True)
class CompletionOrder:
    """All texts to generate for one request: the prompt ids and the settings of each text."""

    prompts: list[list[int]]
    settings: list[dict[str, Any]]
    read: int  # tokens of the prompts, each counted once
    made: int  # texts generated for each prompt
    kept: int  # how many of them are returned


def sampling_settings(body: GenerationFields, new: int) -> dict[str, Any]:
    """The settings of `config.SamplingParams` in a request; fields that are absent keep the model's defaults."""
    given = {setting: value for field, setting in SETTING_OF_FIELD.items()
             if field not in CONVERTED and (value := getattr(body, field)) is not None}  # fmt: skip
    if body.stop is not None:
        given["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    if body.logit_bias:
        given["logit_bias"] = parse_logit_bias_field(body.logit_bias)
    if body.response_format is not None and body.response_format.type != "text":
        schema = body.response_format.json_schema
        given["json_schema"] = json.dumps({"type": "object"} if schema is None else schema.schema_)
    return given | {"max_new_tokens": new}


def parse_logit_bias_field(bias: dict[str, float]) -> dict[int, float]:
    """Parse logit_bias, whose ids are strings, since they are keys of a JSON object."""
    for word in bias:
        if not (word.isascii() and word.isdigit() and len(word) < 10):
            raise ApiError(400, f"logit_bias: {word[:20]!r} is no id; its keys are token ids, as /tokenize returns "
                          "them", param="logit_bias")  # fmt: skip
    return {int(word): number for word, number in bias.items()}


def build_order(
    body: GenerationFields, prompts: list[list[int]], given: dict[str, Any], settings: ServerSettings, best: int = 1
) -> CompletionOrder:  # fmt: skip
    """The texts to generate for a request: `best` for each prompt, of which n are returned; a given seed varies by
    text."""
    kept = body.n or 1
    made = max(kept, best)
    count, room = len(prompts) * made, settings.slots + settings.max_queue
    if count > settings.texts:
        raise ApiError(400, f"n: {count} texts are more than the {settings.texts} that one request may have; ask "
                            "for "
                      "less", param="n")  # fmt: skip
    if count > room:  # more than an idle server could accept
        name = "n" if made > 1 else "prompt"
        raise ApiError(400, f"{name}: {count} texts are more than the {room} that this server generates at a time; "
                      "ask for less, in several requests", param=name)  # fmt: skip
    seeds = [{} if body.seed is None else {"seed": (body.seed + place) % (1 << 63)} for place in range(made)]
    every = [given | seed for _ in prompts for seed in seeds]
    rows = [prompt for prompt in prompts for _ in range(made)]
    return CompletionOrder(rows, every, sum(map(len, prompts)), made, kept)


def check_logprob_count(
    resident: ServedModel, order: CompletionOrder, new: int, top: int, read: int, param: str
) -> None:
    """Refuse more log-probabilities than a response may have, before any is computed."""
    room = resident.room or new
    made = sum(min(new, max(room - len(prompt) + 1, 0)) for prompt in order.prompts)
    if (count := (read + made) * (1 + top)) > ODDS:
        raise ApiError(400, f"{param}: {count:,} log-probabilities are more than the {ODDS:,} that one answer may "
                            "have; "
                      "ask for fewer texts, tokens or alternatives", param=param)  # fmt: skip


# ---------------------------------------------------------------- responses


async def respond(
    request: Request, resident: ServedModel, body: GenerationFields, order: CompletionOrder, form: ResponseForm
) -> Response:
    """Generate the texts of a request; return one response, or a stream of events."""
    house: ModelPool = request.app.state.house
    note_request(request, resident, prompt_tokens=order.read)
    line = CompletionStream(house, resident, len(order.prompts), request.app.state.post)
    try:
        formed = not order.settings[0].keys().isdisjoint(("regex", "json_schema"))
        take = house.compiling.run if formed else house.texts.finish
        await run_while_connected(request, take(line.submit, order.prompts, order.settings))
        house.figures.tokens.labels(resident.name, "read").inc(order.read)
        head = {"id": f"{form.letters}-{uuid4().hex}", "created": int(time.time()), "model": resident.name}
        if body.stream:
            wants = body.stream_options is not None and body.stream_options.include_usage
            return SSEResponse(line, stream_events(request, line, order, form, head, bool(wants)))
        return await run_while_connected(request, full_response(request, line, order, form, head))
    except BaseException:
        line.close()
        raise


async def full_response(
    request: Request, line: CompletionStream, order: CompletionOrder, form: ResponseForm, head: dict[str, Any]
) -> Response:
    """One response, when all texts have ended."""
    choices = [ResponseChoice(place) for place in range(line.count)]
    async for place, piece in line:
        choices[place].hear(piece)
    line.close()
    usage = usage_entry(request, line.resident, order.read, choices)

    def work() -> bytes:
        shown = [form.full_choice(choice) for choice in best_choices(choices, order)]
        return dump_json(head | {"object": form.kind, "choices": shown, "usage": usage})

    return bytes_response(await line.house.parsing.finish(work))


def best_choices(choices: list[ResponseChoice], order: CompletionOrder) -> list[ResponseChoice]:
    """The most probable of the texts for each prompt, with new indices; all, if all are returned."""
    if order.made == order.kept:
        return choices
    rows = [choices[start : start + order.made] for start in range(0, len(choices), order.made)]
    best = [each for row in rows for each in sorted(row, key=lambda choice: -choice.likely)[: order.kept]]
    for place, choice in enumerate(best):
        choice.place = place
    return best


async def stream_events(
    request: Request,
    line: CompletionStream,
    order: CompletionOrder,
    form: ResponseForm,
    head: dict[str, Any],
    wants: bool,
) -> AsyncIterator[bytes]:
    """Server-sent events, one for each chunk; an error is the last event."""
    choices = [ResponseChoice(place) for place in range(line.count)]
    head = head | {"object": form.event}
    more: dict[str, Any] = {"usage": None} if wants else {}
    try:
        for choice in choices:
            given = (form, choice.place, head, more)
            for opening in (
                await line.house.parsing.finish(echo_events, *given) if form.is_long else echo_events(*given)
            ):
                yield opening
        told = 0
        async for place, piece in line:
            choices[place].hear(piece)
            yield sse_event(head | {"choices": [form.part(choices[place], piece)]} | more)
            if (told := told + 1) % TURN == 0:  # many chunks may be queued: let the event loop serve other clients
                await asyncio.sleep(0)
        usage = usage_entry(request, line.resident, order.read, choices)
        if wants:
            yield sse_event(head | {"choices": [], "usage": usage})
    except ApiError as refusal:
        usage_entry(request, line.resident, order.read, choices)
        yield sse_event(error_body(refusal))
    yield b"data: [DONE]\n\n"


def echo_events(form: ResponseForm, place: int, head: dict[str, Any], more: dict[str, Any]) -> list[bytes]:
    """The events before the first chunk: with `echo` they hold a whole prompt."""
    return [b"data: %s\n\n" % dump_json(head | {"choices": [each]} | more) for each in form.opening(place)]


def sse_event(value: dict[str, Any]) -> bytes:
    return b"data: " + to_json_bytes(value) + b"\n\n"


class SSEResponse(StreamingResponse):
    """Server-sent events; when the client disconnects, the stream is closed at once."""

    media_type = "text/event-stream"

    def __init__(self, line: CompletionStream, parts: AsyncIterator[bytes]) -> None:
        super().__init__(parts, headers={"X-Accel-Buffering": "no"})
        self.line = line

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.line.close()


# ---------------------------------------------------------------- usage, log and logprobs


def usage_entry(request: Request, resident: ServedModel, read: int, choices: list[ResponseChoice]) -> dict[str, int]:
    made = sum(len(choice.tokens) for choice in choices)
    house: ModelPool = request.app.state.house
    house.figures.tokens.labels(resident.name, "written").inc(made)
    note_request(request, resident, completion_tokens=made)
    return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}


def note_request(request: Request, resident: ServedModel, **figures: int) -> None:
    """Add fields to the access log line of the request."""
    request.scope["state"]["notes"] |= {"model": resident.name, **figures}


LEAST = -9999.0  # what clients get for log 0


def completion_logprobs(tokens: Sequence[TokenLogprob], known: Tokenizer, start: int) -> dict[str, Any]:
    """The logprobs of completions. `start` is the text offset of the first token; a token without context has no
    log-probability."""
    offsets = list[int]()
    for each in tokens:
        offsets.append(start)
        start += len(each.bytes.decode(errors="ignore"))
    return {
        "tokens": [token_text(each, known) for each in tokens],
        "token_logprobs": [token_logprob(each) for each in tokens],
        "top_logprobs": [
            None
            if token_logprob(each) is None
            else {token_text(other, known): token_logprob(other) for other in each.others}
            for each in tokens
        ],
        "text_offset": offsets,
    }


def chat_logprobs(tokens: Sequence[TokenLogprob], known: Tokenizer) -> dict[str, Any]:
    told = [
        logprob_entry(each, known) | {"top_logprobs": [logprob_entry(other, known) for other in each.others]}
        for each in tokens
    ]
    return {"content": told, "refusal": None}


def logprob_entry(token: TokenLogprob, known: Tokenizer) -> dict[str, Any]:
    return {"token": token_text(token, known), "logprob": token_logprob(token), "bytes": list(token.bytes)}


def token_text(token: TokenLogprob, known: Tokenizer) -> str:
    """A token as text: a special token by its name, an incomplete character by its bytes, as OpenAI does."""
    if token.id in known.specials:
        return known.token(token.id)
    try:
        return token.bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)


def token_logprob(token: TokenLogprob) -> float | None:
    return None if math.isnan(token.logprob) else max(token.logprob, LEAST)
