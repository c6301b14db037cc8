"""The simulated engine as an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from tokgauge.simulator import (
    chat,
    completions,
    embeddings,
    errors,
    faults,
    messages,
    metrics,
    responses,
    tokens,
)
from tokgauge.simulator.connection import Connection, ResponseOver
from tokgauge.simulator.engine import Engine, Job, hex_id
from tokgauge.simulator.profile import EngineProfile, changed

VERSION = "0.32.0"

Page = Callable[[Engine, Connection], Awaitable[None]]
Generator = Callable[[Engine, Job], Awaitable[None]]


def create_engine(profile: EngineProfile) -> ASGIApp:
    """An engine with that profile; it makes steps while the application's lifespan is open."""
    return _Application(Engine(profile))


def _generating(handle: Generator) -> Page:
    async def page(engine: Engine, connection: Connection) -> None:
        wanted = _faults(engine, connection)
        if wanted.status is not None:
            await connection.body()
            raise errors.ApiError(
                f"Simulated error {wanted.status}",
                status=wanted.status,
                kind="BadRequestError" if wanted.status < 500 else "InternalServerError",
            )
        job = Job(connection, await connection.json_body(), wanted)
        engine.load += 1
        try:
            await handle(engine, job)
        finally:
            engine.load -= 1
            if wanted.close:
                connection.close()

    return page


def _faults(engine: Engine, connection: Connection) -> faults.Faults:
    header = connection.headers.get(b"x-simulate")
    if header is None:
        return faults.draw(engine.profile.random_faults, engine.chance)
    try:
        return faults.parse(header.decode("latin-1"))
    except faults.FaultError as error:
        raise errors.parameter(str(error), "x-simulate") from None


