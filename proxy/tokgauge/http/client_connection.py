"""The two interfaces between an HTTP server and the exchanges that it carries.

An exchange knows of its client what `ClientConnection` says, and of the server nothing else. Two
servers implement it: `tokgauge.http.server`, which `tokgauge serve` runs, and the adapter from ASGI
in `tokgauge.http.asgi`, for `tokgauge.asgi:app` under any server. All of it happens in one event
loop, and nothing here waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tokgauge.http.error_responses import ErrorResponse
from tokgauge.http.headers import Header
from tokgauge.http.request import Request


class ClientConnection(Protocol):
    """The client of one exchange, as the exchange sees it.

    All that the state machine knows of a client. A response is `begin`, any number of `write`, and
    one of `finish` and `cut`; or `respond` alone. What is called after the client has left does
    nothing. None of these raises.
    """

    request: Request

    def begin(self, status: int, headers: Sequence[Header], *, body_follows: bool) -> None:
        """Begin the response.

        headers: without Transfer-Encoding and Connection, which are the server's; in order,
        duplicates and values as they are to be sent. body_follows: `write`, `finish` or
        `release_head` is called next, so the head may wait for it; else it leaves at once.
        """

    def release_head(self) -> None:
        """Send the head by itself: no body follows it yet."""

    def write(self, body: bytes, raw: bytes | None) -> None:
        """Send a part of the response's body, not empty, at once.

        raw: the same bytes framed as one chunk of the transfer coding, where they came so. Nothing
        is refused: a client that does not keep up is told to the exchange by `client_full`.
        """

    def finish(self) -> None:
        """The response is complete: send its end."""

    def cut(self) -> None:
        """Nothing more comes: end the response so that the client can tell that it is not whole."""

    def respond(self, response: ErrorResponse, headers: Sequence[Header]) -> None:
        """Send the proxy's own response, whole. The rest of the request's body is of no use."""

    def done(self) -> None:
        """Nothing is left to do for this exchange: the next one's turn may come."""

    def pause_reading(self) -> None:
        """Let the client wait with the rest of the request's body. What was read may still come."""

    def resume_reading(self) -> None:
        """Take on the request's body."""


class Exchange(Protocol):
    """What the server tells the exchange of one of its requests. None of these may raise.

    `start` comes first; then `request_data` for each part of the body and one of `request_end` and
    `request_failed`. `client_left` may come at any time, and is the last; it does not come once
    the response is complete.
    """

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
