"""What is worth saying beside the causes."""

from __future__ import annotations

from typing import Literal

from tokgauge.diagnosis.evidence import Evidence

Note = Literal[
    "speculation_divided_out",
    "not_streamed",
    "cut_off",
    "fast_beside_a_neighbour",
    "step_is_shared",
]
ClientSide = Literal["stream", "ask_for_more_tokens"]
"""What clients can do about what is felt as slow and has nothing to do with the GPU."""

FELT_WAIT = 1.0
"""A wait [s] from which on it interrupts what a person thinks."""

_CLEARLY_LESS = 0.9

MANY_UNSTREAMED = 0.2
MANY_TRUNCATED = 0.05
"""Shares of the answers from which on it is worth mentioning."""


def notes_of(e: Evidence) -> tuple[Note, ...]:
    """What is worth knowing at every level."""
    notes: list[Note] = []
    if e.tokens_per_step is not None and e.tokens_per_step > 1:
        notes.append("speculation_divided_out")
    if _many_unstreamed(e):
        notes.append("not_streamed")
    if _many_truncated(e):
        notes.append("cut_off")
    return tuple(notes)


def notes_on_health(e: Evidence) -> tuple[Note, ...]:
    """What looks bad beside a healthy efficiency."""
    notes: list[Note] = []
    if e.contention == "active_neighbours":
        notes.append("fast_beside_a_neighbour")
    shared = e.mean_batch is not None and e.mean_batch >= 2
    if (
        shared
        and e.request_ratio is not None
        and e.efficiency is not None
        and e.request_ratio < _CLEARLY_LESS * e.efficiency
    ):
        notes.append("step_is_shared")
    return tuple(notes)


def client_side(e: Evidence) -> tuple[ClientSide, ...]:
    """What clients had better do."""
    advice: list[ClientSide] = []
    felt = e.silent_wait_seconds is None or e.silent_wait_seconds >= FELT_WAIT
    if _many_unstreamed(e) and felt:
        advice.append("stream")
    if _many_truncated(e):
        advice.append("ask_for_more_tokens")
    return tuple(advice)


def _many_unstreamed(e: Evidence) -> bool:
    return e.unstreamed_ratio is not None and e.unstreamed_ratio >= MANY_UNSTREAMED


def _many_truncated(e: Evidence) -> bool:
    return e.truncated_ratio is not None and e.truncated_ratio >= MANY_TRUNCATED
