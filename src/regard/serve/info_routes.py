"""What is known without asking a model: who is there, how it goes, and how texts become ids."""

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from regard import config
from regard.serve.house import House, Resident
from regard.serve.lines import while_there
from regard.serve.prompts import check_ids
from regard.serve.reading import Strict
from regard.serve.refusals import Refusal, in_json, said, spell
from regard.serve.wire import Detokenizing, Tokenizing
from regard.text import Tokenizer

router = APIRouter(route_class=Strict)


@router.get("/health")
async def health(request: Request) -> Response:
    """Whether requests are taken; 503 while the server closes, or when an engine has failed."""
    house: House = request.app.state.house
    return said({"status": house.status}, 200 if house.status == "ok" else 503)


@router.get("/version")
async def version() -> Response:
    return said({"version": config.VERSION})


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """The counters, as Prometheus reads them."""
    house: House = request.app.state.house
    return Response(house.figures.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})


@router.get("/v1/models")
async def models(request: Request) -> Response:
    house: House = request.app.state.house
    return said({"object": "list", "data": [shown(each) for each in house.residents.values()]})


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> Response:
    house: House = request.app.state.house
    return said(shown(house.find(name)))


def shown(resident: Resident) -> dict[str, str | int]:
    return {"id": resident.name, "object": "model", "created": resident.made, "owned_by": "regard"}


@router.post("/tokenize")
async def tokenize(request: Request, asked: Tokenizing) -> Response:
    """The ids of a text, and the pieces that they stand for; no special tokens are added."""
    house: House = request.app.state.house
    tokenizer = words_of(request, asked.model)
    house.find(asked.model).check_letters(len(asked.text), "text")

    def work() -> bytes:
        ids = tokenizer.encode(asked.text)
        pieces = {id: tokenizer.piece(id) for id in set(ids)}
        return spell({"ids": ids, "pieces": [pieces[id] for id in ids]})

    return in_json(await while_there(request, house.texts.run(work)))


@router.post("/detokenize")
async def detokenize(request: Request, asked: Detokenizing) -> Response:
    """The text that ids stand for."""
    house: House = request.app.state.house
    tokenizer = words_of(request, asked.model)
    check_ids(asked.ids, len(tokenizer), "ids")
    return said({"text": await while_there(request, house.texts.run(tokenizer.decode, asked.ids))})


def words_of(request: Request, name: str | None) -> Tokenizer:
    house: House = request.app.state.house
    resident = house.find(name)
    if resident.model.tokenizer is None:
        raise Refusal(400, f"model: {resident.name} has no tokenizer", param="model")
    found: Tokenizer = resident.model.tokenizer
    return found
