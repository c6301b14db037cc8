"""Writes what follows from the code: config/tokgauge.toml, docs/reference/, tables in docs/.

python docs/generate.py writes; with --check it only says what is out of date (exit code 1).
"""

from __future__ import annotations

import sys
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.metrics import MetricWrapperBase
from pydantic.fields import FieldInfo
from tokgauge.cli import main
from tokgauge.export.prometheus import Metrics
from tokgauge.model.architectures import known_architectures
from tokgauge.settings import DURATION_BUCKETS, Engine, Settings

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # run as a script, its neighbours have the names they have elsewhere

from docs.normal_tables import NORMAL_TABLES  # noqa: E402

EXAMPLES: dict[str, object] = {
    "upstream": "http://127.0.0.1:8000",
    "upstream_ca_file": "/etc/tokgauge/engine-ca.pem",
    "upstream_host": "engine.example.com",
    "api_key": "sk-...",
    "gpu": "RTX A6000",
    "gpu_bandwidth": 768e9,
    "gpu_measured_bandwidth": 700e9,
    "gpu_flops": 154.8e12,
    "matmul_parameters": 7.07e9,
    "model_path": "/models/Qwen2.5-7B-Instruct",
    "weights_bytes": 14.14e9,
    "checkpoint_bytes": 15.23e9,
    "kv_bytes_per_token": 57344.0,
    "kv_cache_dtype": "fp8",
    "speculative_config": '{"method": "ngram", "num_speculative_tokens": 4}',
    "calibration": "/var/lib/tokgauge/calibration.json",
    "engine_process": "vllm|VLLM",
    "admin_port": 9090,
    "first_byte_timeout": 120.0,
    "max_body_bytes": 50_000_000,
    "max_in_flight": 500,
    "request_log": "/var/log/tokgauge/requests.jsonl",
}
"""Values to show for settings without a default."""

_HEAD = """\
# Every setting of tokgauge, with its default where it has one: tokgauge serve --config FILE
# Lines are commented out where they change nothing or are only an example.
#
# The environment wins over this file (TOKGAUGE_STREAM_IDLE_TIMEOUT for stream_idle_timeout), flags
# win over both (--stream-idle-timeout). A wrong name or value is refused at the start.
# Written by docs/generate.py from proxy/tokgauge/settings/fields.py.
"""


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        text = f"{value:g}".replace("e+", "e") if isinstance(value, float) else str(value)
        return text if isinstance(value, int) or "e" in text or "." in text else text + ".0"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    quote = "'" if '"' in str(value) else '"'
    return quote + str(value) + quote


def _has_default(info: FieldInfo) -> bool:
    return not info.is_required() and info.default is not None


def settings_file() -> str:
    """config/tokgauge.toml: all settings, commented out but for the one that has to be set."""
    lines = [_HEAD]
    for title, fields in (
        ("The engine and the hardware that it runs on", Engine.model_fields),
        ("The proxy", Settings.model_fields),
    ):
        lines += [f"# {title}", ""]
        for name, info in fields.items():
            if name == "engines":
                continue
            example = "" if _has_default(info) else " Example:"
            lines += textwrap.wrap(
                f"{info.description}{'' if info.is_required() else example}", 98,
                initial_indent="# ", subsequent_indent="# ",
            )  # fmt: skip
            value = info.default if _has_default(info) else EXAMPLES[name]
            mark = "" if info.is_required() else "#"
            lines += [f"{mark}{name} = {_toml(value)}", ""]
    return "\n".join(lines).rstrip() + "\n"


def settings_table() -> Iterator[str]:
    """The settings by name, with defaults."""
    yield "| setting | default | meaning |"
    yield "| --- | --- | --- |"
    for fields in (Engine.model_fields, Settings.model_fields):
        for name, info in fields.items():
            if name != "engines":
                default = "" if not _has_default(info) else _default(info.default)
                yield f"| `{name}` | {default} | {_cell(info.description)} |"


def _default(value: object) -> str:
    if value == ():
        return ""
    if value == DURATION_BUCKETS:
        return "1 ms … 600 s"
    return f"`{_toml(value)}`"


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|")


def metrics_table() -> Iterator[str]:
    """The metrics with type, labels and formula."""
    yield "| metric | type | labels | meaning |"
    yield "| --- | --- | --- | --- |"
    for name, kind, labels, text in _metrics():
        shown = ", ".join(f"`{label}`" for label in labels)
        yield f"| `{name}` | {kind} | {shown} | {_cell(text)} |"


def _metrics() -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    registry = Metrics(DURATION_BUCKETS).registry
    for collector in registry._collector_to_names:
        for family in collector.collect():
            suffix = "_total" if family.type == "counter" else ""
            source: Any = collector if isinstance(collector, MetricWrapperBase) else family
            yield family.name + suffix, family.type, tuple(source._labelnames), family.documentation


def commands_table() -> Iterator[str]:
    """The commands, each with the first sentence of its help."""
    yield "| command | does |"
    yield "| --- | --- |"
    for name in main.list_commands(typing.cast(Any, None)):
        try:
            command = main.get_command(typing.cast(Any, None), name)
        except ModuleNotFoundError:
            continue
        if command is not None:
            first = (command.help or "").strip().split("\n\n")[0]
            yield f"| `tokgauge {name}` | {_cell(' '.join(first.split()))} |"


