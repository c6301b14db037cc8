"""tokgauge as an ASGI application, `tokgauge.asgi:app`, for any server or inside another one.

Settings come from the environment and the file that TOKGAUGE_CONFIG names, as for `tokgauge serve`;
those of the server (`host`, `port`, `workers`, time limits of clients, the drain) have no effect.
The analyst is a process of its own here, too: it is started and ended by the lifespan. An
application that mounts `app` has to run that, for servers do so for the outermost one only:

    from fastapi import FastAPI
    import tokgauge.asgi

    api = FastAPI(lifespan=tokgauge.asgi.lifespan)
    api.mount("/llm", tokgauge.asgi.app)
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tokgauge.http.asgi import Receive, Send, carry
from tokgauge.http.asgi_request import Message
from tokgauge.serve.embedded import embedded_relay
from tokgauge.serve.relay_app import RelayApp
from tokgauge.settings import CONFIG_VARIABLE, SettingsError, load_settings

__all__ = ["app", "lifespan"]

_relay: RelayApp | None = None


async def app(scope: Message, receive: Receive, send: Send) -> None:
    """The application. Raises RuntimeError when its lifespan does not run."""
    if scope["type"] == "lifespan":
        await _run_lifespan(receive, send)
    elif scope["type"] == "websocket":
        await send({"type": "websocket.close"})  # refused with 403: no engine of ours speaks it
    elif _relay is None:
        raise RuntimeError(
            "tokgauge is not started: the application that mounts tokgauge.asgi.app has to run "
            "tokgauge.asgi.lifespan, as in FastAPI(lifespan=tokgauge.asgi.lifespan)"
        )
    else:
        await carry(scope, receive, send, _relay.open)


@asynccontextmanager
async def lifespan(host: object = None) -> AsyncIterator[None]:
    """What `app` needs while it serves. host: what mounts it, as frameworks give it; not used.

    Raises SettingsError, and OSError when something is missing that the settings name.
    """
    global _relay
    config = os.environ.get(CONFIG_VARIABLE)
    settings = load_settings(Path(config) if config else None, os.environ, {})
    async with embedded_relay(settings) as _relay:
        try:
            yield
        finally:
            _relay = None


async def _run_lifespan(receive: Receive, send: Send) -> None:
    await receive()
    try:
        async with lifespan():
            await send({"type": "lifespan.startup.complete"})
            await receive()
    except (SettingsError, OSError) as error:
        await send({"type": "lifespan.startup.failed", "message": f"tokgauge: {error}"})
    else:
        await send({"type": "lifespan.shutdown.complete"})
