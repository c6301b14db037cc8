"""Settings: one model, filled from a TOML file, the environment and flags, in that order.

Flags win over the environment, the environment wins over the file. A wrong name or value is refused
with its name, the place where it was written and what would be accepted.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
import string
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tokgauge.quantities import BANDWIDTHS, BYTES, COUNTS, read_quantity

ENVIRONMENT_PREFIX = "TOKGAUGE_"

# A Kubernetes Service named "tokgauge" makes the kubelet inject TOKGAUGE_PORT=tcp://10.0.0.7:8080
# and its relatives into every pod of the namespace. They are not settings.
CONFIG_VARIABLE = "TOKGAUGE_CONFIG"
"""Names the settings file; it is read by the commands and is no setting itself."""

_LONGEST_SHOWN = 200

_SERVICE_LINK = re.compile(r"TOKGAUGE_(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)")

DURATION_BUCKETS = (
    0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
    2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip


class SettingsError(Exception):
    """Settings that cannot be used; the text says what, where, and what would be accepted."""


def engine_url(value: str) -> str:
    """An engine's address without the slash at its end. Raises ValueError for anything else."""
    refusal = "accepted: an address such as http://127.0.0.1:8000"
    try:
        parts = urlsplit(value)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        raise ValueError(refusal) from None
    usable = parts.scheme in ("http", "https") and parts.hostname and port_is_valid
    if not usable or re.search(r"[\s\x00-\x1f\x7f\\<>^`{|}\"]", value):
        raise ValueError(refusal)
    if parts.query or parts.fragment or parts.username is not None:
        raise ValueError("accepted: scheme, host, port and path only (no user, query or fragment)")
    _resolvable(parts.hostname)
    without = re.sub(r"/v1(/.*)?$", "", value)
    if without != value:
        raise ValueError(f"accepted: {without} (clients' paths begin with /v1 themselves)")
    return value.rstrip("/")


def _resolvable(name: str | None) -> str:
    """Refuse what cannot be a host's name or address."""
    try:
        (name or "").encode("idna")
    except UnicodeError as error:
        raise ValueError(f"accepted: the name or address of a host ({error})") from error
    return name or ""


def _listening(value: str) -> str:
    if value.startswith("[") and value.endswith("]"):
        value = value[1:-1]
    if re.search(r"[\s/\[\]@]", value):
        raise ValueError("accepted: a name or an address such as 127.0.0.1, ::1 or 0.0.0.0")
    return _resolvable(value)


def _host_header(value: str) -> str:
    if not re.fullmatch(r"[\w.~%!$&'()*+,;=:\[\]-]+", value, re.ASCII):
        raise ValueError("accepted: a host with or without a port, such as engine:8000")
    return value


