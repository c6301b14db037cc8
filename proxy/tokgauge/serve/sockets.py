"""The sockets that processes are given: for clients, for pages, for records."""

from __future__ import annotations

import os
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

_BACKLOG = 4096


def bind(host: str, ports: list[int]) -> list[socket.socket]:
    """Listen on these ports; 0 picks a free one. Raises OSError that says where it failed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sockets: list[socket.socket] = []
    for port in ports:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sockets.append(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except (OSError, UnicodeError) as error:
            for opened in sockets:
                opened.close()
            why = error.strerror if isinstance(error, OSError) else error
            raise OSError(f"cannot listen on {in_url(host)}:{port}: {why}") from error
        sock.listen(_BACKLOG)
    return sockets


def in_url(host: str) -> str:
    """A host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


@dataclass(frozen=True)
class AnalystSockets:
    """The analyst's two Unix sockets, and for each of them a descriptor that leads to it.

    They are made before any analyst, and outlive it: what relays send while it is started again
    waits in them. Only who has been given the descriptor can connect: the names in the file system
    are gone at once, so nothing is left behind, in whatever way the proxy ends.
    """

    records: socket.socket
    pages: socket.socket
    to_records: int
    to_pages: int

    @classmethod
    def make(cls) -> AnalystSockets:
        """Listen. Raises OSError."""
        with tempfile.TemporaryDirectory(prefix="tokgauge-") as directory:
            records, to_records = _listen(Path(directory, "records"))
            pages, to_pages = _listen(Path(directory, "pages"))
        return cls(records, pages, to_records, to_pages)

    def close(self) -> None:
        """Nobody can connect any longer."""
        for sock in (self.records, self.pages):
            sock.close()
        for descriptor in (self.to_records, self.to_pages):
            os.close(descriptor)


def path_of(descriptor: int) -> str:
    """A path that leads where this descriptor of the own process leads."""
    return f"/proc/self/fd/{descriptor}"


def _listen(path: Path) -> tuple[socket.socket, int]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(path))
    sock.listen(_BACKLOG)
    return sock, os.open(path, os.O_PATH)
