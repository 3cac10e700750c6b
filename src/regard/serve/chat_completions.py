"""POST /v1/chat/completions: the next turn of a chat, rendered with the model's own chat template."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from regard.engine.text_engine import CompletionChunk
from regard.serve.prompts import check_context, require_generation, resolve_max_tokens
from regard.serve.responses import (
    FINISH_REASONS,
    ResponseChoice,
    build_order,
    chat_logprobs,
    check_logprob_count,
    respond,
    sampling_settings,
)
from regard.serve.schemas import ChatCompletionRequest, ChatMessage
from regard.web.errors import ApiError
from regard.web.model_pool import ModelPool, ServedModel
from regard.web.stream_bridge import run_while_connected
from regard.web.strict_json import StrictRoute

router = APIRouter(route_class=StrictRoute)


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request, body: ChatCompletionRequest) -> Response:
    """Generate the next turn of a chat."""
    house: ModelPool = request.app.state.house
    resident = require_generation(house.find(body.model))
    if resident.form is None:
        raise ApiError(400, f"model: {resident.name} {resident.no_chat_reason}", param="model", code="wrong_model")
    form = resident.form
    resident.check_letters(sum(map(message_length, body.messages)), "messages")
    ids = await run_while_connected(
        request, house.texts.run(lambda: form.ids([template_message(each) for each in body.messages]))
    )
    check_context(resident, len(ids), "messages")
    param = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    new = resolve_max_tokens(house, getattr(body, param), house.settings.most, param)  # limited by the context
    given = sampling_settings(body, new) | {"logprobs": body.top_logprobs or 0}
    order = build_order(body, [ids], given, house.settings)
    if body.logprobs:
        check_logprob_count(resident, order, new, body.top_logprobs or 0, 0, "top_logprobs")
    return await respond(request, resident, body, order, ChatForm(resident, bool(body.logprobs)))


def message_length(message: ChatMessage) -> int:
    content = message.content or ""
    return len(content) if isinstance(content, str) else sum(len(part.text) for part in content)


def template_message(message: ChatMessage) -> dict[str, str]:
    """A message in the form that chat templates expect: content parts are joined into one text."""
    content = message.content or ""
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    return {"role": message.role, "content": text} | ({} if message.name is None else {"name": message.name})


class ChatForm:
    """Response form of chat completions: messages of the assistant."""

    kind, event, letters, is_long = "chat.completion", "chat.completion.chunk", "chatcmpl", False

    def __init__(self, resident: ServedModel, odds: bool) -> None:
        self.known, self.odds = resident.model.tokenizer, odds

    def opening(self, place: int) -> list[dict[str, Any]]:
        said = {"role": "assistant", "content": "", "refusal": None}
        return [{"index": place, "delta": said, "logprobs": None, "finish_reason": None}]

    def part(self, choice: ResponseChoice, piece: CompletionChunk) -> dict[str, Any]:
        said = {"content": piece.text} if piece.text else {}
        return {"index": choice.place, "delta": said, **self.rest(piece.tokens, piece.reason)}

    def full_choice(self, choice: ResponseChoice) -> dict[str, Any]:
        said = {"role": "assistant", "content": choice.text, "refusal": None}
        return {"index": choice.place, "message": said, **self.rest(choice.tokens, choice.reason)}

    def rest(self, tokens: Any, reason: str | None) -> dict[str, Any]:
        odds = chat_logprobs(tokens, self.known) if self.odds else None
        return {"logprobs": odds, "finish_reason": FINISH_REASONS.get(reason or "")}
