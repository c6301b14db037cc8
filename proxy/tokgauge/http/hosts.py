"""Under which names the proxy's own pages may be read."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable


class AllowedHosts:
    """Under which names the pages may be read.

    A website can give this machine a name of its own and have a visitor's browser read pages under
    it (DNS rebinding). It cannot do so with an IP address, so those are always allowed, as are
    localhost and the address that the proxy listens on. names: further ones; `*` allows any.
    """

    def __init__(self, listens_on: str, names: Iterable[str]) -> None:
        self._names = {_bare(name) for name in ("localhost", listens_on, *names)}

    def allows(self, host: str) -> bool:
        """Whether a Host header, whose port does not matter, is one of them."""
        name = _bare(host)
        if name in self._names or "*" in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


_PORT = re.compile(r":\d*$")


def _bare(host: str) -> str:
    """A host in lower case, without port, brackets and the root's dot."""
    host = host.strip(" \t").lower()
    if host.count(":") == 1 or host.startswith("["):
        host = _PORT.sub("", host)
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1]
    return host.removesuffix(".")
