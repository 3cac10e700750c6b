"""Routes of tasks besides generation: OpenAI's /v1/embeddings, and our /v1/classify, /v1/fill and /v1/translate.

All take a text or a list of texts as `input` and return a list of results in its order. A text longer than the context
window is refused: truncation would change the result without a sign.
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from struct import pack
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from regard.config.errors import ConfigError, DataError
from regard.generation.cancellation import CancelToken
from regard.inference.batching import length_batches
from regard.inference.classification import check_classifier, classify_texts
from regard.inference.embedding import embed_inputs, is_image_input, pooling_of
from regard.inference.fill_mask import MASK, fill_masks
from regard.inference.text_inputs import TextInputs
from regard.inference.translation import BEAMS, Translator
from regard.serve.responses import note_request
from regard.serve.schemas import ClassifyRequest, EmbeddingRequest, FillRequest, ModelRequest, TranslateRequest
from regard.web.errors import ApiError, bytes_response, dump_json, shorten_value
from regard.web.field_names import FIELD_OF_SETTING
from regard.web.model_pool import ModelPool, ServedModel
from regard.web.stream_bridge import run_while_connected
from regard.web.strict_json import StrictRoute

router = APIRouter(route_class=StrictRoute)
BEST = 5  # words for a mask by default
PLAIN = 1 << 14  # characters of a text whose tokens are counted before its inputs are built
WORDS = 1 << 14  # words for all masks of a request
LONGEST = 4096  # tokens of a text for a model that has no limit of its own
AT_ONCE = 1024  # tokens, times beams, that the thread of a model gets at a time


@router.post("/v1/embeddings")
async def post_embeddings(request: Request, body: EmbeddingRequest) -> Response:
    """One embedding for each text."""

    def weigh(model: Any, texts: list[str], names: list[str]) -> list[int]:
        for text, name in zip(texts, names, strict=True):
            if is_image_input(model, text):  # a file name: files are the server's and not the client's
                raise DataError(
                    f"{name}: {shorten_value(text)} names an image, and this route takes only texts; give a text"
                )
        return count_input_tokens(model, texts, None, names, pooling_of(model).length)

    def work(model: Any, batch: TaskBatch) -> list[list[float]]:
        found: list[list[float]] = embed_inputs(model, batch.texts, names=batch.names).tolist()
        return found

    resident, vectors, count = await run_on_model(request, body, weigh, work)
    if body.dimensions not in (None, width := len(vectors[0])):
        raise ApiError(400, f"dimensions: the vectors of {resident.name} have {width} numbers, always; leave it out",
                      param="dimensions")  # fmt: skip
    shown: Callable[[list[float]], Any] = to_base64 if body.encoding_format == "base64" else list

    def rows() -> list[Any]:
        return [{"object": "embedding", "index": place, "embedding": shown(row)} for place, row in enumerate(vectors)]

    return await list_response(request, resident, rows, count)


def to_base64(row: list[float]) -> str:
    """A vector as base64 of little-endian float32 numbers."""
    return b64encode(pack(f"<{len(row)}f", *row)).decode()


@router.post("/v1/classify")
async def post_classify(request: Request, body: ClassifyRequest) -> Response:
    """The class probabilities of each text, or pair of texts; or the predicted number."""
    pairs = text_pairs(body)

    def weigh(model: Any, texts: list[str], names: list[str]) -> list[int]:
        check_classifier(model)
        return count_input_tokens(model, texts, pairs, names)

    def work(model: Any, batch: TaskBatch) -> list[Any]:
        some = None if pairs is None else [pairs[place] for place in batch.places]
        return classify_texts(model, batch.texts, some, names=batch.names)

    resident, found, count = await run_on_model(request, body, weigh, work, pairs=pairs)

    def rows() -> list[Any]:
        return [{"index": place} | class_entries(each, body.top_k) for place, each in enumerate(found)]

    return await list_response(request, resident, rows, count)


def text_pairs(body: ClassifyRequest) -> list[str] | None:
    """The second texts of pairs: one for each input, or one for all."""
    if body.pair is None:
        return None
    many = len(body.input) if isinstance(body.input, list) else 1
    if isinstance(body.pair, str):
        return [body.pair] * many
    if len(body.pair) != many:
        raise ApiError(400, f"pair: {len(body.pair)} texts for {many} of input; give one for each, or one for all",
                      param="pair")  # fmt: skip
    return body.pair


def class_entries(found: dict[str, float] | float, top: int | None) -> dict[str, Any]:
    if isinstance(found, float):
        return {"number": found}
    return {"classes": [{"label": name, "probability": share} for name, share in list(found.items())[:top]]}


@router.post("/v1/fill")
async def post_fill(request: Request, body: FillRequest) -> Response:
    """The most probable words for each [MASK] of each text."""
    best = body.top_k or BEST

    def weigh(model: Any, texts: list[str], names: list[str]) -> list[int]:
        sizes, known = count_input_tokens(model, texts, None, names), model.tokenizer
        marks = {MASK, known.token(known.special_ids["mask"])} if "mask" in known.special_ids else {MASK}
        blanks = sum(text.count(mark) for text in texts for mark in marks)
        if blanks * best > WORDS:
            raise ConfigError(f"top_k: {best} words for each of {blanks:,} blanks are more than the {WORDS:,} that one "
                              "request may have; ask for less")  # fmt: skip
        return sizes

    def work(model: Any, batch: TaskBatch) -> list[Any]:
        return fill_masks(model, batch.texts, best, names=batch.names)

    resident, found, count = await run_on_model(request, body, weigh, work)

    def rows() -> list[Any]:
        return [{"index": place, "blanks": [[guess._asdict() for guess in blank] for blank in blanks]}
                for place, blanks in enumerate(found)]  # fmt: skip

    return await list_response(request, resident, rows, count)


@router.post("/v1/translate")
async def post_translate(request: Request, body: TranslateRequest) -> Response:
    """The translation of each text, by beam search."""
    house: ModelPool = request.app.state.house
    if (body.max_tokens or 0) > house.settings.most:
        raise ApiError(400, f"max_tokens: {body.max_tokens:,} tokens are more than the {house.settings.most:,} that "
                      "this server generates; ask for less", param="max_tokens")  # fmt: skip
    said = {
        "num_beams": body.num_beams,
        "length_penalty": body.length_penalty,
        "num_return_sequences": body.num_return_sequences,
    }
    given = {name: value for name, value in said.items() if value is not None}

    def weigh(model: Any, texts: list[str], names: list[str]) -> list[int]:
        translator = Translator(model)
        return [len(translator.source(text, name)) for text, name in zip(texts, names, strict=True)]

    def work(model: Any, batch: TaskBatch) -> list[Any]:
        return Translator(model)(batch.texts, given, body.max_tokens, batch.names, check=batch.token.check)

    resident, found, count = await run_on_model(
        request, body, weigh, work, body.num_beams or body.num_return_sequences or BEAMS
    )

    def rows() -> list[Any]:
        return [{"index": place, "text": one.text, "score": one.score,
                 "others": [{"text": other.text, "score": other.score} for other in one.others]}
                for place, one in enumerate(found)]  # fmt: skip

    return await list_response(request, resident, rows, count, sum(len(one.ids) for one in found))


# ---------------------------------------------------------------- what they have in common


@dataclass(frozen=True)
class TaskBatch:
    """A batch of a request's texts, by index, with a token that is cancelled when the client disconnects."""

    places: list[int]
    texts: list[str]
    names: list[str]
    token: CancelToken


