"""The ways to the scripted engine: direct, and through each front door that there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pytest
from tokgauge.settings import Settings

from tests.conftest import MODELS, start_proxy
from tests.support.asgi import under_hypercorn
from tests.support.client import fetch
from tests.support.engine import ScriptedEngine

FrontDoor = Callable[[str], AbstractContextManager[int]]
"""Something that stands before the engine at an address, and gives the port that it listens on."""


@contextmanager
def own_server(upstream: str) -> Iterator[int]:
    with start_proxy(upstream=upstream) as proxy:
        yield proxy.port


@contextmanager
def asgi(upstream: str) -> Iterator[int]:
    with under_hypercorn(Settings(upstream=upstream, models=MODELS, nvml=False)) as port:
        yield port


FRONT_DOORS: dict[str, FrontDoor] = {"server": own_server, "asgi": asgi}


class Ways:
    """An engine, a port before it that exchanges share, and new ones for those that teach."""

    def __init__(self, name: str, engine: ScriptedEngine, stack: ExitStack) -> None:
        door = FRONT_DOORS[name]
        self.door_name = name
        self.engine = engine
        self.shared = stack.enter_context(door(engine.url))
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
        way = ExitStack()
        port = way.enter_context(self._door(self.engine.url))
        try:
            yield port
        finally:
            self._leaving.submit(way.close)


@pytest.fixture(scope="session", params=FRONT_DOORS)
def ways(request: pytest.FixtureRequest) -> Iterator[Ways]:
    with ScriptedEngine(MODELS) as engine, ExitStack() as stack:
        yield Ways(request.param, engine, stack)
