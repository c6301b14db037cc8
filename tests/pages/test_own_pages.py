"""The proxy's own pages: under which names they are shown, and that they repeat nothing."""

from collections.abc import Callable

import pytest
from tokgauge.http.hosts import AllowedHosts

from tests.conftest import Rig
from tests.http.support import PATH, assert_usable, echoed
from tests.support.client import RawClient, Response, request

PAGES = ["metrics", "status", "live", "healthz", "readyz", "nothing", ""]


def page(port: int, path: str, host: str | None, version: str = "HTTP/1.1") -> Response:
    head = f"GET {path} {version}\r\n" + (f"Host: {host}\r\n" if host is not None else "")
    with RawClient(port, 5) as client:
        client.send(head.encode("latin-1") + b"\r\n")
        return client.read_response()


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_not_shown_under_a_strangers_name(rig: Rig, name: str) -> None:
    for host in ("evil.test", "evil.test:8080", "127.0.0.1.evil.test", "localhost.evil.test"):
        response = page(rig.port, f"/tokgauge/{name}", host)
        assert response.status == 421
        error = response.json()
        assert isinstance(error, dict)
        assert "allowed_hosts" in error["error"]["message"]
        assert host.partition(":")[0] in error["error"]["message"]
        assert b"tokgauge_" not in response.body


@pytest.mark.parametrize("name", ["metrics", "status", "live", "healthz", "readyz"])
@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:1", "localhost", "LocalHost:8080", "localhost.", "10.0.7.3:8080",
     "[::1]:8080", "[fe80::1]", "192.168.1.1"],
)  # fmt: skip
def test_addresses_and_loopback_names_are_always_allowed(rig: Rig, name: str, host: str) -> None:
    """Kubernetes' probes come to the pod's address; no website can rebind an address."""
    assert page(rig.port, f"/tokgauge/{name}", host).status == 200


def test_http_1_0_needs_no_host(rig: Rig) -> None:
    """A browser always sends one."""
    assert page(rig.port, "/tokgauge/healthz", None, "HTTP/1.0").status == 200


def test_names_can_be_allowed(new_rig: Callable[..., Rig]) -> None:
    rig = new_rig(allowed_hosts="proxy, gpu-7.lan", admin_port=0)
    for port in (rig.port, rig.proxy.admin_port):
        assert port is not None
        for host in ("proxy:8080", "PROXY", "gpu-7.lan", "127.0.0.1"):
            assert page(port, "/tokgauge/metrics", host).status == 200
        assert page(port, "/tokgauge/metrics", "evil.test").status == 421
    assert rig.proxy.admin_port is not None
    assert page(rig.proxy.admin_port, "/v1/models", "evil.test").status == 421


def test_the_engines_paths_are_for_any_name(rig: Rig) -> None:
    echoed(rig)
    with rig.client() as client:
        client.send(request("GET", PATH, host="evil.test"))
        assert client.read_response().status == 200
        client.send(request("GET", "/tokgauge/metrics", host="evil.test"))
        assert client.read_response().status == 421
        assert_usable(client)


@pytest.mark.parametrize(
    ("listens_on", "host", "allowed"),
    [
        ("127.0.0.1", "gpu7", False),
        ("gpu7", "gpu7", True),
        ("gpu7", "GPU7:8080", True),
        ("gpu7", "gpu7.lan", False),
        ("::", "[2001:db8::1]:80", True),
        ("0.0.0.0", "2001:db8::1", True),
        ("127.0.0.1", "1.2.3.4.5", False),
        ("127.0.0.1", "1.2.3.4:x", False),
        ("127.0.0.1", "", False),
        ("127.0.0.1", "[evil.test]", False),
        ("127.0.0.1", "evil.test:127.0.0.1", False),
        ("127.0.0.1", "127.0.0.1@evil.test", False),
        ("127.0.0.1", "[::1].evil.test", False),
        ("127.0.0.1", "localhost:80:evil.test", False),
        ("127.0.0.1", "0x7f.1", False),
    ],
)
def test_which_hosts_are_allowed(listens_on: str, host: str, allowed: bool) -> None:
    assert AllowedHosts(listens_on, ()).allows(host) is allowed
    assert AllowedHosts(listens_on, ("*",)).allows(host)


@pytest.mark.parametrize("name", PAGES[:-1])
def test_a_slash_too_many_redirects_nowhere(rig: Rig, name: str) -> None:
    for path in (f"/tokgauge/{name}/", f"/tokgauge/{name}/?x=evil.test", f"/tokgauge/{name}//"):
        response = page(rig.port, path, "10.0.0.1")
        assert response.status == 404
        assert response.values("location") == []
        assert b"10.0.0.1" not in response.head + response.body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_pages_are_only_for_looking(rig: Rig, method: str) -> None:
    echoed(rig)
    with rig.client() as client:
        client.send(request(method, "/tokgauge/metrics", [], b"x" * 100_000))
        assert client.read_response().status == 405
        assert_usable(client)
