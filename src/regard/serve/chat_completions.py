"""POST /v1/chat/completions: the next turn of a chat, written as the model's own template has it."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from regard.generate.many import Piece
from regard.serve.house import House, Resident
from regard.serve.lines import while_there
from regard.serve.prompts import fits, length_of, writer
from regard.serve.reading import Strict
from regard.serve.refusals import Refusal
from regard.serve.tokens import rows
from regard.serve.wire import Chatting, Message
from regard.serve.writing import REASONS, Choice, answer, check_odds, ordered, sampling

router = APIRouter(route_class=Strict)


@router.post("/v1/chat/completions")
async def chats(request: Request, asked: Chatting) -> Response:
    """Say the next thing in a chat."""
    house: House = request.app.state.house
    resident = writer(house.find(asked.model))
    if resident.form is None:
        raise Refusal(400, f"model: {resident.name} {resident.mute}", param="model", code="wrong_model")
    form = resident.form
    resident.check_letters(sum(map(letters, asked.messages)), "messages")
    ids = await while_there(request, house.texts.run(lambda: form.ids([plain(each) for each in asked.messages])))
    fits(resident, len(ids), "messages")
    param = "max_tokens" if asked.max_completion_tokens is None else "max_completion_tokens"
    new = length_of(house, getattr(asked, param), house.settings.most, param)  # as far as there is room
    given = sampling(asked, new) | {"logprobs": asked.top_logprobs or 0}
    order = ordered(asked, [ids], given, house.settings)
    if asked.logprobs:
        check_odds(resident, order, new, asked.top_logprobs or 0, 0, "top_logprobs")
    return await answer(request, resident, asked, order, Spoken(resident, bool(asked.logprobs)))


def letters(message: Message) -> int:
    content = message.content or ""
    return len(content) if isinstance(content, str) else sum(len(part.text) for part in content)


def plain(message: Message) -> dict[str, str]:
    """A message as templates know it: what came in parts is one text."""
    content = message.content or ""
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    return {"role": message.role, "content": text} | ({} if message.name is None else {"name": message.name})


class Spoken:
    """Messages of the assistant."""

    kind, event, letters, is_long = "chat.completion", "chat.completion.chunk", "chatcmpl", False

    def __init__(self, resident: Resident, odds: bool) -> None:
        self.known, self.odds = resident.model.tokenizer, odds

    def opening(self, place: int) -> list[dict[str, Any]]:
        said = {"role": "assistant", "content": "", "refusal": None}
        return [{"index": place, "delta": said, "logprobs": None, "finish_reason": None}]

    def part(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        said = {"content": piece.text} if piece.text else {}
        return {"index": choice.place, "delta": said, **self.rest(piece.tokens, piece.reason)}

    def whole(self, choice: Choice) -> dict[str, Any]:
        said = {"role": "assistant", "content": choice.text, "refusal": None}
        return {"index": choice.place, "message": said, **self.rest(choice.tokens, choice.reason)}

    def rest(self, tokens: Any, reason: str | None) -> dict[str, Any]:
        odds = rows(tokens, self.known) if self.odds else None
        return {"logprobs": odds, "finish_reason": REASONS.get(reason or "")}
