"""The time limits of the engine transport."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits in seconds; `None` means no limit.

    connect: name resolution, TCP handshake and TLS handshake together (ConnectTimeout).
    write: how long the engine may refuse to take more of the request body (WriteTimeout).
    first_byte: from the request sent to the first byte of the final response head (ReadTimeout).
        No limit by default, because a long prefill is legal.
    stream_idle: silence inside a response that has begun (ReadTimeout). Time during which the
        transport itself does not read, because the consumer is slow, does not count.

    `connect` is exact. The others are checked by one sweep over all connections, so they may be
    late by an eighth of the shortest of them, at most by one second.
    """

    connect: float | None = 5.0
    write: float | None = None
    first_byte: float | None = None
    stream_idle: float | None = 600.0
