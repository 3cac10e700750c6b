"""Gateway middleware: checks every request before routing, so that no route can be left unprotected.

    sizes of headers ──► Host ──► key ──► closing? ──► size of the body ──► routes
         431             403      401       503          413, 408

It also sets security headers on every response (no scripts, no content sniffing), and reports it to log and metrics.
"""

import asyncio
import hmac
import time
from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.web import access_log
from regard.web.errors import ApiError, ClientDisconnected, error_response
from regard.web.model_pool import ModelPool
from regard.web.settings import ServerSettings, is_loopback

LINGER, BODIES = 2.0, 8  # seconds, and bodies of the largest size, that are read on after a refusal
SMALL, LARGE = 1 << 16, 64  # bytes of a body that is always accepted; how many of the largest size fit at once
OPEN = "/health"  # the one route that needs no key
SAFE = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class GatewayMiddleware:
    """ASGI middleware in front of the application; while the pool is closing, no request passes."""

    def __init__(self, app: ASGIApp, house: ModelPool) -> None:
        self.app, self.house, self.settings = app, house, house.settings
        self.keys = tuple(key.encode() for key in self.settings.keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        visit = GatewayRequest(scope, receive, send, self.house)
        self.house.inside += 1
        try:
            self.check(scope, visit)
            await self.app(scope, visit.receive, visit.send)
        except ApiError as refusal:
            await visit.refuse(refusal)
        except ClientDisconnected:
            visit.status = 499  # nginx's status for a client that has disconnected
        except Exception as problem:  # a bug: its location is logged, and the client gets a 500
            access_log.log_event(**access_log.error_location(problem))
            await visit.refuse(ApiError(500, "this is a bug in regard; the server's log has its location",
                                       code="internal_error"))  # fmt: skip
        finally:
            self.log_request(visit)
            self.house.inside -= 1
            self.house.held -= visit.held

    def check(self, scope: Scope, visit: "GatewayRequest") -> None:
        """Raise ApiError unless this request is allowed."""
        headers, limits = visit.headers, self.settings
        size = sum(len(name) + len(value) for name, value in scope["headers"]) + len(scope["query_string"])
        if size + len(scope["path"]) > limits.header:
            raise ApiError(431, f"the headers have more than {limits.header:,} bytes; send less", code="too_large")
        if limits.is_local and not is_local_host(headers.get("host", "")):
            raise ApiError(403, "the Host of the request is not this machine; use the address that the server logs, as "
                          "with http://127.0.0.1", code="wrong_host")  # fmt: skip
        if scope["path"] == OPEN:
            return
        if self.keys and not self.has_valid_key(headers.get("authorization", "")):
            what = "is wrong" if "authorization" in headers else "is missing"
            raise ApiError(401, f"the key {what}; send it as Authorization: Bearer KEY",
                          headers={"WWW-Authenticate": "Bearer"})  # fmt: skip
        if self.house.closing:
            raise ApiError(503, "the server is closing; retry when it is back", code="closing",
                          headers={"Retry-After": "10", "Connection": "close"})  # fmt: skip
        if (length := headers.get("content-length", "0")).isdigit() and int(length) > limits.body:
            raise visit.too_large()

    def has_valid_key(self, given_key: str) -> bool:
        """Whether the Authorization header has one of the keys; compared in constant time, all keys every time."""
        scheme, _, key = given_key.partition(" ")
        given = key.strip().encode("latin-1", "replace")
        found = [hmac.compare_digest(given, each) for each in self.keys]
        return scheme.lower() == "bearer" and any(found)

    def log_request(self, visit: "GatewayRequest") -> None:
        seconds, route = time.perf_counter() - visit.began, visit.route
        self.house.figures.requests.labels(route, str(visit.status)).inc()
        self.house.figures.seconds.labels(route).observe(seconds)
        access_log.log_event(
            method=visit.method, route=route, status=visit.status, **visit.notes, seconds=round(seconds, 4)
        )


class GatewayRequest:
    """One request with its response: counted, timed and limited on the way."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, house: ModelPool) -> None:
        self.scope, self.incoming, self.outgoing, self.house = scope, receive, send, house
        self.limits: ServerSettings = house.settings
        self.held = 0  # bytes of its body beyond SMALL
        self.headers, self.began = Headers(scope=scope), time.perf_counter()
        self.status, self.size, self.whole = 0, 0, False
        self.notes: dict[str, Any] = {}
        scope.setdefault("state", {})["notes"] = self.notes  # fields that routes add to the log line

    async def receive(self) -> Message:
        """The next part of the body, within the limits of time and size; after the last part, only the disconnect."""
        if self.whole:
            return await self.incoming()
        left = self.began + self.limits.patience - time.perf_counter()
        try:
            async with asyncio.timeout(left):
                message = await self.incoming()
        except TimeoutError:
            raise ApiError(408, f"the body did not arrive within {self.limits.patience:g} s", code="timeout",
                          headers={"Connection": "close"}) from None  # fmt: skip
        self.size += len(message.get("body", b""))
        self.whole = not message.get("more_body", False)
        if self.size > self.limits.body:
            raise self.too_large()
        self.reserve(max(self.size - SMALL, 0))
        return message

    def reserve(self, held: int) -> None:
        """Account for the memory of a large body, which all large bodies share; small bodies are always accepted."""
        self.house.held, self.held = self.house.held + held - self.held, held
        if held and self.house.held > LARGE * self.limits.body:
            raise ApiError(429, f"requests of more than {SMALL:,} bytes fill the memory allowed for them; retry "
                          "in a moment, or send less at a time", headers={"Retry-After": "1"})  # fmt: skip

    def too_large(self) -> ApiError:
        return ApiError(413, f"the body has more than {self.limits.body:,} bytes; send less at a time")

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in SAFE.items():
                headers[name] = value
        await self.outgoing(message)

    async def refuse(self, refusal: ApiError) -> None:
        """Send the error response, unless a response has begun."""
        if not self.status:
            await self.let_by()
            answer = error_response(refusal)
            if not self.whole:  # the rest of the body must not be parsed as a request
                answer.headers["connection"] = "close"
            await answer(self.scope, self.receive, self.send)

    async def let_by(self) -> None:
        """Read on for a while, with limits: a client whose connection is cut while it sends never sees the error."""
        if "expect" in self.headers:  # it waits for permission before it sends the body
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER):
                while not self.whole and self.size < BODIES * self.limits.body:
                    message = await self.incoming()
                    self.size += len(message.get("body", b""))
                    self.whole = not message.get("more_body", False)

    @property
    def method(self) -> str:
        known = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH")
        return self.scope["method"] if self.scope["method"] in known else "other"

    @property
    def route(self) -> str:
        """The path template of the route, not the requested path: clients must not create metric labels."""
        return getattr(self.scope.get("route"), "path", "none")


def is_local_host(host: str) -> bool:
    """Whether a Host header names this machine: other sites can resolve their own names to it (DNS rebinding)."""
    name, colon, port = host.rpartition(":")
    if not colon or not port.isdigit():  # no port: the colon is inside an IPv6 address
        name = host
    return is_loopback(name.lower())
