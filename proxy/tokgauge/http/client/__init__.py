"""The way to the engine: an httpx2 transport for HTTP/1.1, made for streams."""

from tokgauge.http.client.connection import INLINE_BODY
from tokgauge.http.client.engine import EngineTransport, TransportStats, origin_of
from tokgauge.http.client.errors import died_idle, engine_left
from tokgauge.http.client.reader import ResponseReader
from tokgauge.http.client.stream import EngineStream, Listener, Passage
from tokgauge.http.client.timeouts import Timeouts

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
