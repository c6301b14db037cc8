"""`tokgauge probe`: the founding experiment against any OpenAI-compatible server."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NoReturn, Self

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from tokgauge.commands._cards import named_card
from tokgauge.commands._output import new_table, print_json, terminal
from tokgauge.commands._quantities import BANDWIDTH, BITS, BYTES, COUNT
from tokgauge.diagnosis.assess import Assessment, assess
from tokgauge.diagnosis.inputs import Inputs
from tokgauge.diagnosis.wording import in_words
from tokgauge.engine.error_text import printable
from tokgauge.model.kv import KvCache
from tokgauge.model.weights import WeightsUnknown
from tokgauge.probe.errors import ProbeError
from tokgauge.probe.experiment import Experiment, run_experiment
from tokgauge.probe.gpu import GpuWatch
from tokgauge.probe.inputs import Given, find_inputs
from tokgauge.probe.question import DEFAULT_PROMPT
from tokgauge.probe.report import context_counted, document, findings, seconds
from tokgauge.probe.server import Answer, Server
from tokgauge.settings import engine_url

NOT_MEASURED = 3
"""Exit code when the experiment could not be made."""


@click.command(
    name="probe",
    epilog=(
        "Exit codes: 0 measured, whatever the verdict; 2 wrong usage; 3 could not measure. "
        "Example: tokgauge probe http://127.0.0.1:8000 --gpu 'RTX A6000' --params 7.62B"
    ),
)
@click.argument("url")
@click.option("--model", help="Model to ask.  [default: the first that the server lists]")
@click.option("--prompt", default=DEFAULT_PROMPT, help="Prompt.  [default: asks for a long text]")
@click.option(
    "--max-tokens",
    type=click.IntRange(1, 1_000_000),
    default=512,
    show_default=True,
    help="Length at which both answers are cut.",
)
@click.option(
    "--runs", type=click.IntRange(1, 1000), default=1, show_default=True, help="Repeat; medians."
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 86_400),
    default=600.0,
    show_default=True,
    help="Longest time for one answer [s].",
)
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Key.  [default: $OPENAI_API_KEY]")
@click.option("--gpu", help="Card that serves, by name.  [default: NVML, if the server is here]")
@click.option("--bandwidth", type=BANDWIDTH, help="Instead of a card: memory bandwidth of one.")
@click.option("--weights-bytes", type=BYTES, help="Bytes of weights that a decode step reads.")
@click.option("--params", type=COUNT, help="Parameters that a token uses, for an estimate: 7.62B.")
@click.option("--bits", type=BITS, help="Bits a parameter, with --params.  [default: 16]")
@click.option(
    "--tensor-parallel",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Cards that read together.",
)
@click.option(
    "--speculative-config", help="vLLM's own, as JSON: what drafting reads is part of a step."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the table.")
def command(
    url: str,
    model: str | None,
    prompt: str,
    max_tokens: int,
    runs: int,
    timeout: float,
    api_key: str | None,
    gpu: str | None,
    bandwidth: float | None,
    weights_bytes: float | None,
    params: float | None,
    bits: float | None,
    tensor_parallel: int,
    speculative_config: str | None,
    as_json: bool,
) -> None:
    """Ask a server the same question not streamed, then streamed, and measure both.

    Shows how long a person waits without seeing anything, how fast tokens come, whether the answer
    was cut, and which share of the hardware's ceiling that is. Works with any OpenAI-compatible
    server; no proxy is needed. Give the address with or without /v1.
    """
    for name, text in (("--model", model), ("--prompt", prompt)):
        if text is not None and not _is_unicode(text):
            raise click.BadParameter("not valid UTF-8", param_hint=name)
    given = _given(bandwidth, gpu, weights_bytes, params, bits, tensor_parallel, speculative_config)
    # What NVML lacks is in the report; its log lines are for the proxy.
    logging.getLogger("tokgauge.gpu").addHandler(logging.NullHandler())
    try:
        with ExitStack() as stack:
            server = stack.enter_context(Server(_address(url), key=_key(api_key), timeout=timeout))
            watch = stack.enter_context(GpuWatch()) if server.is_local else None
            experiment = run_experiment(
                server,
                model=model,
                prompt=prompt,
                max_tokens=max_tokens,
                runs=runs,
                watcher=stack.enter_context(_Shown()),
            )
    except ProbeError as error:
        _fail(error, as_json)
    seen = None if watch is None else watch.seen()
    inputs = find_inputs(
        given,
        experiment.stream_seen,
        root=experiment.card.root,
        seen=seen,
        kv_cache_dtype=experiment.readings[0].kv_cache_dtype if experiment.readings else None,
    )
    assessment = assess(inputs)
    if as_json:
        print_json(document(experiment, inputs, assessment))
    else:
        _print(terminal(), experiment, inputs, assessment)


def _given(
    bandwidth: float | None,
    gpu: str | None,
    weights_bytes: float | None,
    params: float | None,
    bits: float | None,
    tensor_parallel: int,
    speculative_config: str | None,
) -> Given:
    """What the command line tells of hardware and model."""
    if gpu is not None and bandwidth is not None:
        raise click.UsageError("give --gpu or --bandwidth, not both")
    if params is not None and weights_bytes is not None:
        raise click.UsageError("give --weights-bytes or --params, not both")
    if bits is not None and params is None:
        raise click.UsageError("--bits belongs to --params")
    return Given(
        bandwidth=bandwidth,
        card=None if gpu is None else named_card(gpu),
        weights_bytes=weights_bytes,
        parameters=params,
        bits=bits or 16.0,
        tensor_parallel=tensor_parallel,
        speculative=None if speculative_config is None else _object(speculative_config),
    )


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise click.BadParameter("not a JSON object", param_hint="--speculative-config")
    return found


def _address(url: str) -> str:
    try:
        engine_url(url.rstrip("/").removesuffix("/v1"))
    except ValueError as error:
        raise click.BadParameter(
            f"{url!r} is not an address such as http://127.0.0.1:8000", param_hint="URL"
        ) from error
    return url


def _key(text: str | None) -> str | None:
    """The key without the line end that files and variables often carry."""
    key = (text or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise click.BadParameter("a key has only printable ASCII in it", param_hint="--api-key")
    return key or None


def _is_unicode(text: str) -> bool:
    """Whether the bytes of an argument were text (Python keeps others as lone surrogates)."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _fail(error: ProbeError, as_json: bool) -> NoReturn:
    if as_json:
        print_json({"error": {"kind": error.kind, "message": str(error)}})
    click.echo(f"Error: {error}", err=True)
    sys.exit(NOT_MEASURED)


