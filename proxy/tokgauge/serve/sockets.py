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
    """The analyst's two Unix sockets, in a directory that only this user can enter.

    They are made before any analyst, and outlive it: what relays send while it is started again
    waits in them.
    """

    directory: Path
    records: socket.socket
    pages: socket.socket

    @classmethod
    def make(cls) -> AnalystSockets:
        """Listen in a fresh directory. Raises OSError."""
        directory = Path(tempfile.mkdtemp(prefix="tokgauge-"))
        return cls(directory, _listen(directory / "records"), _listen(directory / "pages"))

    @property
    def records_path(self) -> str:
        return str(self.directory / "records")

    @property
    def pages_path(self) -> str:
        return str(self.directory / "pages")

    def remove(self) -> None:
        """Close them and remove the directory."""
        for sock in (self.records, self.pages):
            sock.close()
        for path in (self.records_path, self.pages_path):
            os.unlink(path)
        self.directory.rmdir()


def _listen(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(path))
    sock.listen(128)
    return sock
