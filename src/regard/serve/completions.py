"""POST /v1/completions: what comes after a prompt."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from regard.generate.cancellation import CancelToken
from regard.generate.many import Piece, Token
from regard.serve.echo import Read, tokens_of
from regard.serve.house import House, Resident
from regard.serve.lines import while_there
from regard.serve.prompts import Prompt, in_ids, length_of, listed, writer
from regard.serve.reading import Strict
from regard.serve.refusals import Refusal
from regard.serve.tokens import columns
from regard.serve.wire import Completing
from regard.serve.writing import REASONS, Choice, Order, answer, check_odds, ordered, sampling

router = APIRouter(route_class=Strict)
USUAL = 16  # tokens, as OpenAI has it


@router.post("/v1/completions")
async def completions(request: Request, asked: Completing) -> Response:
    """Go on from a prompt, or from several."""
    house: House = request.app.state.house
    resident = writer(house.find(asked.model))
    check(asked)
    prompts = listed(asked.prompt, house.settings.texts)
    new = length_of(house, asked.max_tokens, USUAL, "max_tokens")
    ids = await while_there(request, all_in_ids(resident, prompts))
    order = ordered(asked, ids, sampling(asked, new) | {"logprobs": asked.logprobs or 0}, house.settings,
                    asked.best_of or 1)  # fmt: skip
    if asked.logprobs is not None:
        check_odds(resident, order, new, asked.logprobs, order.read if asked.echo else 0, "logprobs")
    read = await while_there(request, aloud(resident, asked, prompts, ids)) if asked.echo else []
    return await answer(request, resident, asked, order, Plain(resident, asked, read, order))


def check(asked: Completing) -> None:
    """What cannot be had together."""
    if asked.best_of is not None and asked.best_of < (asked.n or 1):
        raise Refusal(400, f"best_of: {asked.best_of} is less than n, {asked.n or 1}; raise it", param="best_of")
    if asked.stream and (asked.best_of or 1) > (asked.n or 1):
        raise Refusal(400, "best_of: which text is the best is known only at its end, so there is nothing to stream; "
                      "leave out stream, or best_of", param="best_of")  # fmt: skip


async def all_in_ids(resident: Resident, prompts: list[Prompt]) -> list[list[int]]:
    for each in prompts:
        if isinstance(each, str):
            resident.check_letters(len(each), "prompt")
    return [await in_ids(resident, each) for each in prompts]


async def aloud(resident: Resident, asked: Completing, prompts: list[Prompt], ids: list[list[int]]) -> list[Read]:
    """The prompts, to be repeated before what comes after them, with their odds where those are asked for.

    The model reads one prompt at a time: between two of them others have their turn.
    """
    known, top, read = resident.model.tokenizer, asked.logprobs, list[Read]()
    for prompt, row in zip(prompts, ids, strict=True):
        text = prompt if isinstance(prompt, str) else await resident.texts.run(known.decode, prompt)
        odds = () if top is None else await resident.do(partial(odds_of, resident, row, top))
        read.append(Read(text, odds))
    return read


def odds_of(resident: Resident, row: list[int], top: int, token: CancelToken) -> tuple[Token, ...]:
    token.check()
    return tokens_of(resident.answers, row, top)


class Plain:
    """Texts, each with its number. `read` are the prompts that are repeated before them, if they are."""

    kind = event = "text_completion"
    letters = "cmpl"

    def __init__(self, resident: Resident, asked: Completing, read: list[Read], order: Order) -> None:
        self.known, self.read, self.order = resident.model.tokenizer, read, order
        self.odds, self.is_long = asked.logprobs is not None, bool(read)

    def before(self, place: int, each: int) -> Read:
        """What stands before a choice, where there are so many for each prompt."""
        return self.read[place // each] if self.read else Read("")

    def opening(self, place: int) -> list[dict[str, Any]]:
        read = self.before(place, self.order.made)
        return [self.shown(place, read.text, read.tokens, 0, None)] if self.read else []

    def part(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        start = len(self.before(choice.place, self.order.made).text) + len(choice.text) - len(piece.text)
        return self.shown(choice.place, piece.text, piece.tokens, start, piece.reason)

    def whole(self, choice: Choice) -> dict[str, Any]:
        read = self.before(choice.place, self.order.kept)
        return self.shown(choice.place, read.text + choice.text, [*read.tokens, *choice.tokens], 0, choice.reason)

    def shown(
        self, place: int, text: str, tokens: Sequence[Token], start: int, reason: str | None
    ) -> dict[str, Any]:  # fmt: skip
        odds = columns(tokens, self.known, start) if self.odds else None
        return {"index": place, "text": text, "logprobs": odds, "finish_reason": REASONS.get(reason or "")}
