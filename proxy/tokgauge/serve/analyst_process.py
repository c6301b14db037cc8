"""The analyst as a process: `python -m tokgauge.serve.analyst_process PLAN`."""

from __future__ import annotations

import json
import logging
import pickle
import socket
import sys

from tokgauge.serve.analyst import Analyst
from tokgauge.serve.analyst_server import AnalystServer
from tokgauge.serve.child import STARTUP_FAILURE
from tokgauge.serve.process import begin_as_child, read_all
from tokgauge.settings import Settings

logger = logging.getLogger("tokgauge")


def main() -> None:
    """Serve the pages until a signal ends it."""
    plan = json.loads(sys.argv[1])
    settings: Settings = pickle.loads(read_all(plan["settings"]))  # noqa: S301 - our own
    begin_as_child(plan["alive"], settings.log_level)
    try:
        analyst = Analyst(settings, socket.socket(fileno=plan["records"]))
        server = AnalystServer(analyst)
    except Exception as error:
        logger.error("the analyst cannot start", exc_info=error)
        sys.exit(STARTUP_FAILURE)
    server.run([socket.socket(fileno=descriptor) for descriptor in plan["pages"]])
    if not server.started:
        sys.exit(STARTUP_FAILURE)


if __name__ == "__main__":
    main()
