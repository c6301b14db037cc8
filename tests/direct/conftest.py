"""The ways to the scripted engine: direct, and through each front door that there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import pytest
from tokgauge.settings import Settings

from tests.conftest import MODELS, start_proxy
from tests.support.asgi import under_hypercorn
from tests.support.client import fetch
from tests.support.engine import ScriptedEngine


@dataclass(frozen=True)
class Door:
    """Something that stands before the engine, listening on `port`.

    begin_anew: makes it one that has learned nothing; None where a new one is made for that.
    """

    port: int
    begin_anew: Callable[[], None] | None = None


FrontDoor = Callable[[str], AbstractContextManager[Door]]
"""Opens one before the engine at an address."""


@contextmanager
def own_server(upstream: str) -> Iterator[Door]:
    with start_proxy(upstream=upstream) as proxy:
        yield Door(proxy.port)


@contextmanager
def asgi(upstream: str) -> Iterator[Door]:
    settings = Settings(upstream=upstream, models=MODELS, nvml=False)
    with under_hypercorn(settings) as (port, relay):
        yield Door(port, relay.taps.injection.begin_anew)


FRONT_DOORS: dict[str, FrontDoor] = {"server": own_server, "asgi": asgi}


class Ways:
    """An engine, a port before it that exchanges share, and new ones for those that teach."""

    def __init__(self, name: str, engine: ScriptedEngine, stack: ExitStack) -> None:
        door = FRONT_DOORS[name]
        self.door_name = name
        self.engine = engine
        self._shared = stack.enter_context(door(engine.url))
        self.shared = self._shared.port
        self._door = door
        # A proxy takes a moment to end; the next exchange does not wait for it.
        self._leaving = stack.enter_context(ThreadPoolExecutor(4))

    def restart_engine(self, port: int) -> None:
        """End the engine and start it again; the proxy at `port` has seen that it was down."""
        self.engine.stop()
        assert fetch(port, "GET", "/v1/models").status == 502
        self.engine.start()

    @contextmanager
    def fresh(self) -> Iterator[int]:
        """A proxy that has learned nothing yet."""
        if self._shared.begin_anew is not None:
            self._shared.begin_anew()
            yield self.shared
            return
        way = ExitStack()
        door = way.enter_context(self._door(self.engine.url))
        try:
            yield door.port
        finally:
            self._leaving.submit(way.close)


@pytest.fixture(scope="session", params=FRONT_DOORS)
def ways(request: pytest.FixtureRequest) -> Iterator[Ways]:
    with ScriptedEngine(MODELS) as engine, ExitStack() as stack:
        yield Ways(request.param, engine, stack)
