"""deploy/docker-compose.yml against the schema of the Compose specification, and what it mounts."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tokgauge.http.hosts import AllowedHosts
from tokgauge.settings import Settings, load_settings

pytestmark = pytest.mark.socketless

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROXIES = {"gpu": SERVICES["tokgauge"], "demo": SERVICES["tokgauge-demo"]}


def test_it_follows_the_compose_specification() -> None:
    schemas = files("check_jsonschema") / "builtin_schemas" / "vendor"
    jsonschema.validate(COMPOSE, json.loads((schemas / "compose-spec.json").read_text()))


@pytest.mark.parametrize("profile", ["gpu", "demo"])
def test_a_profile_is_complete(profile: str) -> None:
    members = {name for name, service in SERVICES.items() if profile in service["profiles"]}
    assert {"prometheus", "alertmanager", "grafana"} < members
    for name in members:
        assert set(SERVICES[name].get("depends_on", [])) <= members, name
    upstream = PROXIES[profile]["environment"]["TOKGAUGE_UPSTREAM"]
    assert upstream.removeprefix("http://").partition(":")[0] in members


def test_mounted_files_exist() -> None:
    volumes = set(COMPOSE["volumes"])
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in volumes or (DEPLOY / source).exists(), (name, source)


def test_ports_are_open_on_loopback_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


@pytest.mark.parametrize("profile", ["gpu", "demo"])
def test_the_proxy_starts_with_these_settings_and_can_drain(profile: str) -> None:
    service = PROXIES[profile]
    settings: Settings = load_settings(None, service["environment"], {})
    grace = float(service["stop_grace_period"].removesuffix("s"))
    assert grace > settings.drain_delay + settings.drain_timeout
    assert service["read_only"]
    assert service["tmpfs"] == ["/tmp"]


def test_prometheus_is_configured_as_in_config_but_for_the_addresses() -> None:
    here = (DEPLOY / "compose" / "prometheus.yml").read_text()
    aliases = {
        alias for proxy in PROXIES.values() for alias in proxy["networks"]["default"]["aliases"]
    }
    assert aliases == {"proxy"}
    there = here.replace("proxy:8080", "127.0.0.1:8080").replace(
        "alertmanager:9093", "127.0.0.1:9093"
    )
    assert here != there
    assert yaml.safe_load(there) == yaml.safe_load((ROOT / "config/prometheus.yml").read_text())
    mounted = {volume.split(":")[1] for volume in SERVICES["prometheus"]["volumes"]}
    for rules in yaml.safe_load(here)["rule_files"]:
        assert f"/etc/prometheus/{rules}" in mounted


@pytest.mark.parametrize("profile", ["gpu", "demo"])
def test_prometheus_may_see_the_pages_under_the_name_that_it_uses(profile: str) -> None:
    settings: Settings = load_settings(None, PROXIES[profile]["environment"], {})
    prometheus = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text())
    allowed = AllowedHosts(settings.host, settings.allowed_hosts)
    for job in prometheus["scrape_configs"]:
        for static in job["static_configs"]:
            assert all(map(allowed.allows, static["targets"]))
