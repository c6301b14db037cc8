"""httpx2's exceptions, with the facts that decide whether a request may be sent again.

Every `httpx2.TransportError` that ends an exchange with the engine has attributes of its own:

`reused`          True when the connection had served an earlier request
`engine_left`     True when the engine closed or reset the connection; False for a time limit that
                  passed, a response that cannot be read, and what was closed from this side
`response_bytes`  True when at least one byte of the response had been received

They are set on the instance, because the exception classes belong to httpx2. `died_idle` says
whether they mean that the request met a connection that was no longer there.
"""

from typing import TypeVar

import httpx2

ErrorT = TypeVar("ErrorT", bound=httpx2.TransportError)


def transport_error(
    kind: type[ErrorT], message: str, *, reused: bool = False, engine_left: bool = False,
    response_bytes: bool = False,
) -> ErrorT:  # fmt: skip
    """An exception of class `kind` that carries these facts."""
    error = kind(message)
    # Not plain assignments: the classes do not declare these names to the type checker.
    error.__dict__.update(reused=reused, engine_left=engine_left, response_bytes=response_bytes)
    return error


def engine_left(error: httpx2.TransportError) -> bool:
    """Whether the engine closed or reset the connection."""
    return bool(error.__dict__.get("engine_left"))


def died_idle(error: httpx2.TransportError) -> bool:
    """Whether the engine had left a kept-alive connection before it answered anything on it."""
    facts = error.__dict__
    return engine_left(error) and bool(facts.get("reused") and not facts.get("response_bytes"))
