"""Between a server and what it serves: the client of one exchange, and the exchange of one request.

All that the state machine knows of a client is `ClientConnection`, and all that a server knows of
an exchange is `Exchange`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tokgauge.http.error_responses import ErrorResponse
from tokgauge.http.headers import Header
from tokgauge.http.request import Request


class ClientConnection(Protocol):
    """The client of one exchange, as the exchange sees it."""

    request: Request

    def begin(self, status: int, headers: Sequence[Header], *, body_follows: bool) -> None:
        """Begin the response. body_follows: `write`, `finish` or `release_head` is called next."""

    def release_head(self) -> None:
        """Send the head by itself: no body follows it yet."""

    def write(self, body: bytes, raw: bytes | None) -> None:
        """Send a part of the response's body, not empty.

        raw: the same bytes framed as one chunk of the transfer coding, where they came so.
        """

    def finish(self) -> None:
        """The response is complete: send its end."""

    def cut(self) -> None:
        """Nothing more comes: end the response so that the client can tell that it is not whole."""

    def respond(self, response: ErrorResponse, headers: Sequence[Header]) -> None:
        """Send the proxy's own response, whole."""

    def done(self) -> None:
        """Nothing is left to do for this exchange: the next one's turn may come."""

    def pause_reading(self) -> None:
        """Let the client wait with the rest of the request's body."""

    def resume_reading(self) -> None:
        """Take on the request's body."""


class Exchange(Protocol):
    """What the connection tells the exchange of one of its requests. None of these may raise."""

    def start(self) -> None:
        """It is the request's turn."""

    def request_data(self, piece: bytes) -> None:
        """A part of the request's body, not empty."""

    def request_end(self) -> None:
        """The request has been received completely."""

    def request_failed(self, response: ErrorResponse) -> None:
        """The rest of the request will never come; `response` says why."""

    def client_left(self) -> None:
        """The client has closed its connection."""

    def client_full(self) -> None:
        """The client takes no more of the response for now."""

    def client_ready(self) -> None:
        """It takes more."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What a client may take: bytes of a head; seconds for a head, between two reads of a body, and
    between two requests.
    """

    head_bytes: int
    head: float
    body: float
    idle: float


class Application(Protocol):
    """What is served; to uvicorn an ASGI application, of which only the lifespan runs."""

    limits: ClientLimits

    def open(self, client: ClientConnection) -> Exchange:
        """The exchange of a request, whose turn comes with `start`."""
