"""The way to the engine: client, connections, time-outs, and the poll that knows if it is up."""

from __future__ import annotations

import asyncio
import logging
import ssl

import httpx2

from tokgauge.dialects.routes import READ_BODIES, classify
from tokgauge.engine.facts import EngineFacts, read_models
from tokgauge.http.client import EngineStream, EngineTransport, Listener, Timeouts, origin_of
from tokgauge.http.headers import Header
from tokgauge.http.request import ClientRequest
from tokgauge.settings import Settings

logger = logging.getLogger("tokgauge")

_POLL_TIMEOUT = 5.0
_FIRST_POLL_TIMEOUT = 1.0
_ANSWER_LIMIT = 4 * 1024 * 1024


class AnswerTooLarge(httpx2.ReadError):
    """An answer to a question of the proxy's own is larger than such answers are."""


class Upstream:
    """One engine, reached through `EngineTransport`. Belongs to one event loop.

    Raises OSError when the file with certificates cannot be used.
    """

    def __init__(self, settings: Settings, facts: EngineFacts) -> None:
        engine = settings.engine
        self.address = engine.upstream
        self.facts = facts
        self._url = httpx2.URL(engine.upstream)
        self._origin = origin_of(self._url)
        self._prefix = self._url.raw_path.rstrip(b"/")
        own_name = self._url.netloc
        named = engine.upstream_host.encode() if engine.upstream_host else None
        self.host: bytes | None = named or (own_name if self._url.scheme == "https" else None)
        self.own_host = named or own_name
        self._key = engine.api_key
        self._interval = settings.poll_interval
        context: ssl.SSLContext | None = None
        if self._url.scheme == "https":
            context = ssl.create_default_context()
            if engine.upstream_ca_file is not None:
                try:
                    context.load_verify_locations(engine.upstream_ca_file)
                except OSError as error:  # ssl.SSLError is one
                    where = f"upstream_ca_file {engine.upstream_ca_file}"
                    raise OSError(f"{where} cannot be used: {error}") from error
        self.transport = EngineTransport(
            timeouts=Timeouts(
                connect=settings.connect_timeout,
                first_byte=settings.first_byte_timeout,
                stream_idle=settings.stream_idle_timeout,
            ),
            ssl_context=context,
            on_left=facts.injection.connection_closed,
        )

    async def exchange(
        self, request: ClientRequest, body: bytes | httpx2.AsyncByteStream, listener: Listener, *,
        changed: bool, fresh: bool = False,
    ) -> EngineStream:  # fmt: skip
        """Send a client's request; its answer goes to `listener`. Returns when it is under way.

        body: what is sent. changed: it is not the request's own. fresh: on a new connection. Raises
        what prevents the sending.
        """
        length = len(body) if isinstance(body, bytes) else None
        try:
            return await self.transport.exchange(
                self._origin, request.method, self._prefix + request.target,
                self._headers(request, length, changed), body, listener,
                reads_body=_reads_body(request), fresh=fresh,
            )  # fmt: skip
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            self._lost()
            raise

    def exchange_at_once(
        self, request: ClientRequest, body: bytes, listener: Listener, *, changed: bool
    ) -> EngineStream | None:
        """`exchange` if there is an idle connection; else None, and nothing has happened."""
        return self.transport.exchange_at_once(
            self._origin, request.method, self._prefix + request.target,
            self._headers(request, len(body), changed), body, listener,
            reads_body=_reads_body(request),
        )  # fmt: skip

    def _headers(self, request: ClientRequest, length: int | None, changed: bool) -> list[Header]:
        incoming = request.incoming
        host = self.host
        if host is None and not incoming.hosts:
            host = self.own_host  # HTTP/1.0 knows no Host, HTTP/1.1 requires one
        return incoming.to_engine(
            host=host,
            body_length=length if changed and not incoming.codings else None,
        )

    def _lost(self) -> None:
        """There is no connection to the engine: it may come back as another version."""
        self.facts.up = False
        self.facts.injection.begin_anew()

    def answers(self) -> None:
        """The engine has answered something."""
        self.facts.up = True

    async def poll_when_it_may(self) -> None:
        """Ask for the models unless that disturbs the engine now."""
        if self.may_ask:
            await self.poll(_POLL_TIMEOUT)

    def pause(self) -> float:
        """Seconds until the next poll."""
        # A model list is soon needed and soon there once the engine is: ask more often.
        return self._interval if self.facts.up else min(1.0, self._interval)

    async def first_poll(self) -> None:
        """One short try before the first request comes in, so that its model has a name."""
        await self.poll(_FIRST_POLL_TIMEOUT)

    async def poll(self, timeout: float) -> None:
        """`GET /v1/models` once, within `timeout` seconds."""
        asked = await self._asked(b"/v1/models", timeout)
        if asked is None:
            return
        cards, problem = await asyncio.to_thread(read_models, *asked)
        self.facts.models_problem = problem
        if cards is not None:
            self.facts.learn_models(cards)

    @property
    def may_ask(self) -> bool:
        """Whether a question of the proxy's own disturbs nobody now."""
        return self.facts.may_be_asked_while_busy or not self.transport.stats().active

    async def get(self, target: bytes, timeout: float) -> bytes | None:
        """The body of an answer 200 within `timeout` seconds, None for any other. Never raises."""
        asked = await self._asked(target, timeout)
        return asked[1] if asked is not None and asked[0] == 200 else None

    async def _asked(self, target: bytes, timeout: float) -> tuple[int, bytes] | None:
        """Status and body of an answer within `timeout` seconds, None for none. Never raises."""
        try:
            return await self.ask("GET", target, b"", timeout)
        except AnswerTooLarge:
            return 200, b""  # as unreadable as a cut one
        except (httpx2.HTTPError, TimeoutError) as error:
            if isinstance(error, TimeoutError | httpx2.ReadTimeout):
                self.facts.up = False
            else:
                self._lost()
            logger.debug("the engine at %s does not answer: %r", self.address, error)
            return None

    async def ask(
        self, method: str, target: bytes, body: bytes, timeout: float
    ) -> tuple[int, bytes]:
        """Ask something of the proxy's own, with its key: status and body of the answer.

        body: JSON, or nothing. Raises httpx2's errors (AnswerTooLarge above 4 MiB) and, after
        `timeout` seconds, TimeoutError.
        """
        headers = [(b"host", self.own_host), (b"accept", b"*/*")]
        if body:
            headers += [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
            ]
        if self._key is not None:
            headers.append((b"authorization", b"Bearer " + self._key.get_secret_value().encode()))
        request = httpx2.Request(
            method,
            self._url,
            headers=headers,
            stream=httpx2.ByteStream(body),
            extensions={"target": self._prefix + target},
        )
        async with asyncio.timeout(timeout):
            try:
                response = await self.transport.handle_async_request(request)
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                self.facts.up = False
                raise
            self.answers()
            return response.status_code, await _read(response)


def _reads_body(request: ClientRequest) -> bool:
    return request.method == "POST" and classify(request.method, request.path) in READ_BODIES


async def _read(response: httpx2.Response) -> bytes:
    stream = response.stream
    assert isinstance(stream, httpx2.AsyncByteStream)  # noqa: S101
    body = b""
    try:
        async for piece in stream:
            body += piece
            if len(body) > _ANSWER_LIMIT:
                raise AnswerTooLarge("the answer is too large")
    finally:
        await stream.aclose()
    return body
