"""httpx2's exceptions, with two facts that decide whether a request may be sent again.

Every `httpx2.TransportError` that ends an exchange with the engine has two attributes of its own:

`reused`          True when the connection had served an earlier request
`response_bytes`  True when at least one byte of the response had been received

They are set on the instance, because the exception classes belong to httpx2. A request may be
sent again only when `reused and not response_bytes`: `died_idle` says so.
"""

from typing import TypeVar

import httpx2

ErrorT = TypeVar("ErrorT", bound=httpx2.TransportError)


def transport_error(
    kind: type[ErrorT], message: str, *, reused: bool = False, response_bytes: bool = False
) -> ErrorT:
    """An exception of class `kind` that carries `reused` and `response_bytes`."""
    error = kind(message)
    # Not plain assignments: the classes do not declare these names to the type checker.
    error.__dict__.update(reused=reused, response_bytes=response_bytes)
    return error


def died_idle(error: httpx2.TransportError) -> bool:
    """Whether a kept-alive connection had died before the engine answered anything on it."""
    return bool(getattr(error, "reused", False)) and not getattr(error, "response_bytes", True)
