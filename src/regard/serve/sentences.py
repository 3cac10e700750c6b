"""What pydantic found wrong with a request, as one sentence."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response

from regard.serve.refusals import Refusal, answered, brief

# Fields that may be said in several ways: pydantic has a complaint for each of them.
WAYS = {
    "prompt": "a text, a list of texts, a list of ids, or a list of such lists",
    "input": "a text, or a list of texts that is not empty",
    "pair": "a text, or a list of texts that is not empty",
    "stop": "a text, or a list of at most 16",
    "content": 'a text, or a list of {"type": "text", "text": ...}',
}
# Fields of OpenAI's that are only taken where they change nothing.
SETTLED = {
    "suffix": "a text is only gone on with here, and none is put between two; leave suffix out",
    "tools": "models here call no tools; leave tools out",
    "tool_choice": "models here call no tools; leave it out",
    "store": "nothing that is asked or answered is kept here; leave store out",
}
Found = Mapping[str, Any]


async def misread(request: Request, problem: Exception) -> Response:
    """The handler of pydantic's refusals."""
    assert isinstance(problem, RequestValidationError)
    message, param = sentence(problem.errors())
    return answered(Refusal(400, message, param=param, code="invalid_value"))


def sentence(errors: Sequence[Found]) -> tuple[str, str | None]:
    """The first mistake, and the field where it is."""
    first = errors[0]
    path = [part for part in first["loc"] if part != "body"]
    if not path:
        return whole(first), None
    field = next((place for place, part in enumerate(path) if part in WAYS or part in SETTLED), None)
    if field is not None and path[field] in SETTLED:
        return f"{path[field]}: {SETTLED[path[field]]}", str(path[0])
    if field is not None and first["type"] != "missing" and len(path) > field + 1:
        return f"{spelt(path[: field + 1])}: expected {WAYS[path[field]]}", str(path[0])
    return f"{spelt(path)}: {complaint(first)}", str(path[0])


def whole(found: Found) -> str:
    if found["type"] == "missing":
        return "the body is missing; send JSON"
    if found["type"] in ("unknown", "stream", "logprobs", "both"):
        return str(found["msg"])
    return f"the body: expected a table in JSON, such as {{\"model\": ...}}, and this is {brief(found['input'])}"


def complaint(found: Found) -> str:
    """What is wrong with one value, and what it should be."""
    match found["type"]:
        case "missing":
            return "it is missing; give it"
        case "extra_forbidden":
            return "there is no such field; leave it out"
        case "unknown" | "schema" | "content" | "many":
            return str(found["msg"])
    wanted = str(found["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{brief(found['input'])} is refused; expected {wanted[:1].lower()}{wanted[1:]}"


def spelt(path: Sequence[Any]) -> str:
    """messages[0].content"""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in path]
    return "".join(parts).removeprefix(".")
