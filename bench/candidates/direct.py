"""No proxy: what engine and client take by themselves."""

from __future__ import annotations

from bench.candidates.launch import Launch, Place

NAME = "direct"


def start(place: Place) -> Launch:
    return Launch(None)


def version() -> str:
    return ""
