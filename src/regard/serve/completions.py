"""POST /v1/completions: the continuation of a prompt; with `echo` also the prompt and its tokens' log-probabilities.

log p(token | the tokens before it); the first token has no context and so none
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from fastapi import APIRouter, Request
from fastapi.responses import Response

from regard.engine.text_engine import CompletionChunk, TextEngine, TokenLogprob
from regard.generation.cancellation import CancelToken
from regard.inference.likelihood import log_prob_tables
from regard.serve.prompts import PromptInput, encode_prompt, list_prompts, require_generation, resolve_max_tokens
from regard.serve.responses import (
    FINISH_REASONS,
    CompletionOrder,
    ResponseChoice,
    build_order,
    check_logprob_count,
    completion_logprobs,
    respond,
    sampling_settings,
)
from regard.serve.schemas import CompletionRequest
from regard.web.errors import ApiError
from regard.web.model_pool import ModelPool, ServedModel
from regard.web.stream_bridge import run_while_connected
from regard.web.strict_json import StrictRoute


@dataclass(frozen=True)
class EchoedPrompt:
    """The text of a prompt for `echo`, and its tokens with log-probabilities where these are requested."""

    text: str
    tokens: tuple[TokenLogprob, ...] = ()


def prompt_logprobs(answers: TextEngine, ids: list[int], top: int) -> tuple[TokenLogprob, ...]:
    """The log-probability of each prompt token, with its `top` alternatives. Runs in the model's thread."""
    first = answers.token(ids[0], math.nan)
    if not (said := ids[1:]):
        return (first,)
    [odds] = log_prob_tables(answers.model, [tuple(ids[:-1])])  # (N - 1, V)
    best, own = odds.topk(min(top, odds.shape[-1])), odds[torch.arange(len(said)), said].tolist()
    others = [tuple(zip(*row, strict=True)) for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
    return first, *(answers.token(*each) for each in zip(said, own, others, strict=True))


router = APIRouter(route_class=StrictRoute)
USUAL = 16  # default of max_tokens, as OpenAI's


@router.post("/v1/completions")
async def create_completion(request: Request, body: CompletionRequest) -> Response:
    """Complete a prompt, or several."""
    house: ModelPool = request.app.state.house
    resident = require_generation(house.find(body.model))
    check_options(body)
    prompts = list_prompts(body.prompt, house.settings.texts)
    new = resolve_max_tokens(house, body.max_tokens, USUAL, "max_tokens")
    ids = await run_while_connected(request, encode_all_prompts(resident, prompts))
    order = build_order(body, ids, sampling_settings(body, new) | {"logprobs": body.logprobs or 0}, house.settings,
                    body.best_of or 1)  # fmt: skip
    if body.logprobs is not None:
        check_logprob_count(resident, order, new, body.logprobs, order.read if body.echo else 0, "logprobs")
    read = await run_while_connected(request, echo_prompts(resident, body, prompts, ids)) if body.echo else []
    return await respond(request, resident, body, order, CompletionForm(resident, body, read, order))


def check_options(body: CompletionRequest) -> None:
    """Refuse options that exclude each other."""
    if body.best_of is not None and body.best_of < (body.n or 1):
        raise ApiError(400, f"best_of: {body.best_of} is less than n, {body.n or 1}; raise it", param="best_of")
    if body.stream and (body.best_of or 1) > (body.n or 1):
        raise ApiError(400, "best_of: the best text is known only at its end, so there is nothing to stream; "
                      "leave out stream, or best_of", param="best_of")  # fmt: skip


async def encode_all_prompts(resident: ServedModel, prompts: list[PromptInput]) -> list[list[int]]:
    for each in prompts:
        if isinstance(each, str):
            resident.check_letters(len(each), "prompt")
    return [await encode_prompt(resident, each) for each in prompts]


async def echo_prompts(
    resident: ServedModel, body: CompletionRequest, prompts: list[PromptInput], ids: list[list[int]]
) -> list[EchoedPrompt]:
    """The prompts to be echoed, with log-probabilities where these are requested.

    The model scores one prompt at a time, so that other requests get their turn in between.
    """
    known, top, read = resident.model.tokenizer, body.logprobs, list[EchoedPrompt]()
    for prompt, row in zip(prompts, ids, strict=True):
        text = prompt if isinstance(prompt, str) else await resident.texts.run(known.decode, prompt)
        odds = () if top is None else await resident.run(partial(score_prompt, resident, row, top))
        read.append(EchoedPrompt(text, odds))
    return read


def score_prompt(resident: ServedModel, row: list[int], top: int, token: CancelToken) -> tuple[TokenLogprob, ...]:
    token.check()
    return prompt_logprobs(resident.answers, row, top)


class CompletionForm:
    """Response form of completions: numbered texts. `read` are the echoed prompts, if any."""

    kind = event = "text_completion"
    letters = "cmpl"

    def __init__(
        self, resident: ServedModel, body: CompletionRequest, read: list[EchoedPrompt], order: CompletionOrder
    ) -> None:
        self.known, self.read, self.order = resident.model.tokenizer, read, order
        self.odds, self.is_long = body.logprobs is not None, bool(read)

    def echo_text(self, place: int, each: int) -> EchoedPrompt:
        """The echoed prompt of a choice, of which each prompt has `each`."""
        return self.read[place // each] if self.read else EchoedPrompt("")

    def opening(self, place: int) -> list[dict[str, Any]]:
        read = self.echo_text(place, self.order.made)
        return [self.format_choice(place, read.text, read.tokens, 0, None)] if self.read else []

    def part(self, choice: ResponseChoice, piece: CompletionChunk) -> dict[str, Any]:
        start = len(self.echo_text(choice.place, self.order.made).text) + len(choice.text) - len(piece.text)
        return self.format_choice(choice.place, piece.text, piece.tokens, start, piece.reason)

    def full_choice(self, choice: ResponseChoice) -> dict[str, Any]:
        read = self.echo_text(choice.place, self.order.kept)
        return self.format_choice(
            choice.place, read.text + choice.text, [*read.tokens, *choice.tokens], 0, choice.reason
        )

    def format_choice(
        self, place: int, text: str, tokens: Sequence[TokenLogprob], start: int, reason: str | None
    ) -> dict[str, Any]:  # fmt: skip
        odds = completion_logprobs(tokens, self.known, start) if self.odds else None
        return {"index": place, "text": text, "logprobs": odds, "finish_reason": FINISH_REASONS.get(reason or "")}