async def _models(engine: Engine, connection: Connection) -> None:
    now = int(time.time())
    profile = engine.profile
    permission = {
        "id": f"modelperm-{hex_id()}",
        "object": "model_permission",
        "created": now,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {
        "id": profile.model,
        "object": "model",
        "created": now,
        "owned_by": "vllm",
        "root": profile.root or profile.model,
        "parent": None,
        "max_model_len": profile.max_model_len,
        "permission": [permission],
    }
    await connection.respond_json({"object": "list", "data": [card]})


async def _version(engine: Engine, connection: Connection) -> None:
    await connection.respond_json({"version": VERSION})


async def _healthy(engine: Engine, connection: Connection) -> None:
    await connection.respond(200, content_type=None)


async def _load(engine: Engine, connection: Connection) -> None:
    await connection.respond_json({"server_load": engine.load})


async def _metrics(engine: Engine, connection: Connection) -> None:
    text = engine.metrics.render(engine.scheduler)
    await connection.respond(200, text, content_type=metrics.CONTENT_TYPE.encode())


async def _tokenize(engine: Engine, connection: Connection) -> None:
    body = await connection.json_body()
    engine.check_model(body)
    if "messages" in body:
        text = chat.render_prompt(body["messages"])
    elif isinstance(body.get("prompt"), str):
        text = body["prompt"]
    else:
        raise errors.missing("prompt", body)
    ids = tokens.token_ids(text)
    await connection.respond_json(
        {
            "count": len(ids),
            "max_model_len": engine.profile.max_model_len,
            "tokens": ids,
            "token_strs": tokens.pieces(text) if body.get("return_token_strs") else None,
        }
    )


async def _profile(engine: Engine, connection: Connection) -> None:
    """Show the profile, or change fields of it while the engine runs (loopback only)."""
    client = connection.scope.get("client")
    if client is None or not ipaddress.ip_address(client[0]).is_loopback:
        raise errors.DetailError(403, "Forbidden", [])
    if connection.method == "POST":
        try:
            engine.profile = changed(engine.profile, await connection.json_body())
        except ValueError as error:
            raise errors.ApiError(str(error)) from None
    shown: dict[str, Any] = msgspec.structs.asdict(engine.profile)
    del shown["api_key"]
    await connection.respond_json(shown)


_PAGES: dict[str, dict[str, Page]] = {
    "/v1/chat/completions": {"POST": _generating(chat.handle)},
    "/v1/completions": {"POST": _generating(completions.handle)},
    "/v1/responses": {"POST": _generating(responses.handle)},
    "/v1/messages": {"POST": _generating(messages.handle)},
    "/v1/messages/count_tokens": {"POST": messages.count_tokens},
    "/v1/embeddings": {"POST": embeddings.handle},
    "/v1/models": {"GET": _models},
    "/tokenize": {"POST": _tokenize},
    "/version": {"GET": _version},
    "/health": {"GET": _healthy},
    "/ping": {"GET": _healthy, "POST": _healthy},
    "/load": {"GET": _load},
    "/metrics": {"GET": _metrics},
    "/simulator/profile": {"GET": _profile, "POST": _profile},
}


class _Application:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"not served: {scope['type']}")
        connection = Connection(scope, receive, send)
        try:
            await self._answer(connection)
        except ResponseOver:
            pass
        except asyncio.CancelledError:
            # The server stops and has waited long enough: cut what is under way.
            with contextlib.suppress(ResponseOver):
                await connection.cut()
        except errors.DetailError as error:
            await connection.respond(error.status, error.body(), headers=error.headers)
        except errors.ApiError as error:
            anthropic = connection.path.startswith("/v1/messages")
            body = error.messages_body() if anthropic else error.body()
            await connection.respond(error.status, body)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        steps = asyncio.create_task(self._engine.scheduler.run())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        steps.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await steps
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, connection: Connection) -> None:
        if await _preflight(connection):
            return
        if not self._authorized(connection):
            body = msgspec.json.encode({"error": "Unauthorized"})
            await connection.respond(401, body, vary=False)
            return
        methods = _PAGES.get(connection.path)
        if methods is None:
            if connection.path.rstrip("/") in _PAGES:
                await _redirect(connection)
                return
            raise errors.DetailError(404, "Not Found", [])
        page = methods.get(connection.method)
        if page is None:
            allow = (b"allow", ", ".join(methods).encode())
            raise errors.DetailError(405, "Method Not Allowed", [allow])
        await page(self._engine, connection)

    def _authorized(self, connection: Connection) -> bool:
        key = self._engine.profile.api_key
        if key is None or not connection.path.startswith("/v1"):
            return True
        given = connection.headers.get(b"authorization", b"")
        return hmac.compare_digest(given, b"Bearer " + key.encode())


async def _redirect(connection: Connection) -> None:
    host = connection.headers.get(b"host", b"localhost")
    query = connection.scope["query_string"]
    path = connection.path.rstrip("/").encode() + (b"?" + query if query else b"")
    location = (b"location", b"http://" + host + path)
    await connection.start(307, [(b"content-length", b"0"), location, (b"vary", b"Origin")])
    await connection.send(b"", more=False)


async def _preflight(connection: Connection) -> bool:
    """Answer a browser's preflight as vLLM does by default: no origin is allowed."""
    wanted = connection.headers.get(b"access-control-request-headers", b"")
    if (
        connection.method != "OPTIONS"
        or b"origin" not in connection.headers
        or b"access-control-request-method" not in connection.headers
    ):
        return False
    names = [b"Origin", *(b"Access-Control-Request-" + n for n in (b"Method", b"Headers"))]
    body = b"Disallowed CORS origin"
    headers = [
        (b"vary", b", ".join([*names, b"Access-Control-Request-Private-Network"])),
        (b"access-control-allow-methods", b"DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT, QUERY"),
        (b"access-control-max-age", b"600"),
        (b"access-control-allow-headers", wanted),
        (b"content-length", b"%d" % len(body)),
        (b"content-type", b"text/plain; charset=utf-8"),
    ]
    await connection.start(400, headers)
    await connection.send(body, more=False)
    return True
