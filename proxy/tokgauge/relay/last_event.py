"""A last event that waits for the usage event, which is hidden: members may go back into it."""

from __future__ import annotations

import asyncio

from tokgauge.http.client_connection import ClientConnection
from tokgauge.measure.tap import Tap

_FOLLOWS_WITHIN = 1.0
"""Seconds in which the usage event comes: engines send both in one go."""


def release_later(tap: Tap, client: ClientConnection) -> asyncio.TimerHandle:
    """Send the event to the client if the usage event does not come; cancel it when more comes."""

    def release() -> None:
        held = tap.release()
        if held:
            client.write(held, None)

    return asyncio.get_running_loop().call_later(_FOLLOWS_WITHIN, release)
