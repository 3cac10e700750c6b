"""What models do besides writing: /v1/embeddings as OpenAI has it, and our /v1/classify, /v1/fill and /v1/translate.

All of them take a text or a list of texts as `input` and give a list of answers in its order. A text that is longer
than the model reads is refused: what was cut off would be missing from the answer, and nobody would know.
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from struct import pack
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from regard.config import ConfigError, DataError
from regard.generate.classes import check, judgements
from regard.generate.embed import embeddings, pictured, way
from regard.generate.fill import fill
from regard.generate.frames import Reader
from regard.generate.translate import Translator
from regard.serve.house import House, Resident
from regard.serve.lines import while_there
from regard.serve.reading import Strict, brief
from regard.serve.refusals import Refusal, said
from regard.serve.wire import Classing, Embedding, Filling, Named, Translating
from regard.serve.writing import note

router = APIRouter(route_class=Strict)
BEST = 5  # words for a blank, unless said


@router.post("/v1/embeddings")
async def embedded(request: Request, asked: Embedding) -> Response:
    """A vector for each text."""

    def work(model: Any, texts: list[str], names: list[str]) -> tuple[list[list[float]], int]:
        for text, name in zip(texts, names, strict=True):
            if pictured(model, text):  # the name of a file, which is ours and not the client's
                raise DataError(f"{name}: {brief(text)} names a picture, and only texts are taken here; use words")
        count = counted(model, texts, None, names, way(model).length)
        return embeddings(model, texts, names=names).tolist(), count

    resident, (vectors, count) = await done(request, asked, work)
    if asked.dimensions not in (None, width := len(vectors[0])):
        raise Refusal(400, f"dimensions: the vectors of {resident.name} have {width} numbers, always; leave it out",
                      param="dimensions")  # fmt: skip
    shown: Callable[[list[float]], Any] = packed if asked.encoding_format == "base64" else list
    data = [{"object": "embedding", "index": place, "embedding": shown(row)} for place, row in enumerate(vectors)]
    return answer(request, resident, data, count)


def packed(row: list[float]) -> str:
    """Four bytes a number, the smallest first, in base64."""
    return b64encode(pack(f"<{len(row)}f", *row)).decode()


@router.post("/v1/classify")
async def classified(request: Request, asked: Classing) -> Response:
    """How likely each class is for each text, or pair; or the number it is given."""
    pairs = paired(asked)

    def work(model: Any, texts: list[str], names: list[str]) -> tuple[list[Any], int]:
        check(model)
        count = counted(model, texts, pairs, names)
        return judgements(model, texts, pairs, names=names), count

    resident, (found, count) = await done(request, asked, work)
    return answer(request, resident, [{"index": place} | judged(each, asked.top) for place, each in enumerate(found)],
                  count)  # fmt: skip


def paired(asked: Classing) -> list[str] | None:
    """The second texts: one for each, or the same for all."""
    if asked.pair is None:
        return None
    many = len(asked.input) if isinstance(asked.input, list) else 1
    if isinstance(asked.pair, str):
        return [asked.pair] * many
    if len(asked.pair) != many:
        raise Refusal(400, f"pair: {len(asked.pair)} texts for {many} of input; give one for each, or one for all",
                      param="pair")  # fmt: skip
    return asked.pair


def judged(found: dict[str, float] | float, top: int | None) -> dict[str, Any]:
    if isinstance(found, float):
        return {"number": found}
    return {"classes": [{"label": name, "probability": share} for name, share in list(found.items())[:top]]}


@router.post("/v1/fill")
async def filled(request: Request, asked: Filling) -> Response:
    """The likeliest words for each [MASK] of each text."""

    def work(model: Any, texts: list[str], names: list[str]) -> tuple[list[Any], int]:
        return fill(model, texts, asked.best or BEST, names=names), counted(model, texts, None, names)

    resident, (found, count) = await done(request, asked, work)
    data = [{"index": place, "blanks": [[guess._asdict() for guess in blank] for blank in blanks]}
            for place, blanks in enumerate(found)]  # fmt: skip
    return answer(request, resident, data, count)


@router.post("/v1/translate")
async def translated(request: Request, asked: Translating) -> Response:
    """Each text in the other language, by beam search."""
    house: House = request.app.state.house
    if (asked.max_tokens or 0) > house.settings.most:
        raise Refusal(400, f"max_tokens: {asked.max_tokens:,} tokens are more than the {house.settings.most:,} that "
                      "this server writes; ask for less", param="max_tokens")  # fmt: skip
    said = {"beams": asked.beams, "length_penalty": asked.length_penalty, "best": asked.best}
    given = {name: value for name, value in said.items() if value is not None}

    def work(model: Any, texts: list[str], names: list[str]) -> tuple[list[Any], int]:
        translator = Translator(model)
        count = sum(len(translator.source(text, name)) for text, name in zip(texts, names, strict=True))
        return translator(texts, given, asked.max_tokens, names), count

    resident, (found, count) = await done(request, asked, work)
    data = [{"index": place, "text": one.text, "score": one.score,
             "others": [{"text": other.text, "score": other.score} for other in one.others]}
            for place, one in enumerate(found)]  # fmt: skip
    return answer(request, resident, data, count, sum(len(one.ids) for one in found))


# ---------------------------------------------------------------- what they have in common


async def done(request: Request, asked: Any, work: Callable[..., tuple[list[Any], int]]) -> tuple[Resident, Any]:
    """Some work on the texts of a request, done by the thread that owns the model."""
    house: House = request.app.state.house
    resident = house.find(asked.model)
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    if len(texts) > house.settings.texts:
        raise Refusal(400, f"input: {len(texts):,} texts are more than the {house.settings.texts} that one request may "
                      "have; send several requests", param="input")  # fmt: skip
    names = ["input"] if isinstance(asked.input, str) else [f"input[{place}]" for place in range(len(texts))]
    note(request, resident)
    try:
        return resident, await while_there(request.receive, resident.do(lambda: work(resident.model, texts, names)))
    except (ConfigError, DataError) as problem:
        raise about(problem, asked, resident) from None


def about(problem: ConfigError | DataError, asked: Named, resident: Resident) -> ConfigError | DataError:
    """A sentence that is not about a field of the request is about the model, and says which."""
    name = str(problem).partition(":")[0].partition("[")[0]
    fields = (*type(asked).model_fields, "new")
    return problem if name in fields else type(problem)(f"model: {resident.name}: {problem}")


def counted(
    model: Any, texts: list[str], pairs: list[str] | None, names: list[str], longest: int | None = None
) -> int:  # fmt: skip
    """How many tokens will be read. Refuses texts that are too long, which would be cut."""
    reader, total = Reader.of(model, longest), 0
    second: Sequence[str | None] = pairs or [None] * len(texts)
    for text, pair, name in zip(texts, second, names, strict=True):
        size = len(reader.frame(text, pair, name))
        if reader.longest is not None and size > reader.longest:
            raise DataError(f"{name}: {size:,} tokens are more than the {reader.longest:,} that this model reads at "
                            "once; give it in shorter pieces")  # fmt: skip
        total += size
    return total


def answer(request: Request, resident: Resident, data: list[Any], read: int, made: int = 0) -> Response:
    house: House = request.app.state.house
    house.figures.tokens.labels(resident.name, "read").inc(read)
    house.figures.tokens.labels(resident.name, "written").inc(made)
    note(request, resident, prompt_tokens=read, completion_tokens=made)
    usage = {"prompt_tokens": read, "total_tokens": read + made} | ({"completion_tokens": made} if made else {})
    return said({"object": "list", "data": data, "model": resident.name, "usage": usage})
