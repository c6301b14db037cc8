"""Fixtures of the socket tests: a scripted engine with a real proxy before it."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.chat import CHAT, ask, whole_answer
from tests.support.client import RawClient
from tests.support.engine import Conversation, ScriptedEngine, json_answer, stream
from tests.support.metrics import Scrape, Watch, scrape

if TYPE_CHECKING:
    from tokgauge.serve.background import BackgroundProxy
    from tokgauge.simulator.nvml import SimulatedNvml

MODELS = ("qwen", "gemma")


@pytest.fixture(autouse=True)
def _no_sockets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that is marked `socketless` keeps to that, in this process."""
    if request.node.get_closest_marker("socketless") is None:
        return

    def refuse(sock: socket.socket, address: object) -> None:
        raise AssertionError(f"a test that is marked socketless wants to use {address}")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


WARM = "/v1/warm"


@dataclass
class Rig:
    """A proxy on a port of its own and the engine behind it."""

    engine: ScriptedEngine
    proxy: "BackgroundProxy"

    @property
    def port(self) -> int:
        return self.proxy.port

    def teach(self, *events: bytes, path: str = CHAT, **fields: Any) -> None:
        """Show the proxy one stream, after which it asks this engine for usage on such requests."""
        self.engine.on(path, stream(*(events or whole_answer("a", "b", usage=False))))
        assert ask(self.port, asked=False, path=path, **fields).status == 200
        self.engine.forget()

    def client(self, timeout: float = 15.0, receive_buffer: int | None = None) -> RawClient:
        return RawClient(self.port, timeout, receive_buffer)

    def watch(self) -> Watch:
        return Watch(self.port)

    def scrape(self) -> Scrape:
        return scrape(self.port)

    def leave_idle(self, count: int) -> set[int]:
        """Leave idle connections at the engine; their numbers."""
        gate = threading.Event()

        async def together(c: Conversation) -> None:
            await c.until(gate)
            await c.send(json_answer({}))

        self.engine.on(WARM, together)
        before = len(self.engine.requests)
        clients = [self.client() for _ in range(count)]
        for client in clients:
            client.request("GET", WARM)
        self.engine.wait_requests(before + count)
        gate.set()
        for client in clients:
            assert client.read_response().status == 200
            client.close()
        used = {received.connection for received in self.engine.requests[before:]}
        self.engine.requests.clear()
        return used


@pytest.fixture(scope="session")
def shared_engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine(MODELS) as engine:
        yield engine


def start_proxy(**settings: Any) -> "BackgroundProxy":
    """A proxy in this process, not yet entered. Imported late: most tests never need the server."""
    from tokgauge.serve.background import BackgroundProxy
    from tokgauge.settings import Settings

    return BackgroundProxy(Settings(**{"models": MODELS, "port": 0, "nvml": False, **settings}))


@pytest.fixture(scope="session")
def shared_proxy(shared_engine: ScriptedEngine) -> Iterator["BackgroundProxy"]:
    with start_proxy(upstream=shared_engine.url) as proxy:
        yield proxy


@pytest.fixture
def rig(shared_engine: ScriptedEngine, shared_proxy: "BackgroundProxy") -> Rig:
    """The proxy with default settings that most tests share; the engine starts without scripts.

    For the proxy it is another engine than that of the test before: nothing is known of it.
    """
    shared_engine.forget()
    shared_proxy.relay.taps.injection.begin_anew()
    return Rig(shared_engine, shared_proxy)


QUIET: dict[str, Any] = {"poll_interval": 3600, "engine_metrics_interval": 3600}
"""A proxy that asks nothing by itself, so that each connection to the engine is known."""


@pytest.fixture(scope="module")
def _quiet() -> Iterator[Rig]:
    with ScriptedEngine(MODELS) as engine, start_proxy(upstream=engine.url, **QUIET) as proxy:
        yield Rig(engine, proxy)


@pytest.fixture
def quiet_rig(_quiet: Rig) -> Rig:
    """A proxy that asks nothing by itself, shared by a module's tests."""
    _quiet.engine.forget()
    return _quiet


@pytest.fixture
def new_rig() -> Iterator[Callable[..., Rig]]:
    """Make an engine and a proxy of one's own: `new_rig(inject_usage=False)`."""
    with ExitStack() as stack:

        def make(engine: ScriptedEngine | None = None, **settings: Any) -> Rig:
            engine = engine or stack.enter_context(ScriptedEngine(MODELS))
            return Rig(engine, stack.enter_context(start_proxy(upstream=engine.url, **settings)))

        yield make


@pytest.fixture
def nvml() -> Iterator["SimulatedNvml"]:
    """The founding scene's GPU, as pynvml sees it."""
    from tokgauge.simulator.gpu_scenes import founding_scene
    from tokgauge.simulator.nvml import SimulatedNvml

    gpu = SimulatedNvml(founding_scene())
    gpu.install()
    yield gpu
    gpu.uninstall()
