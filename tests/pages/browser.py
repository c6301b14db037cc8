"""A real browser that loads one page and is kept to the machine itself."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.programs import program

_VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})


class Pages(BaseHTTPRequestHandler):
    """What a test serves by itself, without a line on standard error for each request."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited
        pass


@contextmanager
def served_by(handler: type[Pages]) -> Iterator[str]:
    """The address at which it answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Seen(HTMLParser):
    """What the browser made of the page: its elements and texts, and what it asked for."""

    dom: str
    requests: list[str]
    tags: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    hidden: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[str] = []
        self._by_id: dict[str, str] = {}
        self.feed(self.dom)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = dict(attrs)
        name = of.get("id") or ""
        self.tags.append(tag)
        if name and "hidden" in of:
            self.hidden.add(name)
        if tag not in _VOID:
            self._open.append(name)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        for name in filter(None, self._open):
            self._by_id[name] = self._by_id.get(name, "") + data

    def text(self, name: str) -> str:
        """All text inside the element of this id."""
        return self._by_id.get(name, "")


def look_at(url: str, directory: Path) -> Seen:
    """Load the page, let its clock run for five seconds, and read what stands there then."""
    log = directory / "requests.json"
    ended = subprocess.run(
        [
            program("chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", f"--user-data-dir={directory / 'user'}",
            # The browser's own calls to its maker find no way out either.
            "--no-proxy-server", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            "--virtual-time-budget=5000", f"--log-net-log={log}", "--dump-dom", url,
        ],
        env={"PATH": os.environ["PATH"], "HOME": str(directory), "LANG": "C.UTF-8"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    origin = "/".join(url.split("/")[:3])
    events = (event.get("params", {}) for event in json.loads(log.read_text())["events"])
    asked = [event for event in events if "method" in event and "initiator" in event]
    requests = [
        event["url"]
        for event in asked
        # By the page, or of its server; the rest is the browser's own.
        if event["initiator"] == origin or event["url"].startswith(origin)
    ]
    return Seen(ended.stdout, requests)
