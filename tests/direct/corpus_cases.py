"""Exchanges for kinds of faults that users of such proxies have reported, a few for each."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.direct.engines import (
    CHAT,
    COMPLETIONS,
    DONE,
    EVENT_STREAM,
    FINISH,
    PLAIN,
    ROLE,
    TOKENS,
    USAGE,
    always,
    by_wish,
    chunk,
    event,
    events,
    forces,
    honours,
    streams,
    usage_chunk,
)
from tests.direct.harness import Exchange
from tests.direct.replies import JSON, Extra, Headers, Reply, Request, post

ASKED = {"stream_options": {"include_usage": True}}
BODY = {"model": "qwen", "messages": [{"role": "user", "content": "Hi"}]}
STREAMED = {**BODY, "stream": True}
JSON_TYPE = (("content-type", "application/json"),)
OK = Reply((b'{"ok": true}',), headers=JSON_TYPE, framing="length")
EMPTY = Reply((), framing="length")
GET = Request("GET", "/v1/files", (), framing="none")


def stream_of(name: str, *pieces: bytes, rounds: int = 3, **more: Any) -> Iterator[Exchange]:
    """A stream that comes whether its client asked for usage or not, and is read by both kinds."""
    reply = streams(pieces, **more)
    yield Exchange(f"{name}, unasked", post(STREAMED), always(reply), rounds=rounds)
    yield Exchange(f"{name}, asked", post({**STREAMED, **ASKED}), always(reply))


def _event_streams() -> Iterator[Exchange]:
    first, *rest = PLAIN
    ping = b": ping\n\n"
    for line_end in (b"\n", b"\r\n", b"\r"):
        for space in (True, False):
            pieces = [piece.replace(b"\n", line_end) for piece in PLAIN]
            if not space:
                pieces = [piece.replace(b"data: ", b"data:") for piece in pieces]
            yield from stream_of(f"01 line ends {line_end!r} space {space}", *pieces)
    yield from stream_of("01 cut within CRLF", *_cut_after(b"\r", PLAIN, b"\r\n"))
    for writes in ("bytes", "halves", "once"):
        yield from stream_of(f"02 {writes}", *PLAIN, writes=writes)
    cut = PLAIN[2].index("ä".encode()) + 1
    yield from stream_of("02 character cut", *PLAIN[:2], PLAIN[2][:cut], PLAIN[2][cut:], *PLAIN[3:])
    yield from stream_of(
        "02 twenty events in one", first, b"".join(events(*[chunk("x")] * 20)), *rest
    )
    yield from stream_of("03 comments", ping, first, ping, *rest[:-1], ping, rest[-1], ping)
    two_lines = b'data: {"choices":[{"index":0,\ndata: "delta":{"content":"x"}}]}\n\n'
    fields = b"event: message\nid: 7\nretry: 10\nx-own: y\n" + rest[0]
    yield from stream_of("04 data lines", first, two_lines, *rest)
    yield from stream_of("04 fields", b"id: 1\n\n", first, b"event: x\n\n", fields, *rest[1:])
    yield from stream_of("04 no blank line at the end", *PLAIN[:-1], DONE.rstrip(b"\n"))
    yield from stream_of("04 only line ends", b"\n\n\n\n", *PLAIN, b"\n\n", b"\r\n\r\n")
    yield from stream_of(
        "05 long line", first, b"data: " + b"x" * 300_000, b"x" * 300_000, b"\n\n", *rest
    )
    yield from stream_of(
        "05 long unfinished usage", first, b'data: {"usage":' + b"1" * 90_000, b"}\n\n", *rest
    )
    yield from stream_of("07 no [DONE]", *PLAIN[:-1])
    yield from stream_of("07 no finish", *events(*TOKENS), DONE)
    yield from stream_of("07 neither", *events(*TOKENS))
    yield from stream_of("07 two [DONE]", *PLAIN, DONE)
    yield from stream_of("07 events after [DONE]", *PLAIN, event(chunk("more")))
    error = {"message": "out of memory", "type": "InternalServerError", "code": 500}
    for name, data in {
        "error": event({"error": error}),
        "object": event({"object": "error", **error}),
        "named": b"event: error\n" + event({"message": "out of memory"}),
        "empty text": event({**chunk("x"), "error": ""}),
    }.items():
        yield from stream_of(f"08 {name}", first, rest[0], data, DONE)
    for number, data in enumerate(ODD):
        odd = b"data: " + data + b"\n\n"
        yield from stream_of(f"09 odd {number}", first, odd, rest[0], odd, *rest[1:])


ODD = [
    b"{", b"[]", b"0", b"null", b'"text"', b"\xff\xfe", b"\x00", b"[" * 3000 + b"]" * 3000,
    b'{"choices":[{"index":%s,"delta":{"content":"x"}}]}' % (b"9" * 400),
    b'{"usage":{"completion_tokens":1e400,"prompt_tokens":-5}}',
    b'{"usage":[]}', b'{"choices":null}', b'{"choices":[]}', b'{"choices":{}}',
    b'{"choices":[null]}', b'{"choices":[{"delta":null}]}', b'{"choices":[{"delta":[]}]}',
    b'{"choices":[{"index":null,"delta":{"content":"x"},"finish_reason":7}]}',
    b'{"choices":[],"choices":[{"delta":{"content":"x"}}],"usage":null,"usage":{}}',
    b'{"object":7,"type":[],"error":null}', b'{"a":NaN}', b'{"a":"\\ud800"}',
    b'{"choices":[],"prompt_filter_results":[{}]}', b'{"choices":[],"usage":null}',
]  # fmt: skip


def _cut_after(mark: bytes, pieces: tuple[bytes, ...], line_end: bytes) -> Iterator[bytes]:
    for piece in pieces:
        first, sep, rest = piece.replace(b"\n", line_end).partition(mark)
        yield first + sep
        yield rest


def _tokens() -> Iterator[Exchange]:
    first = event(ROLE)
    counted = events(
        *({**t, "usage": {**USAGE, "completion_tokens": i}} for i, t in enumerate(TOKENS))
    )
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    for name, pieces in {
        "11 reasoning": events(
            ROLE,
            chunk({"reasoning": "hm"}),
            chunk({"reasoning_content": "so"}),
            *TOKENS[1:],
            FINISH,
        ),
        "11 tool calls only": events(ROLE, chunk({"tool_calls": [call]}), chunk({}, "tool_calls")),
        "11 refusal only": events(ROLE, chunk({"refusal": "no"}), FINISH),
        "13 usage of more than its events": (
            *events(*TOKENS, FINISH),
            event(usage_chunk(usage={**USAGE, "completion_tokens": 400})),
        ),
        "14 fewer events than tokens": (first, event(FINISH), event(usage_chunk())),
        "16 one token": (first, event(chunk("x", "length"))),
        "16 empty": (first, event(FINISH)),
        "16 empty usage": (first, event(FINISH), event(usage_chunk(usage={}))),
        "17 two interleaved": events(
            ROLE,
            *(
                chunk(choices=[{"index": i, "delta": {"content": "x"}, "finish_reason": None}])
                for i in (0, 1, 1, 0)
            ),
        ),
        "54 finish_reason empty on each": events(*(chunk(t, "") for t in "abc"), FINISH),
        "59 odd side fields": events(
            ROLE,
            {**chunk("x"), "usage": "", "error": ""},
            {**FINISH, "usage": {**USAGE, "prompt_tokens_details": []}},
        ),
        "60 usage once, at the start": events({**ROLE, "usage": USAGE}, *TOKENS[1:], FINISH),
        "61 content parts": events(
            ROLE, chunk({"content": [{"type": "thinking", "thinking": "hm"}]}), FINISH
        ),
        "62 keep-alive events": events(ROLE, chunk(""), chunk(""), *TOKENS[1:], FINISH),
    }.items():
        yield from stream_of(name, *pieces, DONE)
    yield from stream_of("12 continuous usage", *counted, event(FINISH), event(usage_chunk()), DONE)
    yield from stream_of(
        "12 usage grows to the finish", *counted, event({**FINISH, "usage": USAGE}), DONE
    )
    for body in (
        b"",
        b"{",
        b'{"choices":[{"message":{"content":"a"},"finish_reason":"length"}]}',
        b"<html>bad gateway</html>",
        b"x" * 2_000_000,
    ):
        name = f"18 not streamed {body[:10]!r}"
        yield Exchange(name, post(BODY), always(replace(OK, pieces=(body,) if body else ())))
    for coding, packed in {
        "gzip": gzip.compress(OK.body, mtime=0),
        "deflate": zlib.compress(OK.body),
        "br": b"\x0b\x05\x80x\x03",
        "zstd": b"\x28\xb5\x2f\xfd\x00\x00",
        "x-own": b"???",
    }.items():
        headers: Headers = (*JSON_TYPE, ("Content-Encoding", coding))
        packed_reply = Reply((packed,), headers=headers, framing="length")
        yield Exchange(f"33 not streamed, {coding}", post(BODY), always(packed_reply))
        headers = (*EVENT_STREAM, ("content-encoding", coding))
        request = post(STREAMED, headers=(*JSON, ("Accept-Encoding", "gzip, br, zstd")))
        yield Exchange(
            f"33 streamed, {coding}", request, always(Reply((packed,), headers=headers)), rounds=3
        )
    yield Exchange(
        "33 streamed, gzip when it may",
        post(STREAMED, headers=(*JSON, ("Accept-Encoding", "gzip"))),
        honours(),
        rounds=3,
    )
    anthropic = _named_events(
        {"type": "message_start", "message": {"usage": {"input_tokens": 3}}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}},
        {"type": "message_stop"},
    )
    responses = _named_events(
        {"type": "response.output_text.delta", "delta": "a"},
        {"type": "response.incomplete", "response": {"usage": {"output_tokens": 1}}},
    )
    for path, pieces in {"/v1/messages": anthropic, "/v1/responses": responses}.items():
        for writes in ("pieces", "bytes", "once"):
            yield Exchange(
                f"20 {path} {writes}", post(STREAMED, path), always(streams(pieces, writes=writes)),
                rounds=3,
            )  # fmt: skip


WANT = b'"stream":true,"messages":[]'
BODIES: dict[str, bytes] = {
    "no options": b"{" + WANT + b"}",
    "empty options": b'{"stream_options":{},' + WANT + b"}",
    "null options": b'{"stream_options":null,' + WANT + b"}",
    "false": b'{"stream_options":{"include_usage":false},' + WANT + b"}",
    "odd spaces": b'  {  "stream" :\n true ,\t"messages" : [ ] }\r\n  ',
    "unknown option": b'{"stream_options":{"x":[1,{}]},' + WANT + b"}",
    "number forms": b"{" + WANT + b',"temperature":1.0e-0,"seed":123456789012345678901234567890}',
    "escapes": b"{" + WANT + b',"user":"\\u00e9\\/\\"{\\\\","x":"stream_options"}',
    "look alike": b'{"metadata":{"stream":false,"stream_options":{"include_usage":true}},'
    + WANT
    + b"}",
    "options last": b"{" + WANT + b',"stream_options":{ }}',
    "true": b'{"stream_options":{"include_usage":true},' + WANT + b"}",
    "wish is a text": b'{"stream_options":{"include_usage":"no"},' + WANT + b"}",
    "wish is a number": b'{"stream_options":{"include_usage":1},' + WANT + b"}",
    "not streamed": b'{"stream":false,"messages":[]}',
    "stream missing": b'{"messages":[]}',
    "stream text": b'{"stream":"true"}',
    "stream one": b'{"stream":1}',
    "invalid": b'{"stream":true,"messages":[}',
    "invalid UTF-8": b'{"stream":true,"user":"\xff"}',
    "two documents": b'{"stream":true}{"stream":true}',
    "array": b'[{"stream":true}]',
    "empty": b"",
    "options a text": b'{"stream_options":"yes",' + WANT + b"}",
    "options a list": b'{"stream_options":[],' + WANT + b"}",
    "stream twice": b'{"stream":false,"messages":[],"stream":true}',
    "options twice": b'{"stream_options":{"include_usage":true},"stream_options":null,'
    + WANT
    + b"}",
    "byte order mark": b"\xef\xbb\xbf{" + WANT + b"}",
    "image": b"{" + WANT + b',"image":"data:image/png;base64,' + b"iVBORw0K" * 2**16 + b'"}',
    "surrogates": b"{" + WANT + b',"user":"\\ud800"}',
}


def _named_events(*documents: dict[str, Any]) -> tuple[bytes, ...]:
    """Events as the Messages and Responses APIs send them, under their names."""
    return tuple(b"event: %b\n%b" % (one["type"].encode(), event(one)) for one in documents)


def _injection() -> Iterator[Exchange]:
    for name, body in BODIES.items():
        yield Exchange(f"21 body, {name}", post(body), honours(), rounds=3)
    yield Exchange(
        "21 body, gzip",
        post(
            gzip.compress(BODIES["no options"], mtime=0),
            headers=(*JSON, ("Content-Encoding", "gzip")),
        ),
        honours(),
        rounds=3,
    )
    for path in ("/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/audio/speech", "/v1/x"):
        yield Exchange(f"21 route {path}", post(BODIES["no options"], path), honours(), rounds=3)
    body = BODIES["no options"]
    parts = (body[:7], body[7:9], body[9:])
    yield Exchange(
        "21 chunked upload", Request(parts=parts, framing="chunked"), honours(), rounds=3
    )
    yield Exchange("21 upload in packets", Request(parts=parts), honours(), rounds=3)
    text = chunk("x", usage=USAGE)
    finish = {**FINISH, "usage": USAGE}
    for name, pieces in {
        "usage on a token": events(*TOKENS, text, FINISH),
        "usage on the finish": events(*TOKENS, finish),
        "filter results": events(chunk(choices=[], prompt_filter_results=[]), *TOKENS, FINISH),
        "usage null": events(*TOKENS, FINISH, chunk(choices=[], usage=None)),
        "usage at the start, too": events(usage_chunk(), *TOKENS, FINISH),
        "usage in the middle": events(*TOKENS, usage_chunk(), FINISH),
        "usage twice": events(*TOKENS, FINISH, usage_chunk(), usage_chunk()),
        "usage without choices": events(*TOKENS, FINISH, {"usage": USAGE}),
        "text that looks like it": events(*TOKENS, chunk('"choices":[],"usage":{"a":1}'), FINISH),
    }.items():
        yield from stream_of(f"23 unasked {name}", *pieces, DONE)
        extra = Extra(event(usage_chunk()))
        yield Exchange(
            f"23 beside the extra one {name}", post(STREAMED),
            by_wish((*pieces, DONE), (*pieces, extra, DONE), streams(())), rounds=3,
        )  # fmt: skip
    ping = b": ping\n\n"
    for name, plain in {
        "a comment": (*PLAIN[:-1], ping, DONE),
        "no [DONE]": PLAIN[:-1],
    }.items():
        extra = Extra(event(usage_chunk()))
        place = len(PLAIN) - 1
        asked = (*plain[:place], extra, *plain[place:])
        for writes in ("pieces", "once", "bytes"):
            yield Exchange(
                f"23 extra before {name}, {writes}", post(STREAMED),
                by_wish(plain, asked, streams((), writes=writes)), rounds=3,
            )  # fmt: skip
    for prompt in (["a", "b"], "a"):
        yield Exchange(
            f"43 forced, completions of {prompt}",
            post({"model": "qwen", "prompt": prompt, "stream": True}, COMPLETIONS),
            forces(everywhere=True), rounds=3,
        )  # fmt: skip


def _http() -> Iterator[Exchange]:
    document = json.dumps(BODY).encode()
    parts = (document[:5], document[5:])
    yield Exchange(
        "28 answer before the body is read",
        Request(parts=(b"x" * 100_000,), target="/v1/audio"),
        always(Reply((b"too large",), "413 Payload Too Large", framing="length", end="close")),
        early=True,
    )
    yield Exchange("31 expect", post(BODY, headers=(*JSON, ("Expect", "100-continue"))), always(OK))
    for version in ("HTTP/1.0", "HTTP/1.1"):
        for streaming in (False, True):
            body = STREAMED if streaming else BODY
            reply = streams(PLAIN) if streaming else OK
            label = f"{version} stream {streaming}"
            for name, headers in {
                "": JSON, " close": (*JSON, ("Connection", "close")),
                " keep-alive": (*JSON, ("Connection", "keep-alive")),
            }.items():  # fmt: skip
                request = post(body, version=version, headers=headers)
                end = "keep" if request.keeps else "close"
                if version == "HTTP/1.0" and (streaming or name == " keep-alive"):
                    continue  # its chunks are not for such a client; keeping is not offered to it
                yield Exchange(f"31 {label}{name}", request, always(replace(reply, end=end)))
    yield Exchange(
        "31 HTTP/1.0, stream until close",
        post(STREAMED, version="HTTP/1.0"),
        always(streams(PLAIN, framing="close", end="close")),
        rounds=3,
    )
    for path in (CHAT, "/v1/audio/transcriptions"):
        yield Exchange(
            f"31 chunked upload {path}",
            Request(target=path, parts=parts, framing="chunked"),
            always(OK),
        )
        yield Exchange(
            f"31 chunked upload with trailers {path}",
            Request(target=path, parts=parts, framing="chunked", trailers=b"X-Sum: 1\r\n"),
            always(OK),
        )
        yield Exchange(
            f"31 upload in packets {path}", Request(target=path, parts=parts), always(OK)
        )
        yield Exchange(
            f"31 pipelined {path}",
            Request(target=path, parts=(document,)),
            always(OK),
            pipelined=True,
        )
    yield Exchange("31 pipelined stream", post(STREAMED), honours(), pipelined=True, rounds=3)
    yield Exchange(
        "31 engine closes",
        post(BODY),
        always(replace(OK, end="close", headers=(*JSON_TYPE, ("Connection", "close")))),
    )
    yield Exchange("31 engine closes unsaid", post(BODY), always(replace(OK, end="close")))
    for method in ("HEAD", "OPTIONS", "DELETE", "PUT", "PATCH", "GET", "PURGE"):
        head = method == "HEAD"
        reply = replace(OK, pieces=(), raw=OK.head, to_head=True) if head else OK
        yield Exchange(f"31 {method}", replace(GET, method=method), always(reply))
    cors = (("Origin", "http://a"), ("Access-Control-Request-Method", "POST"))
    yield Exchange(
        "31 CORS",
        replace(GET, method="OPTIONS", headers=cors),
        always(replace(EMPTY, headers=(("access-control-allow-origin", "*"),))),
    )
    for status in ("204 No Content", "304 Not Modified"):
        yield Exchange(
            f"31 {status}",
            GET,
            always(Reply((), status, headers=(("etag", '"x"'),), framing="none")),
        )
    for status in (
        "200 OK",
        "201 Made",
        "202 Accepted",
        "206 Partial Content",
        "301 Moved",
        "307 Temporary Redirect",
        "400 Bad Request",
        "401 Unauthorized",
        "404 Nope",
        "409 Conflict",
        "418 Short And Stout",
        "429 Too Many Requests",
        "500 Oh",
        "503 Service Unavailable",
        "599 Own",
        "200 ",
    ):
        for streaming in (False, True):
            yield Exchange(
                f"31 status {status!r} stream {streaming}",
                post(STREAMED if streaming else BODY),
                always(replace(OK, status=status)),
            )
    for name, interim in {
        "100": b"HTTP/1.1 100 Continue\r\n\r\n",
        "103": b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n",
        "several": b"HTTP/1.1 102 Processing\r\n\r\n" * 3,
    }.items():
        yield Exchange(f"31 interim {name}", post(BODY), always(replace(OK, interim=interim)))
    yield Exchange(
        "31 trailers",
        post(STREAMED),
        always(streams(PLAIN, trailers=b"x-checksum: 7\r\n")),
        rounds=3,
    )
    odd_headers = (
        ("X-B", "2"), ("x-a", "1"), ("X-B", "3"), ("set-cookie", "a=1"), ("Set-Cookie", "b=2"),
        ("x-odd", "\xe9 caf\xc3\xa9"), ("X-Empty", ""), ("date", "Mon, 30 Nov 2026 19:43:24 GMT"),
        ("Server", "uvicorn"), ("x-tokgauge", "theirs"),
    )  # fmt: skip
    hops = (("Connection", "keep-alive, X-Hop"), ("X-Hop", "gone"), ("Keep-Alive", "timeout=5"))
    request_headers = (
        ("X-Z", "1"), ("authorization", "Bearer sk-x"), ("X-Z", "2"), ("X-Request-Id", "mine"),
        ("User-Agent", "test/1"), ("X-Empty", ""), ("Accept", "*/*"), ("Cookie", "a=b; c=d"),
        ("Accept-Encoding", "gzip"), ("X-Forwarded-For", "10.0.0.1"), ("Traceparent", "00-a-b-01"),
    )  # fmt: skip
    request_hops = (
        ("Connection", "keep-alive, X-Drop"),
        ("X-Drop", "x"),
        ("Keep-Alive", "300"),
        ("TE", "trailers"),
    )
    for name, sent, got in (
        ("ends", request_headers, odd_headers),
        ("hops", (*request_headers, *request_hops), (*odd_headers, *hops)),
    ):
        yield Exchange(
            f"31 headers, {name}", post(BODY, headers=sent), always(replace(OK, headers=got))
        )
        yield Exchange(
            f"31 headers, {name}, stream",
            post(STREAMED, headers=sent),
            always(
                streams(
                    PLAIN,
                )
            )
            if name == "ends"
            else always(Reply(PLAIN, headers=(*EVENT_STREAM, *got))),
            rounds=3,
        )
    yield Exchange(
        "31 buffering said",
        post(STREAMED),
        always(Reply(PLAIN, headers=(*EVENT_STREAM, ("X-Accel-Buffering", "yes")))),
        rounds=3,
    )
    for target in (
        "/v1/models/a%2Fb?x=%20&y=a+b&&z",
        "/v1/a//b/./c/../d",
        "/v1/%e4%b8%ad",
        "/v1/x?",
        "/v1/x;p=1",
        "/v1/x%00y",
        "/v1/%2e%2e/secret",
        "/",
        "/metrics?x",
        "/tokgaugex",
        "http://elsewhere.test/v1/y?z=1",
    ):
        yield Exchange(f"31 target {target}", replace(GET, target=target), always(OK))


OFFERS = {
    "JDK": (
        ("Connection", "Upgrade, HTTP2-Settings"),
        ("HTTP2-Settings", "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA"),
        ("Upgrade", "h2c"),
        ("User-Agent", "Java-http-client/17.0.1"),
        *JSON,
    ),
    "curl": (
        ("User-Agent", "curl/7.88.1"),
        ("Accept", "*/*"),
        ("Connection", "Upgrade, HTTP2-Settings"),
        ("Upgrade", "h2c"),
        ("HTTP2-Settings", "AAMAAABkAAQAoAAAAAIAAAAA"),
        *JSON,
    ),
    "odd": (*JSON, ("Connection", "keep-alive, upgrade"), ("upgrade", "foo/2, h2c")),
    "TLS": (*JSON, ("Connection", "Upgrade"), ("Upgrade", "TLS/1.0")),
    "unnamed": (*JSON, ("Upgrade", "h2c")),
}


def _offers() -> Iterator[Exchange]:
    for client, headers in OFFERS.items():
        for name, document in {"stream": STREAMED, "not streamed": BODY}.items():
            body = json.dumps(document).encode()
            requests = {
                "length": Request(parts=(body,), headers=headers),
                "length in packets": Request(parts=(b"", body[:9], body[9:]), headers=headers),
                "chunked": Request(parts=(body[:9], body[9:]), headers=headers, framing="chunked"),
            }
            for framing, request in requests.items():
                answers = honours() if name == "stream" else always(OK)
                label = f"48 {client}, {name}, {framing}"
                rounds = 3 if name == "stream" else 1
                yield Exchange(label, request, answers, rounds=rounds)
        yield Exchange(f"48 {client}, GET", replace(GET, headers=headers), always(OK))
        yield Exchange(
            f"48 {client}, pipelined",
            Request(parts=(json.dumps(BODY).encode(),), headers=headers),
            always(OK),
            pipelined=True,
        )
        refusal = Reply((b"no",), "404 Not Found", framing="length", end="close")
        yield Exchange(
            f"48 {client}, refused early",
            Request(parts=(json.dumps(BODY).encode(),), headers=headers),
            always(refusal),
            early=True,
        )
    websocket = (
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Version", "13"),
    )
    yield Exchange(
        "48 WebSocket at an engine without",
        replace(GET, target="/v1/realtime", headers=websocket),
        always(replace(OK, status="404 Not Found")),
    )


def _surplus() -> Iterator[Exchange]:
    second = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nEVIL"
    for name, surplus in {
        "a response": second,
        "junk": b"junk\r\n\r\n",
        "two line ends": b"\r\n\r\n",
        "one byte": b"x",
    }.items():
        for later in (False, True):
            more: dict[str, Any] = {"surplus": surplus, "surplus_later": later}
            label = f"49 {name}, {'later' if later else 'same write'}"
            yield Exchange(f"{label}, length", post(BODY), always(replace(OK, **more)))
            yield Exchange(
                f"{label}, chunked", post(BODY), always(replace(OK, framing="chunked", **more))
            )
            yield Exchange(
                f"{label}, one write",
                post(BODY),
                always(replace(OK, framing="chunked", writes="once", surplus=surplus)),
            )
            yield Exchange(
                f"{label}, stream", post(STREAMED), always(streams(PLAIN, **more)), rounds=3
            )
            yield Exchange(f"{label}, empty", post(BODY), always(replace(EMPTY, **more)))
            yield Exchange(
                f"{label}, 204", GET, always(Reply((), "204 No Content", framing="none", **more))
            )
            yield Exchange(
                f"{label}, HEAD",
                replace(GET, method="HEAD"),
                always(replace(OK, pieces=(), raw=OK.head, to_head=True, framing="none", **more)),
            )


CASES = [
    *_event_streams(), *_tokens(), *_injection(), *_http(), *_offers(), *_surplus(),
]  # fmt: skip
