"""create_app: the OpenAI-compatible application, a model pool behind the gateway middleware, with all routes.

    uvicorn ──► GatewayMiddleware ──► FastAPI ──► completions, chat_completions, task_routes, info_routes

Any ASGI server runs it, and tests call it without one. It owns the threads of its models from start to shutdown.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from regard import config
from regard.serve import chat_completions, completions, info_routes, task_routes
from regard.web.errors import error_handler
from regard.web.middleware import GatewayMiddleware
from regard.web.model_pool import ModelPool
from regard.web.settings import ServerSettings
from regard.web.stream_bridge import LoopMailbox
from regard.web.strict_json import validation_handler

STOP = 0.8  # seconds to wait for the threads, a part of the shutdown time
REFUSED = {
    "description": "A refusal, in one sentence.",
    "content": {"application/json": {"schema": {
        "type": "object", "required": ["error"], "properties": {"error": {
            "type": "object", "required": ["message", "type", "param", "code"], "properties": {
                "message": {"type": "string"}, "type": {"type": "string"},
                "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}}}}}}},
}  # fmt: skip


async def stop_pool(house: ModelPool) -> None:
    """Stop the threads of a model pool, without a long wait for one that is in the middle of a step: they are daemons,
    and their results are no longer needed."""
    thread = threading.Thread(target=house.stop, name="regard stop", daemon=True)
    thread.start()
    until = time.monotonic() + STOP
    while thread.is_alive() and time.monotonic() < until:
        await asyncio.sleep(0.01)


def create_app(models: Mapping[str, Any], settings: ServerSettings | None = None) -> FastAPI:
    """Build the ASGI application for these models, as `regard.load` returns them, by the names that clients use."""
    settings = settings or ServerSettings()
    house = ModelPool(models, settings)

    @asynccontextmanager
    async def open_house(app: FastAPI) -> AsyncIterator[None]:
        app.state.post = LoopMailbox(asyncio.get_running_loop())
        app.openapi()  # built once, before any request
        house.start()
        try:
            yield
        finally:
            await stop_pool(house)

    app = FastAPI(
        title="regard", version=config.VERSION, lifespan=open_house, docs_url=None, redoc_url=None,
        redirect_slashes=False, responses={code: REFUSED for code in (400, 401, 404, 413, 429, 503)},
    )  # fmt: skip
    for routes in (info_routes, completions, chat_completions, task_routes):
        app.include_router(routes.router)
    for problem in (HTTPException, config.ConfigError, config.DataError, config.RunError):
        app.add_exception_handler(problem, error_handler)
    app.add_exception_handler(RequestValidationError, validation_handler)
    app.state.house = house
    app.add_middleware(GatewayMiddleware, house=house)
    return app
