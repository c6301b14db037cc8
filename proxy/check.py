"""What `tokgauge check` finds out: settings, engine, GPUs, ceiling inputs, and where each is from.

It looks with the proxy's own parts (settings, transport, NVML reader, ceiling inputs), so that what
it finds is what `tokgauge serve` would find. It generates one token to see whether the engine
accepts the wish for usage.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import httpx2
import msgspec
import pynvml

from proxy import ceiling_inputs, engine_metrics
from proxy.engine import EngineFacts
from proxy.engine_metrics import EngineReading
from proxy.gpu.bandwidth import gpu_bandwidth
from proxy.gpu.contention import judge_snapshot
from proxy.gpu.nvml import NvmlReader, in_host_pid_namespace
from proxy.gpu.readings import GpuReading, Snapshot
from proxy.model.ceiling import single_stream_ceiling
from proxy.model.kv import KvCache
from proxy.model.served import ServedModel, served_models
from proxy.model.weights import Basis, WeightsFound
from proxy.probe.question import Question
from proxy.probe.server import error_text
from proxy.settings import (
    ENVIRONMENT_PREFIX,
    Engine,
    Settings,
    SettingsError,
    flag_name,
    load_settings,
    option_fields,
)
from proxy.upstream import Upstream
from proxy.wire.answer import UNREADABLE
from proxy.wire.chat import ChatReader
from proxy.wire.injection import REFUSAL_STATUSES, refuses_injection
from proxy.wire.sse import EventReader

__all__ = ["Area", "Finding", "State", "check", "works"]

Area = Literal["settings", "engine", "gpu", "ceiling"]
State = Literal["ok", "warning", "missing"]
"""Missing: the proxy would not work. Warning: it works, and something it could tell is absent."""

_PAGE_SECONDS = 10.0
_TOKEN_SECONDS = 60.0
"""A queue may stand before the one token."""

_SERVICE_LINKS = ("tcp://", "udp://")
"""How Kubernetes' own TOKGAUGE_PORT begins, which is no setting (see settings.py)."""

_ANSWER_LIMIT = 4 * 1024 * 1024
_BASES: tuple[Basis, ...] = ("streamed", "checkpoint")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    text: for a person. source: where the value comes from. value: for a program, in base units.
    """

    area: Area
    name: str
    state: State
    text: str
    source: str | None = None
    value: Any = None


@dataclass(slots=True)
class _EngineSeen:
    """What the engine told."""

    findings: list[Finding] = field(default_factory=list)
    models: tuple[ServedModel, ...] = ()
    reading: EngineReading | None = None

    @property
    def base(self) -> ServedModel | None:
        return next((card for card in self.models if card.parent is None), None)


def works(findings: list[Finding]) -> bool:
    """Whether the proxy would work: nothing necessary is missing."""
    return all(finding.state != "missing" for finding in findings)


def check(
    config: Path | None, environment: Mapping[str, str], flags: Mapping[str, object]
) -> list[Finding]:
    """Look at everything, in order. Blocks for the engine's answers; never raises."""
    try:
        settings = load_settings(config, environment, flags)
    except SettingsError as error:
        return [Finding("settings", "settings", "missing", str(error))]
    engine = settings.engine
    findings = list(_settings(settings, config, environment, flags))
    seen = asyncio.run(_look_at_engine(settings))
    findings += seen.findings
    snapshot = _snapshot() if settings.nvml else None
    findings += _gpu_findings(snapshot, engine)
    findings += _ceiling_findings(engine, seen, _engine_gpus(snapshot, engine))
    return findings


# settings


def _settings(
    settings: Settings,
    config: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, object],
) -> Iterator[Finding]:
    written = _names_in(config)
    values = {**settings.engine.model_dump(mode="json"), **settings.model_dump(mode="json")}
    for name in option_fields():
        variable = ENVIRONMENT_PREFIX + name.upper()
        if name in flags:
            source = f"flag {flag_name(name)}"
        elif variable in environment and not environment[variable].startswith(_SERVICE_LINKS):
            source = f"environment variable {variable}"
        else:
            source = str(config) if name in written else "default"
        value = values[name]
        yield Finding("settings", name, "ok", _shown(value), source, value)


def _names_in(config: Path | None) -> frozenset[str]:
    """Names of the settings that the file sets (it has been read before without an error)."""
    if config is None:
        return frozenset()
    with config.open("rb") as file:
        content = tomllib.load(file)
    engines = content.get("engines") or [{}]
    return frozenset(content) | frozenset(engines[0])


def _shown(value: Any) -> str:
    if value is None or value == []:
        return "not set"
    if isinstance(value, list):
        return ", ".join(f"{part:g}" if isinstance(part, float) else str(part) for part in value)
    return str(value)