def _key(value: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[!-~]+", value.get_secret_value()):
        raise ValueError("accepted: printable ASCII without blanks")
    return value


def _trimmed(value: object) -> object:
    """What was pasted or read from a file often has a blank or a line end too many."""
    if isinstance(value, (list, tuple)):
        return [_trimmed(part) for part in value]
    if not isinstance(value, str):
        return value
    text = value.strip(string.whitespace + "\ufeff\u200b\u00a0")
    if not text.isprintable():
        raise ValueError("accepted: one line of printable characters")
    return text


def _from_commas(value: object) -> object:
    """Environment and flags write a list as `a,b,c`."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _rising(value: tuple[float, ...]) -> tuple[float, ...]:
    if not value or any(b <= a for a, b in itertools.pairwise(value)):
        raise ValueError("accepted: one or more numbers, each larger than the one before")
    return value


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"accepted: a regular expression ({error})") from error
    return value


class _Trimming(BaseModel):
    """Trims every text before it is looked at."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _trim(cls, value: object, info: ValidationInfo) -> object:
        trimmed = _trimmed(value)
        is_list = isinstance(cls.model_fields[info.field_name or ""].default, tuple)
        if trimmed == "" and not is_list:
            raise ValueError("accepted: a value; leave the setting out for its default")
        return trimmed


def _json_object(value: str) -> str:
    try:
        found = json.loads(value)
    except ValueError as error:
        raise ValueError(f"accepted: a JSON object ({error})") from error
    if not isinstance(found, dict):
        raise ValueError("accepted: a JSON object")
    return value


def _as_quantity(value: object, units: Mapping[str, float]) -> object:
    """Sizes are written as in the commands: 14.14GB, 768 GB/s, 7.07B; or as a plain number."""
    if not isinstance(value, str) or not value.strip()[-1:].isalpha() or value.isalpha():
        return value
    return read_quantity(value, units)


EngineUrl = Annotated[str, AfterValidator(engine_url)]
Seconds = Annotated[float, Field(gt=0, le=86400 * 7, allow_inf_nan=False)]
Names = Annotated[tuple[str, ...], BeforeValidator(_from_commas)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
JsonObject = Annotated[str, AfterValidator(_json_object)]
ByteSize = Annotated[Positive, BeforeValidator(partial(_as_quantity, units=BYTES))]
ByteRate = Annotated[Positive, BeforeValidator(partial(_as_quantity, units=BANDWIDTHS))]
Count = Annotated[Positive, BeforeValidator(partial(_as_quantity, units=COUNTS))]
Pid = Annotated[int, Field(gt=0)]
Pids = Annotated[tuple[Pid, ...], BeforeValidator(_from_commas)]
Host = Annotated[str, AfterValidator(_listening)]
HostHeader = Annotated[str, AfterValidator(_host_header)]
Key = Annotated[SecretStr, AfterValidator(_key)]
Pattern = Annotated[str, AfterValidator(_pattern)]
Buckets = Annotated[tuple[Positive, ...], BeforeValidator(_from_commas), AfterValidator(_rising)]


class Engine(_Trimming):
    """One inference engine behind the proxy."""

    upstream: EngineUrl = Field(description="Address of the engine, e.g. http://127.0.0.1:8000.")
    upstream_ca_file: Path | None = Field(
        None, description="Certificates (PEM) to trust for an https engine, beside the system's."
    )
    upstream_host: HostHeader | None = Field(
        None,
        description="Host header sent to the engine. Default: the client's own for http, "
        "the engine's name for https.",
    )
    api_key: Key | None = Field(
        None,
        description="Key for the proxy's own calls (GET /v1/models). Clients' keys pass untouched.",
    )
    models: Names = Field(
        (),
        description="Model names used as metric labels. Default: what GET /v1/models lists.",
    )

    gpu: str | None = Field(
        None,
        description="Card that the engine runs on, e.g. 'RTX A6000', where NVML cannot tell "
        "(an engine on another machine).",
    )
    gpus: Names = Field(
        (),
        description="NVML indices or UUIDs of the engine's GPUs. Default: those with a process "
        "of the engine.",
    )
    tensor_parallel_size: int = Field(
        1, ge=1, le=1024, description="GPUs that share every layer (vLLM's --tensor-parallel-size)."
    )
    gpu_bandwidth: ByteRate | None = Field(
        None, description="Memory bandwidth of one GPU in bytes/s. Default: card table, then NVML."
    )
    gpu_measured_bandwidth: ByteRate | None = Field(
        None, description="Memory bandwidth of one GPU as you measured it, in bytes/s."
    )
    gpu_flops: Count | None = Field(
        None,
        description="Dense FLOP/s of one GPU in the model's precision; with matmul_parameters it "
        "tells whether a large batch is limited by computing.",
    )
    matmul_parameters: Count | None = Field(
        None, description="Parameters that every token is multiplied with (MoE: the active ones)."
    )
    model_path: str | None = Field(
        None,
        description="Directory, file or cached repository of the model's weights. Default: the "
        "root that GET /v1/models names.",
    )
    weights_bytes: ByteSize | None = Field(
        None, description="Bytes of weights that one decode step reads. Default: from the files."
    )
    checkpoint_bytes: ByteSize | None = Field(
        None, description="Bytes of the whole checkpoint. Default: from the files."
    )
    kv_bytes_per_token: ByteSize | None = Field(
        None, description="Bytes of KV cache per token of context. Default: from config.json."
    )
    kv_cache_dtype: str | None = Field(
        None, description="vLLM's --kv-cache-dtype. Default: as its metrics say."
    )
    speculative_config: JsonObject | None = Field(
        None,
        description="vLLM's --speculative-config, as JSON: what drafting reads is part of a step. "
        "Without it an engine that decodes speculatively is not judged.",
    )
    calibration: Path | None = Field(
        None,
        description="File that tokgauge calibrate wrote: constants measured on this engine. "
        "Default: typical ones.",
    )
    engine_pids: Pids = Field(
        (), description="Process ids of the engine as nvidia-smi on the host shows them."
    )
    engine_process: Pattern | None = Field(
        None,
        description="Regular expression for the names of the engine's processes. Default: known "
        "engines.",
    )


class Settings(_Trimming):
    """Everything that can be set; every field is also a flag and an environment variable."""

    engines: tuple[Engine, ...] = Field(description="The engine behind the proxy (exactly one).")

    host: Host = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for all.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    admin_port: int | None = Field(
        None, ge=0, le=65535, description="Second port that serves only the pages of /tokgauge/."
    )
    allowed_hosts: Names = Field(
        (),
        description="Names under which the pages of /tokgauge/ are shown, beside localhost, `host` "
        "and all IP addresses; * for any.",
    )
    workers: int = Field(
        1, ge=1, le=128, description="Number of relays: processes that carry the traffic."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="How much the proxy says on standard error."
    )

    connect_timeout: Seconds = Field(5.0, description="Seconds to reach the engine, then 504.")
    first_byte_timeout: Seconds | None = Field(
        None,
        description="Seconds to wait for the engine's first byte, then 504. "
        "Default: no limit, as a long prefill is legal.",
    )
    stream_idle_timeout: Seconds = Field(
        600.0, description="Seconds of silence within an answer after which it is cut."
    )
    stall_after: Seconds = Field(
        30.0, description="Seconds of silence after which a running stream counts as stalled."
    )
    keep_alive_timeout: Seconds = Field(
        75.0, description="Seconds for which an idle client connection is kept open."
    )
    head_timeout: Seconds = Field(
        30.0, description="Seconds that a client may take for a request's head, then 408."
    )
    body_timeout: Seconds = Field(
        60.0,
        description="Seconds without a byte of a request's body that is not complete, then 408. "
        "A body that is slow but comes has all the time it needs.",
    )
    drain_delay: float = Field(
        1.0, ge=0, le=3600,
        description="Seconds between SIGTERM (readyz turns 503) and the end of accepting.",
    )  # fmt: skip
    drain_timeout: Seconds = Field(
        60.0, description="Seconds that running answers may take to finish after that."
    )

    max_header_bytes: int = Field(65536, ge=1024, description="Largest request head, then 431.")
    max_body_bytes: int | None = Field(
        None, ge=1, description="Largest request body, then 413. Default: no limit."
    )
    max_in_flight: int | None = Field(
        None, ge=1, description="Most requests at once (in one relay), then 503. Default: no limit."
    )

    unfinished_bodies_bytes: int = Field(
        64 * 1024 * 1024, ge=0,
        description="Most memory (of one relay) for request bodies that are not complete, all "
        "together. Beyond it they go up as they come, without being read for measuring.",
    )  # fmt: skip

    inject_usage: bool = Field(
        True,
        description="Ask the engine for token usage on streams whose client did not, "
        "and hide the extra event from the client.",
    )
    observed_body_bytes: int = Field(
        16 * 1024 * 1024, ge=1024,
        description="Bodies up to this size are read for measuring; larger ones only pass.",
    )  # fmt: skip
    poll_interval: Seconds = Field(
        10.0, description="Seconds between the proxy's own GET /v1/models calls to the engine."
    )
    nvml: bool = Field(True, description="Read the GPUs of this machine through NVML.")
    engine_metrics_interval: Seconds = Field(
        2.0, description="Seconds between looks at the engine's own /metrics."
    )
    rate_window: Seconds = Field(
        15.0, description="Length of the sliding window of output_tokens_per_second, in seconds."
    )
    duration_buckets: Buckets = Field(
        DURATION_BUCKETS, description="Upper bounds of the histograms of time, in seconds."
    )
    otel: bool = Field(
        False,
        description="Send gen_ai.server.* metrics to an OTLP collector (extra otel; "
        "OTEL_EXPORTER_OTLP_ENDPOINT says where).",
    )
    request_log: Path | None = Field(
        None,
        description="File for one JSON line per request (never prompt, answer or key); "
        "- for standard output.",
    )

    @model_validator(mode="before")
    @classmethod
    def _first_engine(cls, data: Any) -> Any:
        """Engine fields written at the top level speak of the one engine."""
        if not isinstance(data, Mapping):
            return data
        top = {key: value for key, value in data.items() if key not in Engine.model_fields}
        own = {key: data[key] for key in data if key in Engine.model_fields}
        if own:
            engines = top.get("engines") or [{}]
            first = engines[0] if isinstance(engines, (list, tuple)) and engines else {}
            if isinstance(first, Engine):
                first = first.model_dump(exclude_unset=True)
            if isinstance(first, Mapping):
                top["engines"] = [{**first, **own}, *engines[1:]]
        return top

    @model_validator(mode="after")
    def _exactly_one_engine(self) -> Self:
        if len(self.engines) != 1:
            raise ValueError("engines: accepted: exactly one engine (one proxy beside each engine)")
        return self

    def __init__(self, **data: Any) -> None:
        # Engine fields are accepted beside the model's own, so the keywords stay open to checkers.
        super().__init__(**data)

    @property
    def engine(self) -> Engine:
        """The engine behind this proxy."""
        return self.engines[0]


def option_fields() -> dict[str, Any]:
    """Fields that a flag or a variable can set, by name, each with its pydantic `FieldInfo`."""
    fields = {name: info for name, info in Settings.model_fields.items() if name != "engines"}
    return {**Engine.model_fields, **fields}


def load_settings(
    config: Path | None, environment: Mapping[str, str], flags: Mapping[str, object]
) -> Settings:
    """Merge file, environment and flags (rising priority) into `Settings`.

    Raises `SettingsError` naming each wrong key or value, its place, and what is accepted.
    """
    file_values = read_toml(config) if config is not None else {}
    env_values = _read_environment(environment)
    merged = {**file_values, **env_values, **flags}
    places = {
        **dict.fromkeys(file_values, str(config)),
        **{key: f"environment variable {_variable(key)}" for key in env_values},
        **{key: f"flag {flag_name(key)}" for key in flags},
    }
    if "upstream" not in merged and "engines" not in merged:
        raise SettingsError(
            "upstream is not set: the address of the engine is needed, e.g. "
            "--upstream http://127.0.0.1:8000"
        )
    try:
        return Settings(**merged)
    except ValidationError as error:
        raise SettingsError(
            "\n".join(_explain(detail, places, merged) for detail in error.errors())
        ) from error


def flag_name(field: str) -> str:
    """`stream_idle_timeout` → `--stream-idle-timeout`."""
    return "--" + field.replace("_", "-")


def _variable(field: str) -> str:
    return ENVIRONMENT_PREFIX + field.upper()


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a settings file. Raises `SettingsError`."""
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))  # some editors begin with a mark
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from error


def _read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    values = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if _SERVICE_LINK.fullmatch(variable):
            continue
        if variable == "TOKGAUGE_PORT" and value.startswith(("tcp://", "udp://")):
            continue
        field = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if field not in option_fields():
            raise SettingsError(
                f"environment variable {variable} is not a setting."
                + _nearest(variable, map(_variable, option_fields()))
            )
        values[field] = value
    return values


def _explain(detail: Any, places: Mapping[str, str], merged: Mapping[str, Any]) -> str:
    path = [part for part in detail["loc"] if part not in ("tuple", "function-before")]
    name = ".".join(map(str, path)) or "settings"
    key = str(path[0]) if path else ""
    if len(path) >= 3 and key == "engines" and str(path[2]) in merged:
        key = name = str(path[2])  # written at the top level, as flags and variables do
    place = f" (in {places[key]})" if key in places else ""
    if detail["type"] == "extra_forbidden":
        known = [*Settings.model_fields, *Engine.model_fields]
        return f"{name}{place} is not a setting." + _nearest(str(path[-1]), known)
    message = str(detail["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if detail["type"] == "missing":
        return f"{name}{place} is not set"
    shown = _shown(path, detail.get("input"))
    info = option_fields().get(str(path[-1]) if path else "")
    meaning = f"\n    {name}: {info.description}" if info is not None else ""
    return f"{name}{shown}{place}: {message}{meaning}"


def _shown(path: Sequence[object], value: object) -> str:
    """The wrong value, unless it is or may hold a key or a password."""
    named = [part for part in path if part in option_fields()]
    if not named or named[-1] == "api_key" or "@" in str(value):
        return ""
    if isinstance(value, (Mapping, BaseModel)):
        return ""
    text = repr(value)
    return f" = {text}" if len(text) <= _LONGEST_SHOWN else f" = {text[:_LONGEST_SHOWN]}…"


def _nearest(wrong: str, known: Iterable[str]) -> str:
    names = sorted(set(known))
    close = difflib.get_close_matches(wrong, names, n=1, cutoff=0.6)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"{hint} Accepted: {', '.join(names)}"
