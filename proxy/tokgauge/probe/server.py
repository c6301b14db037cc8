"""An OpenAI-compatible server as its client sees it: its models, and one timed answer."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol, Self

import httpx2
import msgspec

from tokgauge.dialects.answer import UNREADABLE
from tokgauge.dialects.request import read_request
from tokgauge.dialects.sse import EventReader
from tokgauge.engine import metrics_page as engine_metrics
from tokgauge.engine.error_text import error_text
from tokgauge.engine.metrics_page import EngineReading
from tokgauge.measure.record import Record, with_context
from tokgauge.measure.timeline import RequestTimeline
from tokgauge.model.served import ServedModel, served_models
from tokgauge.probe.errors import ProbeError
from tokgauge.probe.question import Question
from tokgauge.probe.text import characters

__all__ = ["Answer", "RefusedError", "Server", "Watcher"]


_BODY_LIMIT = 64 * 1024 * 1024
_CONNECT_SECONDS = 10.0
_PAGE_SECONDS = 30.0


class Watcher(Protocol):
    """Sees the experiment while it runs."""

    def begins(self, what: str) -> None:
        """A request is sent; `what` names it for a person."""

    def tokens(self, count: int, per_second: float | None) -> None:
        """So many token events of a stream have come."""

    def ends(self) -> None:
        """The answer is complete, or has failed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One complete answer."""

    measurement: Record
    streamed: bool
    """Whether it came as an event stream."""
    characters: int
    """Of its text, reasoning included."""

    @property
    def tokens_per_second(self) -> float | None:
        """End to end: tokens by the whole time, prefill and queue included."""
        tokens = self.measurement.completion_tokens
        if not tokens or self.measurement.duration <= 0:
            return None
        return tokens / self.measurement.duration


class RefusedError(Exception):
    """An answer with a status that is not 200."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status}: {error_text(body)}")
        self.status = status
        self.body = body