# engine


async def _look_at_engine(settings: Settings) -> _EngineSeen:
    seen = _EngineSeen()
    address = settings.engine.upstream
    try:
        upstream = Upstream(settings, EngineFacts(settings.engine.models))
    except OSError as error:  # of the file with certificates; ssl.SSLError is one
        seen.findings.append(
            Finding("engine", "reachable", "missing", f"upstream_ca_file: {error}")
        )
        return seen
    asking = _Asking(upstream, settings)
    try:
        try:
            status, body = await asking.get(b"/v1/models")
        except (httpx2.HTTPError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            seen.findings.append(
                Finding(
                    "engine",
                    "reachable",
                    "missing",
                    f"{address} does not answer ({reason}): is the engine running, and are host "
                    "and port right?",
                    address,
                    False,
                )
            )
            return seen
        version = await _version(asking)
        told = "its version is not told" if version is None else f"version {version}"
        seen.findings.append(
            Finding("engine", "reachable", "ok", f"{address} answers; {told}", address, version)
        )
        _note_models(seen, settings.engine, status, body)
        await _note_metrics(seen, asking)
        seen.findings.append(await _injection(asking, settings, seen))
    finally:
        await upstream.transport.aclose()
    return seen


class _Asking:
    """Requests of the check's own, on the proxy's way to the engine."""

    def __init__(self, upstream: Upstream, settings: Settings) -> None:
        self._upstream = upstream
        self._key = settings.engine.api_key

    async def get(self, target: bytes) -> tuple[int, bytes]:
        """Status and body. Raises httpx2's errors and TimeoutError."""
        return await self._send("GET", target, b"", _PAGE_SECONDS)

    async def post(self, target: bytes, body: bytes) -> tuple[int, bytes]:
        """Status and body of a generating request. Raises as `get` does."""
        return await self._send("POST", target, body, _TOKEN_SECONDS)

    async def _send(
        self, method: str, target: bytes, body: bytes, limit: float
    ) -> tuple[int, bytes]:
        headers = [(b"host", self._upstream.own_host), (b"accept", b"*/*")]
        if body:
            headers += [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
            ]
        if self._key is not None:
            headers.append((b"authorization", b"Bearer " + self._key.get_secret_value().encode()))
        request = self._upstream.request(method, target, headers, httpx2.ByteStream(body))
        async with asyncio.timeout(limit):
            response = await self._upstream.send(request)
            stream = response.stream
            assert isinstance(stream, httpx2.AsyncByteStream)  # noqa: S101
            answer = b""
            try:
                async for piece in stream:
                    answer += piece
                    if len(answer) > _ANSWER_LIMIT:
                        raise httpx2.ReadError("the answer is too large")
            finally:
                await stream.aclose()
        return response.status_code, answer


async def _version(asking: _Asking) -> str | None:
    try:
        status, body = await asking.get(b"/version")
        told: Any = msgspec.json.decode(body) if status == 200 else None
    except (httpx2.HTTPError, TimeoutError, *UNREADABLE):
        return None
    version = told.get("version") if isinstance(told, dict) else None
    return version if isinstance(version, str) else None


def _note_models(seen: _EngineSeen, engine: Engine, status: int, body: bytes) -> None:
    named = "their names can be set with models"
    if status == 200:
        try:
            seen.models = served_models(msgspec.json.decode(body))
        except UNREADABLE:
            seen.models = ()
    if not seen.models:
        if status in (401, 403):
            text = f"GET /v1/models wants a key ({status}): set api_key, or {named}"
        elif status != 200:
            text = f"GET /v1/models answers {status}: {named}"
        else:
            text = f"GET /v1/models lists none: {named}"
        state: State = "ok" if engine.models else "warning"
        seen.findings.append(Finding("engine", "models", state, text, "GET /v1/models"))
        return
    for card in seen.models:
        length = card.max_model_len
        text = "context length not told" if length is None else f"context of {length} tokens"
        if card.parent is not None:
            text += f", adapter of {card.parent}"
        seen.findings.append(
            Finding(
                "engine",
                f"model {card.id}",
                "ok",
                text,
                "GET /v1/models",
                {"id": card.id, "root": card.root, "max_model_len": length, "parent": card.parent},
            )
        )


async def _note_metrics(seen: _EngineSeen, asking: _Asking) -> None:
    try:
        status, page = await asking.get(b"/metrics")
    except (httpx2.HTTPError, TimeoutError) as error:
        status, page = 0, str(error).encode()
    reading = engine_metrics.read(page, monotonic()) if status == 200 else None
    if reading is not None and reading.kind is not None:
        seen.reading = reading
        finding = Finding(
            "engine",
            "metrics",
            "ok",
            f"{reading.kind}: its steps, batch and KV cache can be read",
            "GET /metrics",
            reading.kind,
        )
    else:
        why = f"answers {status}" if reading is None else reading.problem or "names no known engine"
        finding = Finding(
            "engine",
            "metrics",
            "warning",
            f"GET /metrics {why}: steps are then counted from the streams that pass the proxy",
            "GET /metrics",
        )
    seen.findings.append(finding)


async def _injection(asking: _Asking, settings: Settings, seen: _EngineSeen) -> Finding:
    def finding(state: State, text: str, value: bool | None) -> Finding:
        return Finding("engine", "usage injection", state, text, "one request for one token", value)

    counted = "tokens of streams are then counted from their events"
    if not settings.inject_usage:
        return finding("ok", f"switched off by inject_usage; {counted}", None)
    base = seen.base
    model = base.id if base is not None else next(iter(settings.engine.models), None)
    if model is None:
        return finding("warning", "not tried: no model has a name", None)
    question = Question(model, "Hi", 1)
    while True:
        try:
            status, body = await asking.post(question.path.encode(), question.body(stream=True))
        except (httpx2.HTTPError, TimeoutError) as error:
            reason = str(error) or f"no answer within {_TOKEN_SECONDS:g} s"
            return finding("warning", f"not known: {reason}", None)
        if status == 200:
            break
        if status in REFUSAL_STATUSES and refuses_injection(body):
            return finding("warning", f"the engine refuses stream_options; {counted}", False)
        changed = question.without_what_was_refused(body)
        if changed is None:
            return finding("warning", f"not known: it answers {status}: {error_text(body)}", None)
        question = changed[0]
    reader = ChatReader()
    for event in EventReader().feed(body):
        reader.event(*event)
    if reader.usage.completion is None:
        return finding("warning", f"accepted, but the engine sends no usage; {counted}", False)
    return finding("ok", "accepted: streams report their tokens", True)


# GPUs


def _snapshot() -> Snapshot:
    reader = NvmlReader()
    try:
        return reader.read()
    finally:
        reader.close()


def _engine_gpus(snapshot: Snapshot | None, engine: Engine) -> tuple[GpuReading, ...]:
    """The GPUs whose bandwidth counts, chosen as the proxy chooses them."""
    if snapshot is None:
        return ()
    used = {
        found.gpu for found in judge_snapshot(snapshot, ceiling_inputs.engine_on_gpu(engine), None)
    }
    return tuple(gpu for gpu in snapshot.gpus if gpu.index in used)


def _gpu_findings(snapshot: Snapshot | None, engine: Engine) -> Iterator[Finding]:
    lacks = "contention stays unknown"
    if engine.gpu is None and engine.gpu_bandwidth is None:
        lacks = "an engine on another machine needs the setting gpu or gpu_bandwidth"
    if snapshot is None:
        yield Finding("gpu", "NVML", "ok", "switched off by nvml = false", "settings")
        return
    if not snapshot.up or not snapshot.gpus:
        reason = snapshot.problem or "no GPU"
        yield Finding("gpu", "NVML", "warning", f"no GPU to see here ({reason}): {lacks}")
        return
    count = len(snapshot.gpus)
    driver = _driver_version()
    yield Finding(
        "gpu",
        "NVML",
        "ok",
        f"{count} GPU{'s' if count > 1 else ''}, driver {driver or 'version not told'}",
        "NVML",
        {"driver": driver, "gpus": count},
    )
    contention = {
        found.gpu: found
        for found in judge_snapshot(snapshot, ceiling_inputs.engine_on_gpu(engine), None)
    }
    for gpu in snapshot.gpus:
        yield _card_finding(gpu, engine)
        yield _processes_finding(gpu)
        found = contention.get(gpu.index)
        if found is not None:
            state: State = "warning" if found.state == "unknown" else "ok"
            yield Finding(
                "gpu",
                f"GPU {gpu.index} contention",
                state,
                f"{found.state.replace('_', ' ')}: {found.evidence}",
                "NVML",
                found.state,
            )
    if not in_host_pid_namespace():
        yield Finding(
            "gpu",
            "process names",
            "warning",
            "this is not the host's pid namespace, so processes have no names: start the container "
            "with --pid=host, or set engine_pids",
        )


def _driver_version() -> str | None:
    try:
        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, UnicodeError):
        return None