Weigh = Callable[[Any, list[str], list[str]], list[int]]
Work = Callable[[Any, TaskBatch], list[Any]]


async def run_on_model(
    request: Request, body: Any, weigh: Weigh, work: Work, times: int = 1, pairs: list[str] | None = None
) -> tuple[ServedModel, list[Any], int]:
    """The result of the model for each text of a request, and the number of tokens.

    `weigh` checks the texts and returns the size of each; the thread that owns the model then gets them in batches, so
    that other requests get their turn and a disconnected client is noticed in between. `times` is the number of beams.
    """
    house: ModelPool = request.app.state.house
    resident = house.find(body.model)
    texts = [body.input] if isinstance(body.input, str) else body.input
    if len(texts) > house.settings.texts:
        raise ApiError(400, f"input: {len(texts):,} texts are more than the {house.settings.texts} that one request "
                            "may "
                      "have; send several requests", param="input")  # fmt: skip
    names = ["input"] if isinstance(body.input, str) else [f"input[{place}]" for place in range(len(texts))]
    for text, name in zip((*texts, *(pairs or ())), (*names, *["pair"] * len(pairs or ())), strict=True):
        resident.check_letters(len(text), name)
    note_request(request, resident)

    async def everything() -> tuple[list[Any], int]:
        sizes = await resident.texts.run(weigh, resident.model, texts, names)
        found: dict[int, Any] = {}
        for places in length_batches(sizes, AT_ONCE, times):
            some = partial(TaskBatch, places, [texts[place] for place in places], [names[place] for place in places])
            found |= zip(places, await resident.run(partial(run_task_batch, resident.model, some, work)), strict=True)
        return [found[place] for place in range(len(texts))], sum(sizes)

    try:
        return resident, *await run_while_connected(request, everything())
    except (ConfigError, DataError) as problem:
        raise name_the_model(problem, body, resident) from None


