"""Prompts as ids: encoding of a text or a list of ids, and checks against the limits of the model and the server."""

from regard.inference.model import Model
from regard.web.errors import ApiError
from regard.web.model_pool import ModelPool, ServedModel

PromptInput = str | list[int]


def require_generation(resident: ServedModel) -> ServedModel:
    """The model, if it can generate text; an ApiError otherwise."""
    if resident.no_generation_reason:
        raise ApiError(
            400, f"model: {resident.name} {resident.no_generation_reason}", param="model", code="wrong_model"
        )
    return resident


def list_prompts(given: str | list[str] | list[int] | list[list[int]], most: int) -> list[PromptInput]:
    """The prompts of a request: one or several texts, or one or several lists of ids."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise ApiError(400, "prompt: an empty list; give a text, or ids", param="prompt")
    if isinstance(given[0], int):
        return [[each for each in given if isinstance(each, int)]]
    if len(given) > most:
        raise ApiError(400, f"prompt: {len(given)} of them are more than the {most} that one request may have; send "
                      "several requests", param="prompt")  # fmt: skip
    return [each for each in given if not isinstance(each, int)]


async def encode_prompt(resident: ServedModel, prompt: PromptInput) -> list[int]:
    """Encode a prompt for the model, in a worker thread, so that a long text does not block the event loop."""
    ids = await resident.texts.run(prompt_ids, resident, prompt)
    check_context(resident, len(ids), "prompt")
    return ids


def prompt_ids(resident: ServedModel, prompt: PromptInput) -> list[int]:
    model: Model = resident.model
    if isinstance(prompt, str):
        _, [ids] = model.encode_prompts([prompt])
    else:
        check_ids(prompt, len(resident.model.tokenizer), "prompt")
        ids = model.with_start_token(prompt)
    return ids


def check_ids(ids: list[int], size: int, param: str) -> None:
    if (stranger := next((id for id in ids if id >= size), None)) is not None:
        raise ApiError(400, f"{param}: no id {stranger}; the tokenizer has 0 to {size - 1}", param=param)


def check_context(resident: ServedModel, length: int, param: str) -> None:
    if resident.room is not None and length > resident.room:
        raise ApiError(400, f"{param}: {length:,} tokens are more than the {resident.room:,} that {resident.name} "
                            "reads "
                      "at once; give less", param=param, code="context_length_exceeded")  # fmt: skip


def resolve_max_tokens(house: ModelPool, wanted: int | None, usual: int, param: str) -> int:
    """The token limit of a request: the requested one, or the default, within the server's limit."""
    if wanted is not None and wanted > house.settings.most:
        raise ApiError(400, f"{param}: {wanted:,} tokens are more than the {house.settings.most:,} that this server "
                      "generates; ask for less", param=param)  # fmt: skip
    return min(usual, house.settings.most) if wanted is None else wanted