def _card_finding(gpu: GpuReading, engine: Engine) -> Finding:
    total, used = gpu.memory_total_bytes, gpu.memory_used_bytes
    memory = "memory not told" if total is None else f"{total / 2**30:.1f} GiB"
    if total is not None and used is not None:
        memory += f", {used / 2**30:.1f} in use"
    found = gpu_bandwidth(
        gpu,
        settings_value=engine.gpu_bandwidth,
        measured_value=engine.gpu_measured_bandwidth,
    )
    known = found.bytes_per_second is not None
    speed = f"{(found.bytes_per_second or 0) / 1e9:.0f} GB/s" if known else found.explanation
    text = f"{gpu.name or 'name not told'}, {memory}, {speed}"
    if gpu.lost:
        text = "the driver has lost this GPU"
    if found.warning is not None:
        text += f" ({found.warning})"
    return Finding(
        "gpu",
        f"GPU {gpu.index}",
        "ok" if known and found.warning is None and not gpu.lost else "warning",
        text,
        found.explanation if known else None,
        {
            "name": gpu.name,
            "uuid": gpu.uuid,
            "memory_total_bytes": total,
            "memory_used_bytes": used,
            "bandwidth_bytes_per_second": found.bytes_per_second,
            "bandwidth_source": found.source,
        },
    )


