"""What differs through the second front door, and why: by ASGI itself, or by hypercorn under it.

Everything else of the corpus is through that door as it is through our own server.
"""

from __future__ import annotations

from typing import cast

from tests.direct.compare import Difference, Header

_OFFER_TAKEN = (
    "hypercorn takes an offer of h2c without a body itself, and goes on in HTTP/2; no request of "
    "HTTP/1.1 reaches the application"
)

NOT_RUN: dict[str, str] = {
    "48 JDK, GET": _OFFER_TAKEN,
    "48 curl, GET": _OFFER_TAKEN,
    "48 unnamed, GET": _OFFER_TAKEN,
}
"""Exchange → why it says nothing about the application."""

DIFFERENT: dict[str, tuple[set[str], str]] = {
    "31 target /v1/x?": ({"request line"}, "a scope cannot tell an empty query from none"),
    "48 WebSocket at an engine without": (
        {"status", "own id", "headers", "body", "kept", "requests"},
        "to ASGI a WebSocket is no request: it is refused with 403, as servers do it",
    ),
}
"""Exchange → what of it differs (as `Difference.what`), and why. All of it has to be seen."""


def differs_by_case(difference: Difference) -> bool:
    """ASGI asks for the names of response headers in lower case. Order and values stay."""
    if difference.what != "headers":
        return False
    direct, proxy = cast(tuple[list[Header], list[Header]], (difference.direct, difference.proxy))
    return [(name.lower(), value) for name, value in direct] == proxy
