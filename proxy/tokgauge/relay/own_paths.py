"""What belongs to the proxy itself: two probes that the relay answers, and the analyst's pages."""

from __future__ import annotations

from collections.abc import Callable

from tokgauge.http.client_connection import ClientConnection, Exchange
from tokgauge.http.error_responses import ErrorResponse

PREFIX = b"/tokgauge"


class OwnPaths:
    """Decides what is the proxy's own.

    refuses: why a request must not see own pages. not_ready: why new requests are not welcome, None
    when they are. pages: opens the exchange of everything else with the analyst.
    """

    def __init__(
        self, refuses: Callable[[ClientConnection], ErrorResponse | None],
        not_ready: Callable[[], str | None], pages: Callable[[ClientConnection], Exchange],
    ) -> None:  # fmt: skip
        self._refuses = refuses
        self._not_ready = not_ready
        self._pages = pages

    def has(self, path: bytes) -> bool:
        """Whether a raw request path belongs to the proxy itself."""
        return path.startswith(PREFIX) and (len(path) == 9 or path[9] == 0x2F)

    def open(self, client: ClientConnection) -> Exchange:
        """The exchange of such a request."""
        path = client.request.path
        refused = self._refuses(client)
        if refused is not None:
            return Immediate(client, refused.status, refused.body(), refused.headers())
        if path == b"/tokgauge/healthz":
            return _json(client, 200, b'{"status":"ok"}')
        if path == b"/tokgauge/readyz":
            reason = self._not_ready()
            if reason is None:
                return _json(client, 200, b'{"status":"ready"}')
            return _json(client, 503, b'{"status":"not ready","reason":"%b"}' % reason.encode())
        return self._pages(client)


def _json(client: ClientConnection, status: int, body: bytes) -> Immediate:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    return Immediate(client, status, body, headers)


class Immediate:
    """An exchange that is answered without anybody's help, once its request is here."""

    __slots__ = ("_body", "_client", "_headers", "_status")

    def __init__(
        self, client: ClientConnection, status: int, body: bytes,
        headers: list[tuple[bytes, bytes]],
    ) -> None:  # fmt: skip
        self._client = client
        self._status = status
        self._body = body
        self._headers = headers

    def start(self) -> None: ...

    def request_data(self, piece: bytes) -> None: ...

    def request_end(self) -> None:
        """The request has been received completely."""
        self._client.begin(self._status, self._headers, body_follows=True)
        self._client.write(self._body, None)
        self._client.finish()
        self._client.done()

    def request_failed(self, response: ErrorResponse) -> None:
        """The rest of the request will never come."""
        self._client.respond(response, [])
        self._client.done()

    def client_left(self) -> None: ...

    def client_full(self) -> None: ...

    def client_ready(self) -> None: ...
