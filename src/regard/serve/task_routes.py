"""What models do besides writing: /v1/embeddings as OpenAI has it, and our /v1/classify, /v1/fill and /v1/translate.

All of them take a text or a list of texts as `input` and give a list of answers in its order. A text that is longer
than the model reads is refused: what was cut off would be missing from the answer, and nobody would know.
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from struct import pack
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from regard.config import ConfigError, DataError
from regard.generate.cancellation import CancelToken
from regard.generate.classes import check, judgements
from regard.generate.embed import embeddings, pictured, way
from regard.generate.fill import MASK, fill
from regard.generate.frames import Reader
from regard.generate.translate import BEAMS, Translator, batches
from regard.serve.house import House, Resident
from regard.serve.lines import while_there
from regard.serve.reading import Strict
from regard.serve.refusals import Refusal, brief, in_json, spell
from regard.serve.wire import Classing, Embedding, Filling, Named, Translating
from regard.serve.writing import note

router = APIRouter(route_class=Strict)
BEST = 5  # words for a blank, unless said
PLAIN = 1 << 14  # letters of a text whose tokens are counted before it is laid out
WORDS = 1 << 14  # for all blanks of a request
LONGEST = 4096  # tokens of a text for a model that has no limit of its own
AT_ONCE = 1024  # tokens, once for each beam, that the thread of a model is given at a time


@router.post("/v1/embeddings")
async def embedded(request: Request, asked: Embedding) -> Response:
    """A vector for each text."""

    def weigh(model: Any, texts: list[str], names: list[str]) -> list[int]:
        for text, name in zip(texts, names, strict=True):
            if pictured(model, text):  # the name of a file, which is ours and not the client's
                raise DataError(f"{name}: {brief(text)} names a picture, and only texts are taken here; use words")
        return counted(model, texts, None, names, way(model).length)

    def work(model: Any, batch: Batch) -> list[list[float]]:
        found: list[list[float]] = embeddings(model, batch.texts, names=batch.names).tolist()
        return found

    resident, vectors, count = await done(request, asked, weigh, work)
    if asked.dimensions not in (None, width := len(vectors[0])):
        raise Refusal(400, f"dimensions: the vectors of {resident.name} have {width} numbers, always; leave it out",
                      param="dimensions")  # fmt: skip
    shown: Callable[[list[float]], Any] = packed if asked.encoding_format == "base64" else list

    def rows() -> list[Any]:
        return [{"object": "embedding", "index": place, "embedding": shown(row)} for place, row in enumerate(vectors)]

    return await answer(request, resident, rows, count)


def packed(row: list[float]) -> str:
    """Four bytes a number, the smallest first, in base64."""
    return b64encode(pack(f"<{len(row)}f", *row)).decode()


@router.post("/v1/classify")
async def classified(request: Request, asked: Classing) -> Response:
    """How likely each class is for each text, or pair; or the number it is given."""
    pairs = paired(asked)

    def weigh(model: Any, texts: list[str], names: list[str]) -> list[int]:
        check(model)
        return counted(model, texts, pairs, names)

    def work(model: Any, batch: Batch) -> list[Any]:
        some = None if pairs is None else [pairs[place] for place in batch.places]
        return judgements(model, batch.texts, some, names=batch.names)

    resident, found, count = await done(request, asked, weigh, work, pairs=pairs)

    def rows() -> list[Any]:
        return [{"index": place} | judged(each, asked.top) for place, each in enumerate(found)]

    return await answer(request, resident, rows, count)


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
    best = asked.best or BEST

    def weigh(model: Any, texts: list[str], names: list[str]) -> list[int]:
        sizes, known = counted(model, texts, None, names), model.tokenizer
        marks = {MASK, known.token(known.roles["mask"])} if "mask" in known.roles else {MASK}
        blanks = sum(text.count(mark) for text in texts for mark in marks)
        if blanks * best > WORDS:
            raise ConfigError(f"best: {best} words for each of {blanks:,} blanks are more than the {WORDS:,} that one "
                              "request may ask for; ask for less")  # fmt: skip
        return sizes

    def work(model: Any, batch: Batch) -> list[Any]:
        return fill(model, batch.texts, best, names=batch.names)

    resident, found, count = await done(request, asked, weigh, work)

    def rows() -> list[Any]:
        return [{"index": place, "blanks": [[guess._asdict() for guess in blank] for blank in blanks]}
                for place, blanks in enumerate(found)]  # fmt: skip

    return await answer(request, resident, rows, count)


@router.post("/v1/translate")
async def translated(request: Request, asked: Translating) -> Response:
    """Each text in the other language, by beam search."""
    house: House = request.app.state.house
    if (asked.max_tokens or 0) > house.settings.most:
        raise Refusal(400, f"max_tokens: {asked.max_tokens:,} tokens are more than the {house.settings.most:,} that "
                      "this server writes; ask for less", param="max_tokens")  # fmt: skip
    said = {"beams": asked.beams, "length_penalty": asked.length_penalty, "best": asked.best}
    given = {name: value for name, value in said.items() if value is not None}

    def weigh(model: Any, texts: list[str], names: list[str]) -> list[int]:
        translator = Translator(model)
        return [len(translator.source(text, name)) for text, name in zip(texts, names, strict=True)]

    def work(model: Any, batch: Batch) -> list[Any]:
        return Translator(model)(batch.texts, given, asked.max_tokens, batch.names, check=batch.token.check)

    resident, found, count = await done(request, asked, weigh, work, asked.beams or asked.best or BEAMS)

    def rows() -> list[Any]:
        return [{"index": place, "text": one.text, "score": one.score,
                 "others": [{"text": other.text, "score": other.score} for other in one.others]}
                for place, one in enumerate(found)]  # fmt: skip

    return await answer(request, resident, rows, count, sum(len(one.ids) for one in found))


# ---------------------------------------------------------------- what they have in common


@dataclass(frozen=True)
class Batch:
    """Some texts of a request, by their places in it, and the token that says when nobody waits for them any more."""

    places: list[int]
    texts: list[str]
    names: list[str]
    token: CancelToken


Weigh = Callable[[Any, list[str], list[str]], list[int]]
Work = Callable[[Any, Batch], list[Any]]


async def done(
    request: Request, asked: Any, weigh: Weigh, work: Work, times: int = 1, pairs: list[str] | None = None
) -> tuple[Resident, list[Any], int]:
    """What a model says of each text of a request, and how many tokens they have.

    `weigh` checks the texts and tells the size of each; then the thread that owns the model is given them in batches,
    between which others have their turn and a client may leave. A text is searched for `times` times at once.
    """
    house: House = request.app.state.house
    resident = house.find(asked.model)
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    if len(texts) > house.settings.texts:
        raise Refusal(400, f"input: {len(texts):,} texts are more than the {house.settings.texts} that one request may "
                      "have; send several requests", param="input")  # fmt: skip
    names = ["input"] if isinstance(asked.input, str) else [f"input[{place}]" for place in range(len(texts))]
    for text, name in zip((*texts, *(pairs or ())), (*names, *["pair"] * len(pairs or ())), strict=True):
        resident.check_letters(len(text), name)
    note(request, resident)

    async def everything() -> tuple[list[Any], int]:
        sizes = await resident.texts.run(weigh, resident.model, texts, names)
        found: dict[int, Any] = {}
        for places in batches(sizes, times, AT_ONCE):
            some = partial(Batch, places, [texts[place] for place in places], [names[place] for place in places])
            found |= zip(places, await resident.do(partial(piece, resident.model, some, work)), strict=True)
        return [found[place] for place in range(len(texts))], sum(sizes)

    try:
        return resident, *await while_there(request, everything())
    except (ConfigError, DataError) as problem:
        raise about(problem, asked, resident) from None


def piece(model: Any, some: Callable[[CancelToken], Batch], work: Work, token: CancelToken) -> list[Any]:
    token.check()
    return work(model, some(token))


def about(problem: ConfigError | DataError, asked: Named, resident: Resident) -> ConfigError | DataError:
    """A sentence that is not about a field of the request is about the model, and says which."""
    name = str(problem).partition(":")[0].partition("[")[0]
    fields = (*type(asked).model_fields, "new")
    return problem if name in fields else type(problem)(f"model: {resident.name}: {problem}")


def counted(
    model: Any, texts: list[str], pairs: list[str] | None, names: list[str], longest: int | None = None
) -> list[int]:  # fmt: skip
    """How many tokens of each text will be read. Refuses texts that are too long, which would be cut."""
    reader, sizes = Reader.of(model, longest), list[int]()
    most = LONGEST if reader.longest is None else reader.longest
    second: Sequence[str | None] = pairs or [None] * len(texts)
    for text, pair, name in zip(texts, second, names, strict=True):
        size = 0
        if max(len(text), len(pair or "")) > PLAIN:  # to lay it out takes longer than to count
            size = sum(len(reader.tokenizer.encode(each)) for each in (text, pair) if each is not None)
        if size <= most:
            size = len(reader.frame(text, pair, name))
        if size > most:
            raise DataError(f"{name}: {size:,} tokens are more than the {most:,} that this model reads at once; give "
                            "it in shorter pieces")  # fmt: skip
        sizes.append(size)
    return sizes


async def answer(
    request: Request, resident: Resident, rows: Callable[[], list[Any]], read: int, made: int = 0
) -> Response:  # fmt: skip
    """`rows` makes the answers to the texts, in a thread: there may be many numbers."""
    house: House = request.app.state.house
    house.figures.tokens.labels(resident.name, "read").inc(read)
    house.figures.tokens.labels(resident.name, "written").inc(made)
    note(request, resident, prompt_tokens=read, completion_tokens=made)
    usage = {"prompt_tokens": read, "total_tokens": read + made} | ({"completion_tokens": made} if made else {})

    def work() -> bytes:
        return spell({"object": "list", "data": rows(), "model": resident.name, "usage": usage})

    return in_json(await house.parsing.finish(work))
