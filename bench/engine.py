"""A cheap engine: answers as vLLM does, at the lowest cost that Python allows.

Events have the shape and size of vLLM 0.32's (221 bytes, one HTTP chunk each); their content is the
time at which they were sent, so that a client on the same machine can tell how long they took.
`POST /bench/mode` sets how streams run: `interval` (seconds between events; 0: as fast as they are
taken), `slots` (1: all streams emit at the same tick, as an engine's steps do; n: spread over n
moments of the interval) and `events` (per stream; 0: until the client leaves). `POST /bench/cut`
ends the streams that still run and says how many they were: some proxies go on reading when their
client has left, and would be busy with streams that nobody waits for in the next measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import socket
import struct
import time
from typing import cast

import uvloop

MODEL = "qwen"
MICROSECONDS = 1_000_000_000
"""Times are microseconds of the monotonic clock modulo this: nine digits."""

_BEFORE = (
    b'data: {"id":"chatcmpl-81f6932e129ea9e7","object":"chat.completion.chunk",'
    b'"created":1796021648,"model":"qwen","choices":[{"index":0,"delta":{"content":"'
)
_AFTER = b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
EVENT = _BEFORE + b"%09d" + _AFTER
EVENT_BYTES = len(EVENT % 0)

_CHUNK = b"%x\r\n" % EVENT_BYTES + EVENT + b"\r\n"
_FINISH = (
    _BEFORE + b'"},"logprobs":null,"finish_reason":"length","stop_reason":null,'
    b'"token_ids":null}]}\n\n'
)
_USAGE = (
    b'data: {"id":"chatcmpl-81f6932e129ea9e7","object":"chat.completion.chunk",'
    b'"created":1796021648,"model":"qwen","choices":[],'
    b'"usage":{"prompt_tokens":17,"total_tokens":%d,"completion_tokens":%d}}\n\n'
)
_DONE = b"data: [DONE]\n\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 06:54:08 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_BODY = (
    b'{"id":"chatcmpl-866981147261393e","object":"chat.completion","created":1796021627,'
    b'"model":"qwen","choices":[{"index":0,"message":{"role":"assistant","content":"%s",'
    b'"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},'
    b'"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}],'
    b'"service_tier":null,"system_fingerprint":"vllm-0.32.0","usage":{"prompt_tokens":17,'
    b'"total_tokens":49,"completion_tokens":32,"prompt_tokens_details":null},'
    b'"prompt_logprobs":null,"prompt_token_ids":null,"kv_transfer_params":null}'
    % (b"The quick brown fox jumps over the lazy dog. " * 5)
)
_MODELS = json.dumps(
    {
        "object": "list",
        "data": [{"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 32768}],
    }
).encode()


def now() -> int:
    """The time that events carry."""
    return time.monotonic_ns() // 1000 % MICROSECONDS


def _json(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\n"
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


_ANSWER = _json(_BODY)


class Pacer:
    """Lets streams emit at their moments."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.events = 0
        self.interval = 0.02
        self.running: set[Engine] = set()
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._slots: list[dict[Engine, None]] = []
        self._turn = 0
        self._next = 0

    def set(self, *, interval: float, slots: int, events: int) -> None:
        """Begin a new mode; paced streams that still run go on in it."""
        running = [stream for slot in self._slots for stream in slot]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.interval, self.events = interval, events
        self._slots = [{} for _ in range(slots)]
        self._turn = self._next = 0
        if interval:
            self._at = self._loop.time() + interval / slots
            self._timer = self._loop.call_at(self._at, self._tick)
        for stream in running:
            self.add(stream)

    def add(self, stream: Engine) -> None:
        self.running.add(stream)
        if self.interval:
            stream.slot = self._next
            self._slots[self._next][stream] = None
            self._next = (self._next + 1) % len(self._slots)
        else:
            self._loop.call_soon(stream.pump)

    def remove(self, stream: Engine) -> None:
        self.running.discard(stream)
        if stream.slot < len(self._slots):
            self._slots[stream.slot].pop(stream, None)

    def _tick(self) -> None:
        for stream in list(self._slots[self._turn]):
            stream.emit()
        self._turn = (self._turn + 1) % len(self._slots)
        self._at += self.interval / len(self._slots)
        late = self._loop.time() - self._at
        if late > self.interval:  # events that cannot be on time are left out, never bunched up
            self._at += late
        self._timer = self._loop.call_at(self._at, self._tick)


class Engine(asyncio.Protocol):
    """One connection."""

    def __init__(self, pacer: Pacer, loop: asyncio.AbstractEventLoop) -> None:
        self.slot = 0
        self._pacer = pacer
        self._loop = loop
        self._buffer = b""
        self._streaming = False
        self._paused = False
        self._sent = 0
        self._usage = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._streaming = False
        self._pacer.remove(self)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._streaming and not self._pacer.interval:
            self._loop.call_soon(self.pump)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._buffer:
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            lower = head.lower()
            length = 0
            at = lower.find(b"\r\ncontent-length:")
            if at >= 0:
                length = int(lower[at + 17 :].partition(b"\r\n")[0])
            elif b"\r\ntransfer-encoding:" in lower:
                self._transport.write(b"HTTP/1.1 411 Length Required\r\ncontent-length: 0\r\n\r\n")
                self._transport.close()
                return
            if len(rest) < length:
                return
            self._buffer = rest[length:]
            self._answer(head, rest[:length])

    def _answer(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1]
        if path == b"/v1/chat/completions":
            if b'"stream":true' in body or b'"stream": true' in body:
                self._usage = b"include_usage" in body
                self._streaming = True
                self._sent = 1
                self._transport.write(_STREAM_HEAD + _CHUNK % now())
                self._pacer.add(self)
            else:
                self._transport.write(_ANSWER)
        elif path == b"/bench/mode":
            self._pacer.set(**json.loads(body))
            self._transport.write(_json(b"{}"))
        elif path == b"/bench/cut":
            running = list(self._pacer.running)
            for stream in running:
                stream.cut()
            self._transport.write(_json(b"%d" % len(running)))
        else:
            self._transport.write(_json(_MODELS if path == b"/v1/models" else b"{}"))

    def cut(self) -> None:
        """Drop the connection in mid-stream, with whatever of it is still on its way."""
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def emit(self) -> None:
        """Send the next event. One that cannot be taken now is left out."""
        if self._paused:
            return
        limit = self._pacer.events
        if limit and self._sent >= limit:
            self._end()
            return
        self._sent += 1
        self._transport.write(_CHUNK % now())

    def pump(self) -> None:
        """Send one event in each turn of the loop for as long as they are taken."""
        if self._streaming and not self._paused:
            self.emit()
            if self._streaming and not self._paused:
                self._loop.call_soon(self.pump)

    def _end(self) -> None:
        self._streaming = False
        self._pacer.remove(self)
        last = [_FINISH, _DONE]
        if self._usage:
            last.insert(1, _USAGE % (17 + self._sent, self._sent))
        self._transport.write(
            b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in last) + b"0\r\n\r\n"
        )


async def _serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    pacer = Pacer(loop)
    pacer.set(interval=0.02, slots=1, events=0)
    server = await loop.create_server(lambda: Engine(pacer, loop), "127.0.0.1", port, backlog=4096)
    gc.freeze()
    gc.disable()
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(_serve(parser.parse_args().port))
