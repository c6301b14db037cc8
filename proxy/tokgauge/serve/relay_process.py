"""A relay as a process: `python -m tokgauge.serve.relay_process PLAN`."""

from __future__ import annotations

import json
import logging
import socket
import sys

import msgspec

from tokgauge.serve.child import STARTUP_FAILURE
from tokgauge.serve.process import begin_as_child, read_all, spare_the_collector
from tokgauge.serve.relay_app import RelayApp, RelaySettings
from tokgauge.serve.relay_server import RelayServer
from tokgauge.serve.sockets import path_of

logger = logging.getLogger("tokgauge")


def main() -> None:
    """Serve until a signal ends it."""
    plan = json.loads(sys.argv[1])
    settings = msgspec.json.decode(
        read_all(plan["settings"]), type=RelaySettings, dec_hook=lambda kind, text: kind(text)
    )
    begin_as_child(plan["alive"], settings.log_level)
    try:
        app = RelayApp(
            settings, name=plan["name"], records=path_of(plan["to_records"]),
            pages=path_of(plan["to_pages"]),
        )  # fmt: skip
        server = RelayServer(app, settings)
    except Exception as error:
        logger.error("the relay cannot start: %s", error, exc_info=not isinstance(error, OSError))
        sys.exit(STARTUP_FAILURE)
    spare_the_collector()
    server.run([socket.socket(fileno=plan["socket"])])
    if not server.started:
        sys.exit(STARTUP_FAILURE)


if __name__ == "__main__":
    main()
