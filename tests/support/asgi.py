"""A relay behind the second front door: ASGI, under hypercorn, in threads of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypercorn.asyncio import serve
from hypercorn.config import Config
from tokgauge.http.asgi import carry
from tokgauge.serve.analyst import Analyst
from tokgauge.serve.analyst_server import AnalystServer
from tokgauge.serve.relay_app import RelayApp
from tokgauge.serve.sockets import AnalystSockets, bind, path_of
from tokgauge.serve.start import relay_settings
from tokgauge.settings import Settings


def hypercorn_config() -> Config:
    """One that adds nothing of its own where that can be said."""
    config = Config()
    config.include_date_header = config.include_server_header = False
    config.errorlog = None  # each cut response is an exception there
    config.graceful_timeout = 0.5
    return config


@contextmanager
def under_hypercorn(settings: Settings) -> Iterator[tuple[int, RelayApp]]:
    """Gives the port, and the relay."""
    sockets = AnalystSockets.make()
    analyst = AnalystServer(Analyst(settings, sockets.records.dup()))
    relay = RelayApp(
        relay_settings(settings), name="relay-0", records=path_of(sockets.to_records),
        pages=path_of(sockets.to_pages),
    )  # fmt: skip
    (clients,) = bind(settings.host, [0])
    ended = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await relay(scope, receive, send)
        else:
            await carry(scope, receive, send, relay.open)

    async def until_ended() -> None:
        while not ended.is_set():
            await asyncio.sleep(0.02)

    def serving() -> None:
        config = hypercorn_config()
        config.bind = [f"fd://{clients.detach()}"]  # hypercorn closes it
        asyncio.run(serve(app, config, shutdown_trigger=until_ended))

    threads = [
        threading.Thread(target=analyst.run, args=([sockets.pages.dup()],), daemon=True),
        threading.Thread(target=serving, daemon=True),
    ]
    port = clients.getsockname()[1]
    for thread in threads:
        thread.start()
    try:
        yield port, relay
    finally:
        ended.set()
        threads[1].join()
        analyst.should_exit = True
        threads[0].join()
        sockets.close()
