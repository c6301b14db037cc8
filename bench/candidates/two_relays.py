"""This proxy with two relays: what each costs beside another, which shares its core here."""

from __future__ import annotations

from bench.candidates import tokgauge
from bench.candidates.launch import Launch, Place

NAME = "tokgauge, two relays"

version = tokgauge.version


def start(place: Place) -> Launch:
    launch = tokgauge.start(place)
    assert launch.command is not None
    return Launch((*launch.command, "--workers", "2"))
