"""Responses that the proxy gives by itself: OpenAI's error envelope, which clients understand."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """One of them. `retry_after` in seconds; outcome: what the exchange counts as."""

    status: int
    type: str
    code: str
    message: str
    outcome: str
    retry_after: int | None = None

    def body(self) -> bytes:
        """The JSON envelope."""
        error = {"message": self.message, "type": self.type, "param": None, "code": self.code}
        return msgspec.json.encode({"error": error})

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers for `body`, without the exchange's id."""
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(self.body())),
        ]
        if self.retry_after is not None:
            headers.append((b"retry-after", b"%d" % self.retry_after))
        return headers


def engine_unreachable(upstream: str, why: str) -> ErrorResponse:
    return ErrorResponse(
        502, "upstream_error", "upstream_unreachable",
        f"tokgauge cannot reach the engine at {upstream}: {why}. Is it running, and is the address "
        "right? A vLLM that is still loading its weights does not listen yet: try again later.",
        "upstream_unreachable", retry_after=5,
    )  # fmt: skip


def connect_timed_out(upstream: str, seconds: float) -> ErrorResponse:
    return ErrorResponse(
        504, "upstream_error", "upstream_connect_timeout",
        f"tokgauge got no connection to the engine at {upstream} within {seconds:g} s "
        "(connect_timeout). Check the address, the network and firewalls between them.",
        "timeout", retry_after=5,
    )  # fmt: skip


def first_byte_timed_out(upstream: str, seconds: float) -> ErrorResponse:
    return ErrorResponse(
        504, "upstream_error", "upstream_timeout",
        f"The engine at {upstream} did not begin to answer within {seconds:g} s "
        "(first_byte_timeout). It may be overloaded; raise the limit if long prefills are normal.",
        "timeout",
    )  # fmt: skip


def engine_broke_off(upstream: str, why: str) -> ErrorResponse:
    return ErrorResponse(
        502, "upstream_error", "upstream_closed",
        f"The engine at {upstream} closed the connection before it answered: {why}. "
        "The request may have reached it; look into the engine's log.",
        "upstream_incomplete",
    )  # fmt: skip


def not_a_response(upstream: str, why: str) -> ErrorResponse:
    return ErrorResponse(
        502, "upstream_error", "upstream_malformed",
        f"The engine at {upstream} did not answer with an acceptable HTTP/1.1 response: {why}. "
        "The request has reached it; look into the engine's log, and at what stands between.",
        "upstream_incomplete",
    )  # fmt: skip


def body_too_large(limit: int) -> ErrorResponse:
    return ErrorResponse(
        413, "invalid_request_error", "request_too_large",
        f"The request body is larger than this proxy's limit of {limit} bytes (max_body_bytes).",
        "rejected",
    )  # fmt: skip


def headers_too_large(limit: int) -> ErrorResponse:
    return ErrorResponse(
        431, "invalid_request_error", "headers_too_large",
        f"The request's headers, trailers included, are larger than this proxy's limit of {limit} "
        "bytes (max_header_bytes).",
        "rejected",
    )  # fmt: skip


def head_timed_out(seconds: float) -> ErrorResponse:
    return ErrorResponse(
        408, "invalid_request_error", "request_timeout",
        f"The head of the request was not complete within {seconds:g} s (head_timeout).",
        "rejected",
    )  # fmt: skip


def body_timed_out(seconds: float) -> ErrorResponse:
    return ErrorResponse(
        408, "invalid_request_error", "request_timeout",
        f"No byte of the rest of the request's body came for {seconds:g} s (body_timeout).",
        "rejected",
    )  # fmt: skip


def version_not_supported() -> ErrorResponse:
    return ErrorResponse(
        505, "invalid_request_error", "http_version_not_supported",
        "This proxy speaks HTTP/1.1 and HTTP/1.0 only.", "rejected",
    )  # fmt: skip


def host_not_allowed(host: str) -> ErrorResponse:
    return ErrorResponse(
        421, "invalid_request_error", "host_not_allowed",
        f"The pages of tokgauge are not shown under the name {host!r}: a website could read them "
        "by giving this machine a name of its own (DNS rebinding). Use an IP address, localhost, "
        "or add the name to the setting allowed_hosts.",
        "rejected",
    )  # fmt: skip


def too_many_requests(limit: int) -> ErrorResponse:
    return ErrorResponse(
        503, "server_error", "too_many_in_flight",
        f"This proxy already carries {limit} requests, its limit (max_in_flight). Try again.",
        "rejected", retry_after=1,
    )  # fmt: skip


def malformed(why: str) -> ErrorResponse:
    return ErrorResponse(400, "invalid_request_error", "malformed_request", why, "rejected")


def proxy_broke() -> ErrorResponse:
    return ErrorResponse(
        500, "server_error", "proxy_error",
        "tokgauge failed to carry this request: a bug of the proxy, which is in its log.",
        "proxy_error",
    )  # fmt: skip


def analyst_away(address: str, why: str) -> ErrorResponse:
    return ErrorResponse(
        503, "server_error", "analyst_unavailable",
        "The process that keeps tokgauge's figures does not respond; it is started again when it "
        "has died. The traffic to the engine is not affected. Try again in a few seconds.",
        "upstream_unreachable", retry_after=3,
    )  # fmt: skip
