"""The proxy with an observer that observes nothing: `python -m bench.unmeasured ENGINE PORT`."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping

import tokgauge.serve.app
from tokgauge.measure.record import Outcome
from tokgauge.measure.tap import Observation, Observer
from tokgauge.serve.server import serve
from tokgauge.settings import Settings


class NoObservation(Observation):
    """Answers the relay's reports and forgets them."""

    def __init__(self, exchange_id: str) -> None:
        self.id = exchange_id.encode()

    @property
    def body_wanted(self) -> int:
        return 0

    def enter(self) -> None:
        pass

    def request_received(
        self, at: float, body: bytes | None, encoding: bytes | None
    ) -> bytes | None:
        return None

    def request_sent(self, at: float | None) -> None:
        pass

    def retried(self) -> None:
        pass

    def may_be_refused(self, status: int) -> bool:
        return False

    def hides(self, status: int, headers: Mapping[str, str]) -> bool:
        return False

    def answer_begins(self, status: int, headers: Mapping[str, str]) -> None:
        pass

    def token(self, at: float, data: bytes) -> bool:
        return True

    def token_counter(self) -> Callable[[float, bytes], bool]:
        return self.token

    def onward(self, data: bytes) -> bytes:
        return data

    def chunk(self, at: float, data: bytes) -> None:
        pass

    def passed_on(self, seconds: float) -> None:
        pass

    def answer_ends(self) -> bytes:
        return b""

    def end(self, outcome: Outcome) -> None:
        pass

    def refused(self, status: int) -> None:
        pass


class NoObserver(Observer):
    """Opens observations that observe nothing."""

    def open(self, method: str, path: bytes, at: float) -> Observation:
        return NoObservation(secrets.token_hex(12))


if __name__ == "__main__":
    # Users have no such switch, and shall have none: the application is changed from outside.
    setattr(tokgauge.serve.app, "Observer", NoObserver)  # noqa: B010
    serve(Settings(upstream=sys.argv[1], port=int(sys.argv[2]), log_level="warning"))
