"""What every process of the proxy does at its start."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from types import FrameType

logger = logging.getLogger("tokgauge")


def set_up_logging(level: str) -> None:
    """Our lines on standard error; of libraries' only what is wrong."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # They report every start, stop and question; what matters of that is said here.
    for noisy in ("uvicorn", "httpx2"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))


def fill_standard_streams() -> None:
    """Open what is closed of standard input, output and error.

    Else the next socket gets the free number, and what somebody prints goes to a client.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def ignore_hangups() -> None:
    """SIGHUP (a closed terminal, a habit of reloading) cuts nobody's response."""

    def note(number: int, frame: FrameType | None) -> None:
        logger.warning("SIGHUP is ignored: settings are read at the start only")

    signal.signal(signal.SIGHUP, note)


def leave_quietly() -> None:
    """SIGTERM and SIGINT end the process in order as long as nothing better is set up for them."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))


def spare_the_collector() -> None:
    """Keep what has been loaded out of garbage collections from here on.

    Walking all modules takes 25 ms, in which no event would leave.
    """
    gc.collect()
    gc.freeze()


def begin_as_child(alive: int, level: str) -> None:
    """In a child of the parent process: take over signals, and drain when the parent is gone.

    alive: a pipe that ends when the last one who holds its other end is gone.
    """
    ignore_hangups()
    leave_quietly()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the parent waits for signals by their mask
    set_up_logging(level)

    def watch() -> None:
        os.read(alive, 1)
        logger.error("the parent process is gone: shutting down")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def read_all(descriptor: int) -> bytes:
    """The content of a file that was handed over, from its beginning; it may be read again."""
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0)
