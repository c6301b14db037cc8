"""Exchanges made by combining: engines × wishes, framing × content type, and who leaves when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.direct.engines import (
    CHAT,
    COMPLETIONS,
    DONE,
    ENGINES,
    EVENT_STREAM,
    FINGERPRINT,
    PLAIN,
    always,
    by_wish,
    forces,
    honours,
    moves,
    streams,
)
from tests.direct.harness import Answers, Exchange
from tests.direct.replies import Extra, Headers, Joined, Reply, Request, post

WISHES: dict[str, Any] = {
    "none": ...,
    "null": None,
    "empty": {},
    "true": {"include_usage": True},
    "false": {"include_usage": False},
    "continuous": {"include_usage": True, "continuous_usage_stats": True},
    "continuous only": {"continuous_usage_stats": True},
}
ROUNDS = 3
"""The first teaches, the second is the first with the wish, the third is every later one."""


def ask(options: Any = ..., **more: Any) -> Request:
    document: dict[str, Any] = {"model": "qwen", "messages": [{"role": "user", "content": "Hi"}]}
    document["stream"] = True
    if options is not ...:
        document["stream_options"] = options
    return post(document, **more)


def _engines_and_wishes() -> Iterator[Exchange]:
    for engine, answers in ENGINES.items():
        for name, options in WISHES.items():
            if name in ("null", "empty", "continuous only") and engine not in ("honours", "forces"):
                continue
            # A client whose own wish is refused gets the refusal, however it looks.
            if name in ("true", "continuous") and engine.startswith("refuses"):
                continue
            yield Exchange(f"{engine}, wish {name}", ask(options), answers, rounds=ROUNDS)
        yield Exchange(f"{engine}, completions", ask(target=COMPLETIONS), answers, rounds=ROUNDS)


FRAMINGS: dict[str, dict[str, Any]] = {
    "length": {"framing": "length"},
    "chunked": {"framing": "chunked"},
    "chunks in halves": {"framing": "halves"},
    "one chunk": {"framing": "one", "writes": "once"},
    "until close": {"framing": "close", "end": "close"},
    "HTTP/1.0": {"framing": "close", "end": "close", "version": "HTTP/1.0"},
}
CONTENT_TYPES: dict[str, Headers] = {
    "event-stream": (("content-type", "text/event-stream"),),
    "with charset": EVENT_STREAM,
    "odd case": (("Content-Type", 'Text/Event-Stream;Charset="UTF-8"'),),
    "plain": (("content-type", "text/plain; charset=utf-8"),),
    "JSON": (("content-type", "application/json"),),
    "none": (),
}


def _framings_and_types() -> Iterator[Exchange]:
    for framing, how in FRAMINGS.items():
        for content, headers in CONTENT_TYPES.items():
            reply = Reply(headers=headers, **how)
            yield Exchange(f"{framing}, {content}", ask(), honours(reply), rounds=ROUNDS)
        reply = Reply(headers=EVENT_STREAM, **how)
        yield Exchange(
            f"{framing}, fingerprint", ask(),
            moves(Joined, reply, system_fingerprint=FINGERPRINT), rounds=ROUNDS,
        )  # fmt: skip
        yield Exchange(f"{framing}, forced", ask(), forces(reply), rounds=ROUNDS)
        yield Exchange(f"{framing}, asked", ask({"include_usage": True}), honours(reply))
        yield Exchange(
            f"{framing}, client of HTTP/1.0", ask(version="HTTP/1.0"),
            honours(replace(reply, end="close")), rounds=ROUNDS,
        )  # fmt: skip


def _cuttings() -> Iterator[Exchange]:
    for writes in ("once", "halves", "bytes"):
        for framing in ("chunked", "length", "close"):
            end = "close" if framing == "close" else "keep"
            reply = Reply(headers=EVENT_STREAM, framing=framing, writes=writes, end=end)
            for name, answers in {
                "honours": honours(reply),
                "forces": forces(reply),
            }.items():
                yield Exchange(f"{framing} {writes}, {name}", ask(), answers, rounds=ROUNDS)
    for line_end in (b"\r\n", b"\r"):
        plain = tuple(piece.replace(b"\n", line_end) for piece in PLAIN)
        extra = Extra(honours()(b'{"stream_options":{"include_usage":true}}').pieces[-2])
        extra = Extra(extra.replace(b"\n", line_end))
        for writes in ("pieces", "bytes", "once"):
            reply = Reply(headers=EVENT_STREAM, writes=writes)
            yield Exchange(
                f"line ends {line_end!r} {writes}", ask(),
                by_wish(plain, (*plain[:-1], extra, plain[-1]), reply), rounds=ROUNDS,
            )  # fmt: skip


def _stops(answers: Answers, **more: Any) -> Answers:
    """The same engine, which stops or is left where `more` says."""
    return lambda body: replace(answers(body), **more)


def _cut(answers: Answers, after: int, **more: Any) -> Answers:
    """It stops after so many pieces; counted from the end when negative."""

    def answer(body: bytes) -> Reply:
        reply = answers(body)
        extra = sum(isinstance(piece, Extra) for piece in reply.pieces)
        cut = after if after >= 0 else len(reply.pieces) + after
        if after >= 0 and cut >= len(reply.pieces) - 1 - extra:
            cut += extra
        return replace(reply, cut=cut, **more)

    return answer


def _aborts() -> Iterator[Exchange]:
    done = len(PLAIN)
    framings = {"chunked": {}, "length": {"framing": "length"}, "until close": {"framing": "close"}}
    for framing, how in framings.items():
        reply = streams((), **how)
        for name, options in (("unasked", ...), ("asked", {"include_usage": True})):
            answers, request = honours(reply), ask(options)
            label = f"{framing} {name}"
            rounds = ROUNDS if options is ... else 1
            for end in ("close", "reset"):
                if framing == "until close" and end == "close":
                    continue  # that is its end
                yield Exchange(
                    f"engine ends in mid-stream, {end}, {label}", request,
                    _cut(answers, 3, end=end), rounds=rounds,
                )  # fmt: skip
                yield Exchange(
                    f"engine ends inside an event, {end}, {label}", request,
                    _cut(answers, 2, inside=True, end=end), rounds=rounds,
                )  # fmt: skip
            for leaves_by in ("close", "reset"):
                for after in (0, 3):
                    yield Exchange(
                        f"client leaves after {after}, {leaves_by}, {label}", request,
                        _cut(answers, after, end="leaves"), leaves=after, leaves_by=leaves_by,
                        rounds=rounds,
                    )  # fmt: skip
            if name == "unasked" and framing == "chunked":
                yield Exchange(
                    f"client leaves after [DONE], {label}", request,
                    _cut(answers, done, end="leaves"), leaves=done, rounds=rounds,
                )  # fmt: skip
    for end in ("close", "reset"):
        for name, options in (("unasked", ...), ("asked", {"include_usage": True})):
            yield Exchange(
                f"engine ends before the head, {end}, {name}", ask(options),
                always(Reply(dies=True, end=end)), rounds=ROUNDS,
            )  # fmt: skip
    for leaves_by in ("close", "reset"):
        for name, request in {
            "stream": ask(),
            "asked": ask({"include_usage": True}),
            "not streamed": post({"model": "qwen", "messages": []}),
        }.items():
            silent = always(Reply(pieces=(b"",), dies=True, end="leaves"))
            yield Exchange(
                f"client leaves before the head, {leaves_by}, {name}", request, silent,
                leaves=-1, leaves_by=leaves_by,
            )  # fmt: skip


def _after_others() -> Iterator[Exchange]:
    """What an engine has taught does not stand in the way of what it sends later."""
    taught = Exchange("taught", ask(), honours(), rounds=ROUNDS)
    fp = moves(Joined, system_fingerprint=FINGERPRINT)
    taught_fp = Exchange("taught with a fingerprint", ask(), fp, rounds=ROUNDS)
    tool_call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f"}}
    call = (PLAIN[0], _event_with({"tool_calls": [tool_call]}), _event_with({}, "tool_calls"))
    for name, answers in {
        "an error": always(Reply((b"{}",), "503 Service Unavailable", framing="length")),
        "an error event": always(streams((PLAIN[0], b'data: {"error":{"code":500}}\n\n', DONE))),
        "no [DONE]": by_wish(
            PLAIN[:-1],
            (*PLAIN[:-1], honours()(b'{"stream_options":{"include_usage":true}}').pieces[-2]),
            streams(()),
        ),
        "a tool call": by_wish((*call, DONE), (*call, _usage_extra(), DONE), streams(())),
        "nothing": always(streams(())),
        "JSON": always(
            Reply(
                (b'{"object":"chat.completion"}',),
                framing="length",
                headers=(("content-type", "application/json"),),
            )
        ),
    }.items():
        yield Exchange(f"after honouring, {name}", ask(), answers, lessons=(taught,), rounds=2)
    for name, answers in {
        "forces": forces(),
        "forces everywhere": forces(everywhere=True),
        "forces on the finish": forces(events_own=False),
        "refuses by name": ENGINES["refuses, 400 by name"],
        "refuses with 422": ENGINES["refuses, 422 text"],
        "moves the fingerprint": fp,
        "moves timings apart": ENGINES["timings move apart"],
    }.items():
        for lesson in (taught, taught_fp):
            yield Exchange(
                f"{lesson.name}, restarted, {name}", ask(), answers, lessons=(lesson,),
                restarts=True, rounds=ROUNDS,
            )  # fmt: skip
    yield Exchange(
        "two streams alike, another route", ask(target=COMPLETIONS), forces(),
        lessons=(Exchange("taught at chat", ask(target=CHAT), honours(), rounds=ROUNDS),),
        rounds=ROUNDS,
    )  # fmt: skip


def _event_with(delta: dict[str, Any], finish: str | None = None) -> bytes:
    from tests.direct.engines import chunk, event

    return event(chunk(delta, finish))


def _usage_extra() -> Extra:
    piece = honours()(b'{"stream_options":{"include_usage":true}}').pieces[-2]
    assert isinstance(piece, Extra)
    return piece


COMBINED = [
    *_engines_and_wishes(), *_framings_and_types(), *_cuttings(), *_aborts(), *_after_others(),
]  # fmt: skip
