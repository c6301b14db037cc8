"""A relay inside a process of somebody else's, with the analyst as a process beside it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tokgauge.serve.child import Child
from tokgauge.serve.relay_app import RelayApp
from tokgauge.serve.sockets import AnalystSockets, bind, path_of
from tokgauge.serve.start import check, plan_of_analyst, relay_settings
from tokgauge.settings import Settings

_LOOK = 0.5
"""Seconds between looks at whether the analyst lives."""


@asynccontextmanager
async def embedded_relay(settings: Settings) -> AsyncIterator[RelayApp]:
    """The relay, whose exchanges are measured while this lasts. Raises OSError."""
    check(settings)
    settings = settings.model_copy(update={"workers": 1})
    async with AsyncExitStack() as running:
        ports = [] if settings.admin_port is None else [settings.admin_port]
        admin = bind(settings.host, ports)
        for sock in admin:
            running.callback(sock.close)
        sockets = AnalystSockets.make()
        running.callback(sockets.close)
        alive, held = os.pipe()  # the analyst ends with this process, however that ends
        running.callback(os.close, alive)
        running.callback(os.close, held)
        plan = plan_of_analyst(settings, sockets, admin, alive=alive)
        running.callback(os.close, plan["fds"][0])
        analyst = Child(**plan)
        await asyncio.to_thread(analyst.start)
        running.push_async_callback(asyncio.to_thread, analyst.end)
        looking = asyncio.create_task(_look_after(analyst))
        running.callback(looking.cancel)
        relay = RelayApp(
            relay_settings(settings), name="relay-0", records=path_of(sockets.to_records),
            pages=path_of(sockets.to_pages),
        )  # fmt: skip
        async with relay.running():
            yield relay


async def _look_after(child: Child) -> None:
    while not child.cannot_start:
        await asyncio.sleep(_LOOK)
        await asyncio.to_thread(child.look_after)
