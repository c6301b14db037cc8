"""The manifests against the API's schemas, and what makes a pod drain without loss."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tokgauge.settings import load_settings

from tests.support.programs import program

BASE = Path(__file__).parents[2] / "deploy" / "kubernetes"
CONFIG = BASE.parents[1] / "config"
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((BASE / "kustomization.yaml").read_text())
RESOURCES: list[str] = KUSTOMIZATION["resources"]
CUSTOM = {"podmonitor.yaml", "prometheusrule.yaml"}


def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((BASE / name).read_text())
    return document


DEPLOYMENT = load("deployment.yaml")
POD = DEPLOYMENT["spec"]["template"]["spec"]
CONTAINERS = {container["name"]: container for container in POD["containers"]}
LABELS = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]


def environment(container: str) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in CONTAINERS[container]["env"]}


def found(pattern: str, text: str) -> str:
    """The group of the pattern's first match."""
    match = re.search(pattern, text)
    assert match is not None, pattern
    return match[1]


def test_the_base_lists_every_manifest() -> None:
    assert sorted(RESOURCES) == sorted(
        path.name for path in BASE.glob("*.yaml") if path.name != "kustomization.yaml"
    )
    assert KUSTOMIZATION["images"][0]["name"] == CONTAINERS["tokgauge"]["image"]


def test_kustomize_builds_the_base() -> None:
    done = subprocess.run(
        [program("kubectl"), "kustomize", str(BASE)], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    assert len(built) == len(RESOURCES)
    assert "image: ghcr.io/tokgauge/tokgauge:" in done.stdout


@pytest.mark.parametrize("name", sorted(set(RESOURCES) - CUSTOM))
@pytest.mark.parametrize("version", ["1.29", kubernetes_validate.latest_version()])
def test_manifests_follow_the_schemas(name: str, version: str) -> None:
    kubernetes_validate.validate(load(name), version, strict=True)


def test_selectors_meet_their_pods_and_ports() -> None:
    ports = {port["name"] for container in CONTAINERS.values() for port in container["ports"]}
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == LABELS
    service = load("service.yaml")["spec"]
    assert service["selector"] == LABELS
    assert {port["targetPort"] for port in service["ports"]} <= ports
    policy = load("networkpolicy.yaml")["spec"]
    assert policy["podSelector"]["matchLabels"] == LABELS
    assert [port["port"] for rule in policy["ingress"] for port in rule["ports"]] == ["http"]
    claims = {volume.get("persistentVolumeClaim", {}).get("claimName") for volume in POD["volumes"]}
    assert load("storage.yaml")["metadata"]["name"] in claims
    volumes = {volume["name"] for volume in POD["volumes"]}
    for container in CONTAINERS.values():
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_probes_ask_the_proxys_pages() -> None:
    tokgauge = CONTAINERS["tokgauge"]
    assert tokgauge["livenessProbe"]["httpGet"]["path"] == "/tokgauge/healthz"
    assert tokgauge["readinessProbe"]["httpGet"]["path"] == "/tokgauge/readyz"


def test_the_pod_drains_before_it_is_killed() -> None:
    settings = load_settings(None, environment("tokgauge"), {})
    drain = settings.drain_delay + settings.drain_timeout
    hook = CONTAINERS["vllm"]["lifecycle"]["preStop"]["exec"]["command"][-1]
    first = int(found(r"^sleep (\d+);", hook))
    looks = int(found(r"seq (\d+)", hook))
    assert first > settings.drain_delay, "vLLM must not look before accepting has ended"
    assert first + looks >= drain, "vLLM waits as long as answers may take"
    assert POD["terminationGracePeriodSeconds"] > first + looks
    probe = CONTAINERS["tokgauge"]["readinessProbe"]
    noticed = probe["periodSeconds"] * probe["failureThreshold"]
    assert settings.drain_delay > noticed, "no new connections when accepting ends"


@pytest.mark.parametrize(("running", "code"), [("0.0", 0), ("2.0", 1)])
def test_vllm_waits_while_requests_run(running: str, code: int) -> None:
    hook = CONTAINERS["vllm"]["lifecycle"]["preStop"]["exec"]["command"][-1]
    script = found(r"awk '([^']+)'", hook)
    page = (Path(__file__).parents[1] / "engine" / "pages" / "vllm_after.txt").read_text()
    page, replaced = re.subn(
        r"^(vllm:num_requests_running\{[^}]*\}) .*$", rf"\1 {running}", page, flags=re.MULTILINE
    )
    assert replaced == 1
    assert subprocess.run(["awk", script], input=page.encode(), check=False).returncode == code


def test_the_proxy_has_few_rights_and_no_writable_disk_but_tmp() -> None:
    context = CONTAINERS["tokgauge"]["securityContext"]
    assert context["runAsNonRoot"]
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    writable = [
        mount["mountPath"]
        for mount in CONTAINERS["tokgauge"]["volumeMounts"]
        if not mount.get("readOnly")
    ]
    assert writable == ["/tmp"]
    assert POD["enableServiceLinks"] is False


def test_the_pod_monitor_has_the_fields_of_its_definition() -> None:
    monitor = load("podmonitor.yaml")
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor")
    assert set(monitor["spec"]) == {"selector", "podMetricsEndpoints"}
    assert monitor["spec"]["selector"]["matchLabels"] == LABELS
    scraped = yaml.safe_load((CONFIG / "prometheus.yml").read_text())["scrape_configs"]
    endpoints = monitor["spec"]["podMetricsEndpoints"]
    for endpoint in endpoints:
        assert set(endpoint) == {"port", "path", "interval", "relabelings"}
        assert endpoint["port"] == "http"
    assert {item["path"]: item["relabelings"] for item in endpoints} == {
        job["metrics_path"]: [{"targetLabel": "job", "replacement": job["job_name"]}]
        for job in scraped
    }


def test_the_rule_resource_is_what_the_generator_writes() -> None:
    command = [sys.executable, str(BASE / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    resource = load("prometheusrule.yaml")
    assert (resource["apiVersion"], resource["kind"]) == (
        "monitoring.coreos.com/v1", "PrometheusRule",
    )  # fmt: skip
    sources = [
        yaml.safe_load((CONFIG / f).read_text()) for f in ("recording_rules.yml", "alerts.yml")
    ]
    assert resource["spec"] == {"groups": [group for file in sources for group in file["groups"]]}


def test_prometheus_accepts_the_rule_resource(tmp_path: Path) -> None:
    """Group names must differ in one resource, though not between the two files."""
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump(load("prometheusrule.yaml")["spec"]))
    done = subprocess.run(
        [program("promtool"), "check", "rules", str(file)], capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
