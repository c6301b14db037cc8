"""What is compared: each module says how one candidate is started.

A module has `NAME`, `start(place)`, which returns a `Launch` or raises `Absent`, and `version()`.
"""

from __future__ import annotations

from types import ModuleType

from bench.candidates import (
    direct,
    haproxy,
    litellm,
    nginx,
    plain,
    tokgauge,
    two_relays,
    unmeasured,
    vllm_router,
)

ALL: tuple[ModuleType, ...] = (
    direct, nginx, haproxy, tokgauge, two_relays, unmeasured, plain, vllm_router, litellm,
)  # fmt: skip

QUICK: tuple[ModuleType, ...] = (direct, nginx, tokgauge, plain)
