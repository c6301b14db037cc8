"""The way to the engine: an httpx2 transport for HTTP/1.1, made for streams."""

from proxy.transport.engine import Answer, EngineTransport, TransportStats, origin_of
from proxy.transport.errors import died_idle
from proxy.transport.stream import EngineStream
from proxy.transport.timeouts import Timeouts

__all__ = [
    "Answer",
    "EngineStream",
    "EngineTransport",
    "Timeouts",
    "TransportStats",
    "died_idle",
    "origin_of",
]
