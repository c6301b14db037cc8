"""An engine behind TLS, with certificates of one's own: the file reaches all processes."""

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from tests.support.client import fetch
from tests.support.process import serving


class Models(BaseHTTPRequestHandler):
    """Lists one model."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = b'{"object":"list","data":[{"id":"qwen","object":"model"}]}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Address and file with the certificates to trust."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Models)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}", file
    server.shutdown()
    thread.join()
    server.server_close()


def test_relay_and_analyst_trust_the_file(engine: tuple[str, Path]) -> None:
    url, file = engine
    with serving(url, "--upstream-ca-file", str(file)) as proxy:  # ready: the analyst has asked
        assert fetch(proxy.port, "GET", "/v1/models").status == 200
        page = fetch(proxy.port, "GET", "/tokgauge/metrics").body.decode()
        assert f'tokgauge_upstream_up{{upstream="{url}"}} 1.0' in page