class Server:
    """A server at `url`, with or without `/v1` at its end. Use it in a `with` statement.

    timeout: seconds for one answer, from the request to its last byte. Every method raises
    `ProbeError` when the server cannot be reached or does not end its answer.
    """

    def __init__(self, url: str, *, key: str | None, timeout: float) -> None:
        self.url = url.rstrip("/").removesuffix("/v1").rstrip("/")
        self._timeout = timeout
        self._page_timeout = min(timeout, _PAGE_SECONDS)
        headers = {"accept-encoding": "identity", "user-agent": "tokgauge-probe"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        self._client = httpx2.Client(
            headers=headers,
            trust_env=False,  # a proxy on the way would be measured along
            verify=ssl.create_default_context() if self.url.startswith("https:") else False,
            # A connection that the server has just closed must not cost an experiment.
            limits=httpx2.Limits(max_keepalive_connections=0),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @property
    def is_local(self) -> bool:
        """Whether the address is this machine's own (a tunnel to another one looks alike)."""
        host = httpx2.URL(self.url).host
        return host in ("localhost", "::1") or host.startswith("127.")

    def models(self) -> tuple[ServedModel, ...]:
        """What `GET /v1/models` lists. Raises `RefusedError` for a status other than 200."""
        started = monotonic()
        with self._sent("GET", "/v1/models", None, self._page_timeout) as (response, _):
            body = self._whole(response, started)
        if response.status_code != 200:
            raise RefusedError(response.status_code, body)
        try:
            listed: Any = msgspec.json.decode(body)
        except UNREADABLE:
            listed = None
        if not isinstance(listed, dict) or not isinstance(listed.get("data"), list):
            raise ProbeError(
                "not_openai",
                f"{self.url}/v1/models answers something else than a list of models: "
                "this is not an OpenAI-compatible server, or the address is not its own",
            )
        return served_models(listed)

    def engine_reading(self) -> EngineReading | None:
        """The server's own figures at `/metrics`; None when there are none that are known."""
        started = monotonic()
        try:
            with self._sent("GET", "/metrics", None, self._page_timeout) as (response, _):
                page = self._whole(response, started)
        except ProbeError:
            return None
        reading = engine_metrics.read(page, monotonic()) if response.status_code == 200 else None
        return None if reading is None or reading.kind is None else reading

    def ask(
        self, question: Question, *, stream: bool, context_length: int | None, watcher: Watcher
    ) -> Answer:
        """Ask, and measure the answer. Raises `RefusedError` for a status other than 200."""
        request = question.body(stream=stream)
        opened = monotonic()
        exchange = RequestTimeline(
            exchange_id="probe",
            method="POST",
            route=question.route,
            opened_at=opened,
            gap_bounds=(),
            observed_body_bytes=_BODY_LIMIT,
        )
        text = 0
        events = EventReader()
        with self._sent("POST", question.path, request, self._timeout) as (response, sent_at):
            if response.status_code != 200:
                raise RefusedError(response.status_code, self._whole(response, opened))
            exchange.request_received(sent_at, read_request(request))
            exchange.request_sent(sent_at)
            exchange.response_begins(response.status_code, response.headers)
            body = bytearray()
            try:
                for at, data in self._pieces(response, opened):
                    exchange.data(at, data)
                    if not exchange.stream:
                        body += data
                        continue
                    text += sum(characters(event.data) for event in events.feed(data))
                    watcher.tokens(exchange.token_events, _rate(exchange, at))
            except httpx2.TransportError as error:
                raise self._broken(error, exchange.token_events, stream) from error
        measured = with_context(exchange.end(monotonic(), "ok"), context_length)
        if not exchange.stream:
            text = characters(bytes(body))
        self._check(measured, exchange, stream, text)
        return Answer(measured, exchange.stream, text)

    @contextmanager
    def _sent(
        self, method: str, path: str, body: bytes | None, timeout: float
    ) -> Iterator[tuple[httpx2.Response, float]]:
        """The response once its head has come, and when the request had been sent."""
        sent_at = monotonic()

        def trace(name: str, info: dict[str, Any]) -> None:
            nonlocal sent_at
            if name == "http11.send_request_body.complete":
                sent_at = monotonic()

        try:
            request = self._client.build_request(
                method,
                self.url + path,
                content=body,
                headers={"content-type": "application/json"} if body is not None else None,
                timeout=httpx2.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS)),
                extensions={"trace": trace},
            )
            response = self._client.send(request, stream=True)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._unreachable(error) from error
        try:
            yield response, sent_at
        finally:
            response.close()

    def _pieces(self, response: httpx2.Response, started: float) -> Iterator[tuple[float, bytes]]:
        size = 0
        for data in response.iter_raw():
            at = monotonic()
            size += len(data)
            if at - started > self._timeout:
                raise httpx2.ReadTimeout("the answer did not end in time")
            if size > _BODY_LIMIT:
                raise httpx2.ReadError(f"the answer is larger than {_BODY_LIMIT} bytes")
            yield at, data

    def _whole(self, response: httpx2.Response, started: float) -> bytes:
        try:
            return b"".join(data for _, data in self._pieces(response, started))
        except httpx2.TransportError as error:
            raise self._broken(error, 0, False) from error

    def _unreachable(self, error: Exception) -> ProbeError:
        if isinstance(error, httpx2.ConnectTimeout):
            return ProbeError("unreachable", f"{self.url} does not take a connection in time")
        if isinstance(error, httpx2.TimeoutException):
            return ProbeError(
                "timeout",
                f"{self.url} did not answer in time (--timeout {self._timeout:g}): raise it, or "
                "ask for less with --max-tokens",
            )
        if isinstance(error, httpx2.ConnectError):
            reason = str(error) or "no connection"
            return ProbeError(
                "unreachable",
                f"{self.url} cannot be reached ({reason}): is the server running, and are host "
                "and port right?",
            )
        return ProbeError(
            "not_openai", f"{self.url} does not answer as an HTTP server does ({error!r})"
        )

    def _broken(self, error: httpx2.TransportError, events: int, stream: bool) -> ProbeError:
        after = f" after {events} token events" if stream else ""
        if isinstance(error, httpx2.TimeoutException):
            return ProbeError(
                "timeout",
                f"the answer did not end within {self._timeout:g} s{after}: raise --timeout, or "
                "ask for less with --max-tokens",
            )
        what = "stream" if stream else "answer"
        return ProbeError(
            "cut",
            f"the {what} was cut{after} ({str(error) or type(error).__name__}): look into the "
            "server's log",
        )

    def _check(self, measured: Record, exchange: RequestTimeline, stream: bool, text: int) -> None:
        """Raise `ProbeError` when this is not a complete answer with tokens in it."""
        events = measured.token_events
        if measured.outcome == "stream_error":
            after = f" after {events} token events" if stream else ""
            raise ProbeError("stream_error", f"the server reported an error in its answer{after}")
        if measured.outcome == "upstream_incomplete":
            raise ProbeError(
                "cut",
                f"the stream ended after {events} token events without saying that the answer is "
                "complete (no finish_reason, no [DONE]): look into the server's log",
            )
        reader = exchange.reader
        told = bool(measured.finish_reasons) or measured.completion_tokens is not None or text > 0
        if reader is None or not reader.finished or not told:
            raise ProbeError(
                "not_openai", f"{self.url} answers 200 with something else than a completion"
            )
        if measured.completion_tokens == 0:
            raise ProbeError("no_tokens", "the model answered without a single token")


def _rate(exchange: RequestTimeline, now: float) -> float | None:
    """Token events per second so far, of a stream that has run long enough to say."""
    first = exchange.progress().decodes_from
    if first is None or exchange.token_events < 2 or now - first < 0.2:
        return None
    return (exchange.token_events - 1) / (now - first)
