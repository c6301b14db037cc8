"""The time limits of the way to the engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in seconds; `None` means no limit.

    connect: name resolution, TCP handshake and TLS handshake together.
    first_byte: from the request sent to the first byte of the final response head. No limit by
        default, because a long prefill is legal.
    stream_idle: silence inside a response that has begun. Time during which nothing is read,
        because the client is slow, does not count.

    `connect` is exact. The others are checked by one sweep over all connections, so they may be
    late by an eighth of the shortest of them, at most by one second.
    """

    connect: float | None = 5.0
    first_byte: float | None = None
    stream_idle: float | None = 600.0
