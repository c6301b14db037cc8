"""What can go wrong between the proxy and the engine.

EngineFailure
├── ConnectFailed       no connection: refused, unknown name, TLS, closed at once
├── ConnectTimedOut     no connection within `connect` seconds
├── RequestInvalid      what shall be sent is not one HTTP/1.1 request
├── ConnectionClosed    closed or reset before the response was complete
├── ResponseInvalid     the bytes that came are not an acceptable HTTP/1.1 response
├── FirstByteTimedOut   no response within `first_byte` seconds
└── StreamTimedOut      silent for `stream_idle` seconds within a response
"""

from __future__ import annotations


class EngineFailure(Exception):  # noqa: N818 - the names say what happened
    """An exchange with the engine that did not end as it should."""


class ConnectFailed(EngineFailure):
    """There is no connection."""


class ConnectTimedOut(EngineFailure):
    """There is no connection yet."""


class RequestInvalid(EngineFailure):
    """What shall be sent is not one HTTP/1.1 request."""


class ConnectionClosed(EngineFailure):
    """The connection ended before the response did.

    died_idle: it had served an earlier request and brought no byte for this one, so the engine had
    most likely closed it before the request went out: the only case in which it may be sent again.
    """

    def __init__(self, why: str, *, died_idle: bool) -> None:
        super().__init__(why)
        self.died_idle = died_idle


class ResponseInvalid(EngineFailure):
    """The bytes that came are not an acceptable HTTP/1.1 response."""


class FirstByteTimedOut(EngineFailure):
    """The engine did not begin to respond."""


class StreamTimedOut(EngineFailure):
    """The engine went silent within a response."""
