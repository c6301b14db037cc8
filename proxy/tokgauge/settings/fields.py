"""Every setting: its name, type, default and meaning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from tokgauge.settings.types import (
    Buckets,
    ByteRate,
    ByteSize,
    Count,
    EngineUrl,
    Host,
    HostHeader,
    JsonObject,
    Key,
    Names,
    Pattern,
    Pids,
    Seconds,
    Trimming,
)

DURATION_BUCKETS = (
    0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
    2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip


class Engine(Trimming):
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


class Settings(Trimming):
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
