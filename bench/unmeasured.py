"""A relay with taps that measure nothing: `python -m bench.unmeasured ENGINE PORT`."""

from __future__ import annotations

import secrets
import sys

import tokgauge.serve.relay_app
from tokgauge.measure.no_tap import NoTap
from tokgauge.measure.tap import Tap
from tokgauge.measure.taps import Taps
from tokgauge.serve.process import set_up_logging, spare_the_collector
from tokgauge.serve.relay_app import RelayApp
from tokgauge.serve.relay_server import RelayServer
from tokgauge.serve.sockets import AnalystSockets, bind, path_of
from tokgauge.serve.start import relay_settings
from tokgauge.settings import Settings


class NoTaps(Taps):
    """Opens taps that pass bytes on and forget them."""

    def open(self, method: str, path: bytes, at: float) -> Tap:
        tap = NoTap()
        tap.id = secrets.token_hex(12).encode()
        return tap


def main() -> None:
    settings = Settings(upstream=sys.argv[1], port=int(sys.argv[2]), log_level="warning")
    set_up_logging(settings.log_level)
    # Users have no such switch, and shall have none: the relay is changed from outside.
    setattr(tokgauge.serve.relay_app, "Taps", NoTaps)  # noqa: B010
    analyst = AnalystSockets.make()  # there is none: nothing is sent
    relay = RelayApp(
        relay_settings(settings), name="relay-0", records=path_of(analyst.to_records),
        pages=path_of(analyst.to_pages),
    )  # fmt: skip
    server = RelayServer(relay, relay_settings(settings))
    spare_the_collector()
    server.run(bind(settings.host, [settings.port]))


if __name__ == "__main__":
    main()
