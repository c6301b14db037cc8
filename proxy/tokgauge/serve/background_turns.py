"""What runs beside the requests: turns that come again and again, whatever became of the last."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Turn = Callable[[], Awaitable[object]]
Failed = Callable[[Exception], None]


async def attempt(turn: Turn, failed: Failed) -> None:
    """Take one turn; `failed`, which must not raise, is told of what it raises."""
    try:
        await turn()
    except Exception as error:  # border: what runs beside the requests must not end them
        failed(error)


async def repeat(turn: Turn, pause: Callable[[], float], failed: Failed) -> None:
    """Take turns until cancelled, with `pause()` seconds after each."""
    while True:
        await attempt(turn, failed)
        await asyncio.sleep(pause())