def run_task_batch(model: Any, some: Callable[[CancelToken], TaskBatch], work: Work, token: CancelToken) -> list[Any]:
    token.check()
    return work(model, some(token))


def name_the_model(
    problem: ConfigError | DataError, body: ModelRequest, resident: ServedModel
) -> ConfigError | DataError:
    """Prefix an error that is not about a field of the request with the name of the model."""
    name = str(problem).partition(":")[0].partition("[")[0]
    if {name, FIELD_OF_SETTING.get(name)} & type(body).model_fields.keys():
        return problem
    return type(problem)(f"model: {resident.name}: {problem}")


def count_input_tokens(
    model: Any, texts: list[str], pairs: list[str] | None, names: list[str], longest: int | None = None
) -> list[int]:  # fmt: skip
    """The number of input tokens of each text. Refuses texts that would be truncated."""
    reader, sizes = TextInputs.of(model, longest), list[int]()
    most = LONGEST if reader.longest is None else reader.longest
    second: Sequence[str | None] = pairs or [None] * len(texts)
    for text, pair, name in zip(texts, second, names, strict=True):
        size = 0
        if max(len(text), len(pair or "")) > PLAIN:  # building the inputs takes longer than counting
            size = sum(len(reader.tokenizer.encode(each)) for each in (text, pair) if each is not None)
        if size <= most:
            size = len(reader.frame(text, pair, name))
        if size > most:
            raise DataError(f"{name}: {size:,} tokens are more than the {most:,} that this model reads at once; split "
                            "it into shorter pieces")  # fmt: skip
        sizes.append(size)
    return sizes


async def list_response(
    request: Request, resident: ServedModel, rows: Callable[[], list[Any]], read: int, generated: int = 0
) -> Response:  # fmt: skip
    """A list response. `rows` builds the entries in a thread, since there may be many numbers."""
    house: ModelPool = request.app.state.house
    house.figures.tokens.labels(resident.name, "read").inc(read)
    house.figures.tokens.labels(resident.name, "written").inc(generated)
    note_request(request, resident, prompt_tokens=read, completion_tokens=generated)
    usage = {"prompt_tokens": read, "total_tokens": read + generated} | (
        {"completion_tokens": generated} if generated else {}
    )

    def work() -> bytes:
        return dump_json({"object": "list", "data": rows(), "model": resident.name, "usage": usage})

    return bytes_response(await house.parsing.finish(work))