class _Shown:
    """Progress on standard error, where a person looks; nothing elsewhere."""

    def __init__(self) -> None:
        console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[live]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begins(self, what: str) -> None:
        self._task = self._progress.add_task(what, total=None, live="")

    def tokens(self, count: int, per_second: float | None) -> None:
        if self._task is not None:
            rate = "" if per_second is None else f", {per_second:.1f}/s"
            self._progress.update(self._task, live=f"{count} token events{rate}")

    def ends(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None


def _print(
    console: Console, experiment: Experiment, inputs: Inputs, assessment: Assessment
) -> None:
    runs = len(experiment.runs)
    console.print(f"{printable(experiment.card.id)} at {experiment.url}", soft_wrap=True)
    table = new_table(console, "")
    table.add_column(f"median of {runs} runs" if runs > 1 else "")
    table.add_column("not streamed", justify="right")
    table.add_column("streamed", justify="right", style="bold")
    for name, figure, show in _ROWS:
        table.add_row(name, *(_cell(value, show) for value in _both_ways(experiment, figure)))
    console.print(table)
    console.print()
    for line in _ceiling_lines(inputs, assessment):
        console.print(line, soft_wrap=True)
    console.print()
    for line in findings(experiment, in_words(assessment.speed)):
        console.print(f"* {line}", soft_wrap=True)
    for note in (*_counting_notes(experiment), *experiment.notes):
        console.print(f"note: {note}", soft_wrap=True)


_Figure = Callable[[Answer], float | None]

_ROWS: tuple[tuple[str, _Figure, Callable[[float], str]], ...] = (
    ("silent wait", lambda answer: answer.measurement.silent_wait, seconds),
    ("whole answer", lambda answer: answer.measurement.duration, seconds),
    ("time to first token", lambda answer: answer.measurement.time_to_first_token, seconds),
    ("time to visible text", lambda answer: answer.measurement.time_to_first_output, seconds),
    ("tokens", lambda answer: answer.measurement.completion_tokens, "{:.0f}".format),
    (
        "decode rate, tok/s",
        lambda answer: answer.measurement.decode_tokens_per_second,
        "{:.1f}".format,
    ),
    ("end to end, tok/s", lambda answer: answer.tokens_per_second, "{:.1f}".format),
)


def _both_ways(experiment: Experiment, figure: _Figure) -> tuple[float | None, float | None]:
    return (
        experiment.typical(lambda run: figure(run.not_streamed)),
        experiment.typical(lambda run: figure(run.streamed)),
    )


def _cell(value: float | None, show: Callable[[float], str]) -> str:
    return "-" if value is None else show(value)


def _ceiling_lines(inputs: Inputs, assessment: Assessment) -> Iterator[str]:
    bandwidth, efficiency = inputs.bandwidth, assessment.efficiency
    total = bandwidth.bytes_per_second
    shares = efficiency.by_basis if efficiency is not None else {}
    for basis, limit in assessment.ceilings.items():
        reached = f"{shares[basis]:.0%}" if basis in shares else "unknown"
        yield (
            f"ceiling on {basis} bytes: {(total or 0) / 1e9:.0f} GB/s / "
            f"{limit.bytes_per_step / 1e9:.2f} GB = {limit.tokens_per_second:.1f} tok/s; "
            f"reached: {reached}"
        )
    if total is None:
        yield f"bandwidth: unknown ({bandwidth.explanation})"
    else:
        yield f"bandwidth: {total / 1e9:.0f} GB/s ({bandwidth.explanation})"
    if bandwidth.warning is not None:
        yield f"bandwidth: {bandwidth.warning}"
    if inputs.model is None:
        return
    weights = inputs.model.weights
    if isinstance(weights, WeightsUnknown):
        yield (
            f"weights: unknown ({weights.reason}); set --weights-bytes, or --params and --bits "
            "for an estimate"
        )
        return
    if weights.streamed is not None:
        yield f"weights read per token: from {weights.streamed_source}"
    elif weights.rule_of_thumb_fails_because is not None:
        yield f"weights read per token: unknown ({weights.streamed_unknown_because})"
    else:
        yield (
            f"weights: whole checkpoint, from {weights.checkpoint_source}; it counts more than is "
            "read, so the share reads higher than it is"
        )
    context = context_counted(inputs)
    if context is not None:
        if isinstance(inputs.model.kv, KvCache) and inputs.model.kv.state_bytes:
            yield f"recurrent state: {inputs.model.kv.state_bytes / 1e6:.1f} MB, counted"
        yield f"KV cache: {context:.0f} tokens of context on average, counted"
    else:
        yield "KV cache: not counted (unknown); with a short context it hardly matters"


def _counting_notes(experiment: Experiment) -> Iterator[str]:
    if experiment.runs[-1].streamed.measurement.token_source == "events":
        yield "the server reports no usage on the stream: its events were counted as tokens"
    if experiment.runs[-1].not_streamed.measurement.token_source is None:
        yield "the server reports no usage on the whole answer: its tokens are unknown"
