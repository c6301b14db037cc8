"""Where the engine is, as the settings say it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import httpx2

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """url: as it is shown. host, port, tls: where to connect. prefix: the path that stands before
    every target. host_header: what `Host` says instead of the client's; None keeps that. own_host:
    what `Host` says in requests that have none of their own.
    """

    url: str
    host: str
    port: int
    tls: bool
    prefix: bytes
    host_header: bytes | None
    own_host: bytes
    ca_file: Path | None

    @classmethod
    def of(
        cls, url: str, *, host_header: str | None = None, ca_file: Path | None = None
    ) -> EngineAddress:
        """Read a checked URL: http or https, a host, no user, query or fragment."""
        parsed = httpx2.URL(url)
        named = host_header.encode() if host_header else None
        tls = parsed.scheme == "https"
        return cls(
            url=url,
            host=parsed.raw_host.decode("ascii"),
            port=parsed.port or _PORTS[parsed.scheme],
            tls=tls,
            prefix=parsed.raw_path.rstrip(b"/"),
            host_header=named or (parsed.netloc if tls else None),
            own_host=named or parsed.netloc,
            ca_file=ca_file,
        )

    def tls_context(self) -> ssl.SSLContext | None:
        """What certificates are checked with; None without TLS.

        Raises OSError when the file with certificates cannot be used.
        """
        if not self.tls:
            return None
        context = ssl.create_default_context()
        if self.ca_file is not None:
            try:
                context.load_verify_locations(self.ca_file)
            except OSError as error:  # ssl.SSLError is one
                raise OSError(f"upstream_ca_file {self.ca_file} cannot be used: {error}") from error
        return context
