"""The states of an exchange, and which may follow on which.

    RECEIVING ──▶ CONNECTING ──▶ WAITING ──▶ STREAMING ──▶ ENDED
                     ▲  ▲           │  │         ▲
                     │  └───────────┘  ▼         │
                     └───────── HOLDING ─────────┘

From every state an exchange may end.
"""

from __future__ import annotations

from enum import IntEnum, auto


class State(IntEnum):  # not Enum, whose members hash themselves in Python
    """Where an exchange is."""

    RECEIVING = auto()
    """The request is being received, to be looked at before it goes up."""
    CONNECTING = auto()
    """A connection to the engine is being made."""
    WAITING = auto()
    """The request is on its way up, or is there; nothing of a response has come."""
    HOLDING = auto()
    """The response to a request that the proxy has changed: held until it is seen to be no other
    than without the change."""
    STREAMING = auto()
    """The response goes to the client as it comes."""
    ENDED = auto()


TRANSITIONS: dict[State, frozenset[State]] = {
    State.RECEIVING: frozenset({State.CONNECTING, State.ENDED}),
    State.CONNECTING: frozenset({State.WAITING, State.ENDED}),
    State.WAITING: frozenset({State.CONNECTING, State.HOLDING, State.STREAMING, State.ENDED}),
    State.HOLDING: frozenset({State.CONNECTING, State.STREAMING, State.ENDED}),
    State.STREAMING: frozenset({State.ENDED}),
    State.ENDED: frozenset(),
}
"""State → the states that may follow."""