def alerts_table() -> Iterator[str]:
    """The alerts of config/ with their runbooks."""
    yield "| alert | severity | when |"
    yield "| --- | --- | --- |"
    for file in ("alerts.yml", "alerts_fixed_limit.yml"):
        groups = yaml.safe_load((ROOT / "config" / file).read_text())["groups"]
        for rule in (rule for group in groups for rule in group["rules"]):
            name = rule["alert"]
            lasting = f" ({rule['for']})" if "for" in rule else ""
            yield (
                f"| [{name}](../runbooks/{name}.md) | {rule['labels']['severity']} | "
                f"{_cell(rule['annotations']['summary'])}{lasting} |"
            )


_RULES = {
    "plain": "every layer once",
    "looped": "layers several times for a token",
    "double": "two attention blocks in a layer",
    "shared": "blocks again in several layers",
    "mamba1": "recurrent layers (Mamba)",
    "mamba2": "recurrent layers (Mamba 2)",
    "delta": "recurrent layers (gated delta rule)",
    "kimi": "recurrent layers (Kimi delta attention)",
    "convolution": "short convolutions",
    "text part": "as its text model",
    "unknown": "not understood",
}


def architectures_table() -> Iterator[str]:
    """One line for every architecture of the table."""
    yield "| architecture | how a step reads it | more |"
    yield "| --- | --- | --- |"
    for line in known_architectures():
        rule = _RULES[line.rule]
        shown = f"**{rule}**" if line.rule == "unknown" else rule
        yield f"| `{line.name}` | {shown} | {_cell(line.note)} |"


_PAGES = {
    "metrics": (
        metrics_table,
        """# Metrics

At `/tokgauge/metrics`, for Prometheus. Times are in seconds, ratios from 0 to 1. `model` is a name
that the engine lists, else `other`: whatever clients send, the number of series stays bounded. What
is not known has no sample. [What is measured](../measuring.md) defines the terms.""",
    ),
    "settings": (
        settings_table,
        """# Settings

A TOML file (`--config`, or `TOKGAUGE_CONFIG`), environment variables and flags, the later winning:
`stream_idle_timeout` in the file is `TOKGAUGE_STREAM_IDLE_TIMEOUT` and `--stream-idle-timeout`.
Lists are written `a,b,c` in variables and flags. A wrong name or value is refused at the start,
with its place and what would be accepted. [config/tokgauge.toml](../../config/tokgauge.toml) holds
all of them.""",
    ),
    "commands": (
        commands_table,
        """# Commands

Each has `--help`. Completion for bash is `eval "$(_TOKGAUGE_COMPLETE=bash_source tokgauge)"` in
`~/.bashrc` (`zsh_source` and `fish_source` for those).""",
    ),
    "alerts": (
        alerts_table,
        """# Alerts

Of [config/alerts.yml](../../config/alerts.yml), which needs
[config/recording_rules.yml](../../config/recording_rules.yml), and, as the last one, of
[config/alerts_fixed_limit.yml](../../config/alerts_fixed_limit.yml), which Prometheus reads only
where you name it. In brackets: for how long.""",
    ),
}  # fmt: skip
"""Page of docs/reference/ → its table, and what stands before it."""

_NOTE = "<!-- Written by docs/generate.py: change the code, not this page. -->"


def documents() -> dict[Path, str]:
    """Path → what should stand there."""
    pages = {
        ROOT / "docs" / "reference" / f"{name}.md": "\n".join([head, "", _NOTE, "", *table(), ""])
        for name, (table, head) in _PAGES.items()
    }
    return {
        **pages,
        **_with_tables("models.md", {"architectures": architectures_table}),
        **_with_tables("normal.md", NORMAL_TABLES),
        ROOT / "config" / "tokgauge.toml": settings_file(),
    }


def _with_tables(name: str, tables: Mapping[str, Callable[[], Iterator[str]]]) -> dict[Path, str]:
    """A page of docs/ with each table between its marks."""
    path = ROOT / "docs" / name
    text = path.read_text()
    for part, table in tables.items():
        start, end = f"<!-- {part}: docs/generate.py -->", f"<!-- end of {part} -->"
        before, mark, rest = text.partition(start)
        _, closing, after = rest.partition(end)
        if not (mark and closing):
            raise SystemExit(f"docs/{name} must have the marks {start} … {end}")
        text = "\n".join([before + start, *table(), end + after])
    return {path: text}


def generate(*, check: bool) -> list[str]:
    """Write the files, or only compare them: the names of those that differed."""
    stale = []
    for path, text in documents().items():
        if not path.exists() or path.read_text() != text:
            stale.append(str(path.relative_to(ROOT)))
            if not check:
                path.write_text(text)
    return stale


if __name__ == "__main__":
    check = sys.argv[1:] == ["--check"]
    differed = generate(check=check)
    for name in differed:
        print(f"{name} {'is out of date: python docs/generate.py' if check else 'written'}")
    sys.exit(check and bool(differed))
