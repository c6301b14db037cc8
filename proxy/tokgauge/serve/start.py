"""`tokgauge serve`: sockets are opened here, then this process becomes the parent of all others."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from tokgauge.diagnosis.calibration_file import CalibrationFileError, read_calibrations
from tokgauge.engine.address import EngineAddress
from tokgauge.export.opentelemetry import check_extra
from tokgauge.export.request_log import STANDARD_OUTPUT
from tokgauge.serve.parent import SIGNALS
from tokgauge.serve.process import (
    fill_standard_streams,
    ignore_hangups,
    leave_quietly,
    set_up_logging,
)
from tokgauge.serve.relay_app import RelaySettings
from tokgauge.serve.sockets import AnalystSockets, bind, in_url
from tokgauge.settings import Settings

logger = logging.getLogger("tokgauge")


def serve(settings: Settings) -> None:
    """Run until a signal ends it; never returns. Raises OSError when it cannot begin."""
    if settings.request_log == STANDARD_OUTPUT and sys.stdout is None:
        raise OSError("request_log is -, but standard output is closed")
    fill_standard_streams()
    leave_quietly()
    ignore_hangups()
    set_up_logging(settings.log_level)
    check(settings)
    ports = [settings.port, *([settings.admin_port] if settings.admin_port is not None else [])]
    clients, *admin = bind(settings.host, ports)
    analyst = AnalystSockets.make()
    logger.info(
        "tokgauge listens on http://%s:%d, engine %s",
        in_url(settings.host), clients.getsockname()[1], settings.engine.upstream,
    )  # fmt: skip
    alive, held = os.pipe()  # the parent holds it, and the relays are told of its end
    relays_alive, held_by_relays = os.pipe()  # the analyst goes after the last relay
    for_relays = _handed_over(msgspec.json.encode(relay_settings(settings), enc_hook=str))
    analyst_plan = plan_of_analyst(settings, analyst, admin, alive=relays_alive)

    def relay(number: int) -> dict[str, Any]:
        plan = {
            "name": f"relay-{number}", "settings": for_relays, "alive": alive,
            "socket": clients.fileno(), "to_records": analyst.to_records,
            "to_pages": analyst.to_pages,
        }  # fmt: skip
        return {
            "name": f"relay {number}", "module": "tokgauge.serve.relay_process",
            "arguments": [json.dumps(plan)],
            "fds": [
                for_relays, alive, held_by_relays, clients.fileno(), analyst.to_records,
                analyst.to_pages,
            ],
        }  # fmt: skip

    parent = {
        "relays": [relay(number) for number in range(settings.workers)],
        "analyst": analyst_plan,
        "drain": settings.drain_delay + settings.drain_timeout,
        "close_when_draining": [clients.fileno()],
    }
    for descriptor in (
        alive, held, held_by_relays, for_relays, clients.fileno(), analyst.to_records,
        analyst.to_pages, *analyst_plan["fds"],
    ):  # fmt: skip
        os.set_inheritable(descriptor, True)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it was closed
            stream.flush()
    # What comes from here on waits until the parent asks for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    os.execv(  # noqa: S606 - ourselves, small: nothing of what was imported stays
        sys.executable, [sys.executable, "-m", "tokgauge.serve.parent", json.dumps(parent)]
    )


def plan_of_analyst(
    settings: Settings, sockets: AnalystSockets, admin: Sequence[socket.socket], *, alive: int
) -> dict[str, Any]:
    """The analyst, as `Child` takes it.

    admin: further sockets on which it shows its pages. alive: a pipe at whose end it ends.
    """
    content = _handed_over(pickle.dumps(settings))
    pages = [sock.fileno() for sock in (sockets.pages, *admin)]
    records = sockets.records.fileno()
    plan = {"settings": content, "alive": alive, "records": records, "pages": pages}
    return {
        "name": "analyst", "module": "tokgauge.serve.analyst_process",
        "arguments": [json.dumps(plan)], "fds": [content, alive, records, *pages],
    }  # fmt: skip


def relay_settings(settings: Settings) -> RelaySettings:
    """What a relay has to know of them."""
    engine = settings.engine
    names = {field.name for field in msgspec.structs.fields(RelaySettings)}
    values = {name: getattr(settings, name) for name in names if hasattr(settings, name)}
    return RelaySettings(
        **values, upstream=engine.upstream, upstream_host=engine.upstream_host,
        upstream_ca_file=engine.upstream_ca_file,
    )  # fmt: skip


def check(settings: Settings) -> None:
    """Raises OSError when something that the processes need is not there: said once, and here."""
    if settings.request_log is not None and settings.request_log != STANDARD_OUTPUT:
        with settings.request_log.open("ab"):
            pass
    engine = settings.engine
    EngineAddress.of(engine.upstream, ca_file=engine.upstream_ca_file).tls_context()
    if engine.calibration is not None:
        try:
            read_calibrations(engine.calibration)
        except CalibrationFileError as error:
            raise OSError(str(error)) from error
    if settings.otel:
        check_extra()


def _handed_over(content: bytes) -> int:
    """A file in memory, for children to read; not on a command line, which others can see."""
    descriptor = os.memfd_create("tokgauge")
    os.write(descriptor, content)
    return descriptor
