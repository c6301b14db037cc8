"""The way to the engine: an httpx2 transport for HTTP/1.1, made for streams."""

from proxy.transport.connection import INLINE_BODY
from proxy.transport.engine import EngineTransport, TransportStats, origin_of
from proxy.transport.errors import died_idle, engine_left
from proxy.transport.reader import ResponseReader
from proxy.transport.stream import EngineStream, Listener, Passage
from proxy.transport.timeouts import Timeouts

__all__ = [
    "INLINE_BODY",
    "EngineStream",
    "EngineTransport",
    "Listener",
    "Passage",
    "ResponseReader",
    "Timeouts",
    "TransportStats",
    "died_idle",
    "engine_left",
    "origin_of",
]
