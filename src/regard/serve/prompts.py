"""Prompts in ids: from a text or a list of ids, whole, and within what the model and this server allow."""

from regard.generate.model import Transformer
from regard.serve.house import House, Resident
from regard.serve.refusals import Refusal

Prompt = str | list[int]


def writer(resident: Resident) -> Resident:
    """A model that goes on from texts."""
    if resident.silent:
        raise Refusal(400, f"model: {resident.name} {resident.silent}", param="model", code="wrong_model")
    return resident


def listed(given: str | list[str] | list[int] | list[list[int]], most: int) -> list[Prompt]:
    """The prompts of a request, however they were given."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise Refusal(400, "prompt: it is an empty list; give a text, or ids", param="prompt")
    if isinstance(given[0], int):
        return [[each for each in given if isinstance(each, int)]]
    if len(given) > most:
        raise Refusal(400, f"prompt: {len(given)} of them are more than the {most} that one request may have; send "
                      "several requests", param="prompt")  # fmt: skip
    return [each for each in given if not isinstance(each, int)]


async def in_ids(resident: Resident, prompt: Prompt) -> list[int]:
    """A prompt as the model reads it; a long text is read where nobody waits for it."""
    ids = await resident.texts.run(ids_of, resident, prompt)
    fits(resident, len(ids), "prompt")
    return ids


def ids_of(resident: Resident, prompt: Prompt) -> list[int]:
    model: Transformer = resident.model
    if isinstance(prompt, str):
        _, [ids] = model.encoded([prompt])
    else:
        check_ids(prompt, len(resident.model.tokenizer), "prompt")
        ids = model.begun(prompt)
    return ids


def check_ids(ids: list[int], size: int, param: str) -> None:
    if (stranger := next((id for id in ids if id >= size), None)) is not None:
        raise Refusal(400, f"{param}: there is no id {stranger}; the tokenizer has 0 to {size - 1}", param=param)


def fits(resident: Resident, length: int, param: str) -> None:
    if resident.room is not None and length > resident.room:
        raise Refusal(400, f"{param}: {length:,} tokens are more than the {resident.room:,} that {resident.name} reads "
                      "at once; give less", param=param, code="context_length_exceeded")  # fmt: skip


def length_of(house: House, said: int | None, usual: int, param: str) -> int:
    """How many tokens may be written."""
    if said is not None and said > house.settings.most:
        raise Refusal(400, f"{param}: {said:,} tokens are more than the {house.settings.most:,} that this server "
                      "writes; ask for less", param=param)  # fmt: skip
    return min(usual, house.settings.most) if said is None else said