def _processes_finding(gpu: GpuReading) -> Finding:
    processes = gpu.processes
    if processes is None:
        text = "NVML cannot list them"
    elif not processes:
        text = "none listed"
    else:
        unnamed = sum(process.name is None for process in processes)
        text = f"{len(processes)} visible"
        if unnamed:
            text += f", {unnamed} without a name"
    return Finding(
        "gpu",
        f"GPU {gpu.index} processes",
        "warning" if processes is None else "ok",
        text,
        "NVML",
        None if processes is None else len(processes),
    )


# ceiling


def _ceiling_findings(
    engine: Engine, seen: _EngineSeen, gpus: tuple[GpuReading, ...]
) -> Iterator[Finding]:
    bandwidth = ceiling_inputs.bandwidth(engine, gpus)
    total = bandwidth.bytes_per_second
    yield Finding(
        "ceiling",
        "bandwidth",
        "warning" if total is None or bandwidth.warning is not None else "ok",
        f"unknown: {bandwidth.explanation}; set gpu or gpu_bandwidth"
        if total is None
        else f"{total / 1e9:.0f} GB/s" + (f" ({bandwidth.warning})" if bandwidth.warning else ""),
        None if total is None else bandwidth.explanation,
        total,
    )
    base = seen.base
    found = ceiling_inputs.model_bytes(
        engine,
        base.root if base is not None else None,
        seen.reading.kv_cache_dtype if seen.reading is not None else None,
    )
    weights, kv = found.weights, found.kv
    if isinstance(weights, WeightsFound):
        for basis in _BASES:
            yield _weights_finding(weights, basis)
    else:
        yield Finding(
            "ceiling", "weights", "warning",
            f"unknown: {weights.reason}; set model_path, or weights_bytes",
        )  # fmt: skip
    if isinstance(kv, KvCache):
        yield Finding(
            "ceiling", "KV cache", "ok", f"{kv.bytes_per_token:.0f} bytes a token", kv.source,
            kv.bytes_per_token,
        )  # fmt: skip
    else:
        yield Finding(
            "ceiling", "KV cache", "warning", f"unknown: {kv.reason}; set {kv.what_to_set}"
        )
    for basis in _BASES:
        read = weights.bytes_per_step(1.0, basis) if isinstance(weights, WeightsFound) else None
        if total is not None and read is not None:
            rate = single_stream_ceiling(total, read)
            yield Finding(
                "ceiling",
                f"ceiling, {basis}",
                "ok",
                f"{rate:.1f} tok/s for one stream with a short context",
                f"{total / 1e9:.0f} GB/s / {read / 1e9:.2f} GB",
                rate,
            )


def _weights_finding(weights: WeightsFound, basis: Basis) -> Finding:
    read = weights.bytes_per_step(1.0, basis)
    source = weights.streamed_source if basis == "streamed" else weights.checkpoint_source
    meaning = "read per token" if basis == "streamed" else "in the whole checkpoint"
    if read is None:
        why = weights.streamed_unknown_because or "not told"
        field_name = "weights_bytes" if basis == "streamed" else "checkpoint_bytes"
        # The whole checkpoint is only the rule of thumb: nothing depends on it.
        state: State = "warning" if basis == "streamed" else "ok"
        text = f"unknown: {why if basis == 'streamed' else 'not told'}; set {field_name}"
        return Finding("ceiling", f"weights, {basis}", state, text)
    return Finding(
        "ceiling", f"weights, {basis}", "ok", f"{read / 1e9:.2f} GB {meaning}", source, read
    )
