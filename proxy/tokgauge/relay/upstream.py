"""Where exchanges go: the engine, or the analyst for the proxy's own pages."""

from __future__ import annotations

from collections.abc import Callable

from tokgauge.http import error_responses as errors
from tokgauge.http.client.failures import (
    ConnectFailed,
    ConnectTimedOut,
    EngineFailure,
    FirstByteTimedOut,
    ResponseInvalid,
)
from tokgauge.http.client.limits import Limits
from tokgauge.http.client.pool import Pool
from tokgauge.http.client.request_head import RequestHead, request_head
from tokgauge.http.error_responses import ErrorResponse
from tokgauge.http.request import Request

_MAY_BE_REPEATED = frozenset(("GET", "HEAD", "OPTIONS"))


class Upstream:
    """One address, and what of a client's request changes on the way there.

    address: as it is shown to people. prefix: the path that stands before every target. host: the
    Host header; None keeps the client's. own_host: what HTTP/1.0 clients, which send none, get.
    max_body_bytes: the largest request body. generates: whether a path is one whose POST only
    generates, so that it may be repeated. reads_bodies: whether it is one whose good responses need
    the whole body. reached: is told that the engine could be reached, or not, and why not.
    unreachable: what the client is told when it could not, from address and reason.
    """

    def __init__(
        self, pool: Pool, limits: Limits, *, address: str, prefix: bytes, host: bytes | None,
        own_host: bytes, max_body_bytes: int | None, generates: Callable[[str, bytes], bool],
        reads_bodies: Callable[[str, bytes], bool],
        reached: Callable[[bool, str], None],
        unreachable: Callable[[str, str], ErrorResponse] = errors.engine_unreachable,
    ) -> None:  # fmt: skip
        self.pool = pool
        self.limits = limits
        self.address = address
        self._prefix = prefix
        self._host = host
        self._own_host = own_host
        self._max_body_bytes = max_body_bytes
        self._generates = generates
        self._reads_bodies = reads_bodies
        self._reached = reached
        self._unreachable = unreachable

    def refuses(self, request: Request) -> ErrorResponse | None:
        """Why this request must not go on; None when it may."""
        return request.refusal or self.refuses_body(request.length)

    def refuses_body(self, size: int) -> ErrorResponse | None:
        """Why a body of so many bytes must not go on; None when it may."""
        limit = self._max_body_bytes
        return errors.body_too_large(limit) if limit is not None and size > limit else None

    def may_repeat(self, request: Request) -> bool:
        """Whether a request may be sent twice without doing twice what it asks for."""
        return request.method in _MAY_BE_REPEATED or self._generates(request.method, request.path)

    def reads_body(self, request: Request) -> bool:
        """Whether a good response means that the request's body has been read."""
        return self._reads_bodies(request.method, request.path)

    def head(self, request: Request, *, length: int | None) -> RequestHead:
        """The request's head as it goes up. length: of the body, where it was changed.

        Raises RequestInvalid.
        """
        host = self._host
        if host is None and not request.incoming.hosts:
            host = self._own_host  # HTTP/1.0 knows no Host, HTTP/1.1 requires one
        return request_head(
            request.method,
            self._prefix + request.target,
            request.incoming.to_engine(
                host=host, body_length=None if request.incoming.codings else length
            ),
        )

    def responds(self) -> None:
        """It has responded to something."""
        self._reached(True, "")

    def error_response(self, failure: EngineFailure) -> ErrorResponse:
        """What the client is told when there is no response."""
        match failure:
            case ConnectTimedOut():
                return errors.connect_timed_out(self.address, self.limits.connect or 0.0)
            case ConnectFailed():
                self._reached(False, str(failure))
                return self._unreachable(self.address, str(failure))
            case FirstByteTimedOut():
                return errors.first_byte_timed_out(self.address, self.limits.first_byte or 0.0)
            case ResponseInvalid():
                return errors.not_a_response(self.address, str(failure))
            case _:
                return errors.engine_broke_off(self.address, str(failure))
