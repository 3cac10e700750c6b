"""The application: a house of models behind a door, with all routes.

    uvicorn ──► Door ──► FastAPI ──► completions, chats, verbs, about

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
from regard.serve import about, chats, completions, verbs
from regard.serve.door import Door
from regard.serve.house import House
from regard.serve.lines import Post
from regard.serve.refusals import refused
from regard.serve.sentences import misread
from regard.serve.settings import Settings

STOP = 0.8  # seconds, of those that closing may take
REFUSED = {
    "description": "A refusal, in one sentence.",
    "content": {"application/json": {"schema": {
        "type": "object", "required": ["error"], "properties": {"error": {
            "type": "object", "required": ["message", "type", "param", "code"], "properties": {
                "message": {"type": "string"}, "type": {"type": "string"},
                "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}}}}}}},
}  # fmt: skip


async def stopped(house: House) -> None:
    """Stop the threads of a house, without waiting for long for one that is in the middle of a step: they are daemons,
    and what they do is wanted by nobody."""
    thread = threading.Thread(target=house.stop, name="regard stop", daemon=True)
    thread.start()
    until = time.monotonic() + STOP
    while thread.is_alive() and time.monotonic() < until:
        await asyncio.sleep(0.01)


def application(models: Mapping[str, Any], settings: Settings | None = None) -> FastAPI:
    """Models by the names that clients call them, as `regard.load` gives them."""
    settings = settings or Settings()
    house = House(models, settings)

    @asynccontextmanager
    async def open_house(app: FastAPI) -> AsyncIterator[None]:
        app.state.post = Post(asyncio.get_running_loop())
        app.openapi()  # made once, and not while others wait
        house.start()
        try:
            yield
        finally:
            await stopped(house)

    app = FastAPI(
        title="regard", version=config.VERSION, lifespan=open_house, docs_url=None, redoc_url=None,
        redirect_slashes=False, responses={code: REFUSED for code in (400, 401, 404, 413, 429, 503)},
    )  # fmt: skip
    for routes in (about, completions, chats, verbs):
        app.include_router(routes.router)
    for problem in (HTTPException, config.ConfigError, config.DataError, config.RunError):
        app.add_exception_handler(problem, refused)
    app.add_exception_handler(RequestValidationError, misread)
    app.state.house = house
    app.add_middleware(Door, house=house)
    return app
