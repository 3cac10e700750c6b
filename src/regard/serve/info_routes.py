"""Routes that need no forward pass: /health, /version, /metrics, /v1/models, /tokenize and /detokenize."""

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from regard import config
from regard.serve.prompts import check_ids
from regard.serve.schemas import DetokenizeRequest, TokenizeRequest
from regard.text.tokenizer import Tokenizer
from regard.web.errors import ApiError, bytes_response, dump_json, json_response
from regard.web.model_pool import ModelPool, ServedModel
from regard.web.stream_bridge import run_while_connected
from regard.web.strict_json import StrictRoute

router = APIRouter(route_class=StrictRoute)


@router.get("/health")
async def get_health(request: Request) -> Response:
    """Whether requests are accepted; 503 while the server closes, or after an engine has failed."""
    house: ModelPool = request.app.state.house
    return json_response({"status": house.status}, 200 if house.status == "ok" else 503)


@router.get("/version")
async def get_version() -> Response:
    return json_response({"version": config.VERSION})


@router.get("/metrics", response_class=PlainTextResponse)
async def get_metrics(request: Request) -> Response:
    """The metrics in Prometheus format."""
    house: ModelPool = request.app.state.house
    return Response(house.figures.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    house: ModelPool = request.app.state.house
    return json_response({"object": "list", "data": [model_entry(each) for each in house.residents.values()]})


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> Response:
    house: ModelPool = request.app.state.house
    return json_response(model_entry(house.find(name)))


def model_entry(resident: ServedModel) -> dict[str, str | int]:
    return {"id": resident.name, "object": "model", "created": resident.made, "owned_by": "regard"}


@router.post("/tokenize")
async def post_tokenize(request: Request, body: TokenizeRequest) -> Response:
    """The token ids of a text, and the token strings; no special tokens are added."""
    house: ModelPool = request.app.state.house
    tokenizer = tokenizer_of_request(request, body.model)
    house.find(body.model).check_letters(len(body.text), "text")

    def work() -> bytes:
        ids = tokenizer.encode(body.text)
        pieces = {id: tokenizer.token_text(id) for id in set(ids)}
        return dump_json({"ids": ids, "pieces": [pieces[id] for id in ids]})

    return bytes_response(await run_while_connected(request, house.texts.run(work)))


@router.post("/detokenize")
async def post_detokenize(request: Request, body: DetokenizeRequest) -> Response:
    """The text of token ids."""
    house: ModelPool = request.app.state.house
    tokenizer = tokenizer_of_request(request, body.model)
    check_ids(body.ids, len(tokenizer), "ids")
    return json_response({"text": await run_while_connected(request, house.texts.run(tokenizer.decode, body.ids))})


def tokenizer_of_request(request: Request, name: str | None) -> Tokenizer:
    house: ModelPool = request.app.state.house
    resident = house.find(name)
    if resident.model.tokenizer is None:
        raise ApiError(400, f"model: {resident.name} has no tokenizer", param="model")
    found: Tokenizer = resident.model.tokenizer
    return found
