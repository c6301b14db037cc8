"""A read that is exactly one chunk passes the parser by: nobody may notice it, whatever comes."""

import asyncio
from collections.abc import Iterator
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokgauge.http.client import connection as connections
from tokgauge.http.client.connection import EngineConnection
from tokgauge.http.client.parser import chunk_body
from tokgauge.http.client.request_head import request_head

from tests.http.client.support import Recorder

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LIMIT = 4096
CHUNK = b"9\r\ndata: x\n\n\r\n"


class Socket:
    """A transport that carries nothing."""

    def __init__(self) -> None:
        self.reading = True
        self.aborted = False

    def write(self, data: bytes) -> None:
        pass

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 0


class Owner:
    def __init__(self) -> None:
        self.idle = 0

    def connection_idle(self, connection: EngineConnection) -> None:
        self.idle += 1

    def connection_closed(self, connection: EngineConnection) -> None: ...

    def connection_gone(self, connection: EngineConnection) -> None: ...


class Heard(Recorder):
    """Stops reading after the reads in `pauses`."""

    def __init__(self, pauses: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self.at_data = lambda: self.pause() if len(self.reads) in pauses else None


def hear(
    call: Recorder, reads: list[bytes], *, closes: bool, parses: bool = False
) -> tuple[object, ...]:
    """All that is told of these reads, whether the connection lives, and how often it was idle.

    parses: the parser gets every read.
    """
    loop = asyncio.new_event_loop()
    owner, socket = Owner(), Socket()
    try:
        with pytest.MonkeyPatch.context() as patch:
            if parses:
                patch.setattr(connections, "chunk_body", lambda data: None)
            connection = EngineConnection(loop, owner, LIMIT)
            connection.transport = cast(asyncio.Transport, socket)
            call.connection = connection
            head = request_head("GET", b"/", [(b"Host", b"a")])
            connection.send(call, head, b"", complete=True, reads_body=True)
            for read in reads:
                connection.data_received(read)
                if not socket.reading:
                    connection.resume_reading()
                    socket.reading = True
            if closes and not connection.closed:
                connection.eof_received()
            lives = not connection.closed
            connection.close()
    finally:
        loop.close()
    assert call.told_after_end == 0
    ends = [(type(end), str(end)) for end in call.ends]
    return call.heads, call.reads, ends, lives, owner.idle


WORDS = [b"data: x", b"5", b"a", b"\r", b"\n", b"\n\n", b"\r\n", b"\n\n\r\n", CHUNK, b"0\r\n\r\n"]
ENDS = [b"\n\n", b"\n\n", b"\n\n", b"\r\n\r\n", b"\n", b"x", CHUNK]


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    words = draw(st.lists(st.sampled_from(WORDS), max_size=4))
    return b"".join(words) + draw(st.sampled_from(ENDS))


@st.composite
def chunks(draw: st.DrawFn) -> bytes:
    body = draw(bodies())
    plain = b"%x" % len(body)
    line = draw(
        st.sampled_from([plain] * 8 + [plain.upper(), b"0" + plain, plain + b";name=value"])
    )
    return line + b"\r\n" + body + b"\r\n"


LAST = st.sampled_from(
    [b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nName: value\r\n\r\n", b"00\r\n\r\n", b"0;x\r\n\r\n", b"",
     b"\r\n", b"\n\n\r\n", b"5\r\n", b"zz\r\n", b"0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"]
)  # fmt: skip


@st.composite
def cut(draw: st.DrawFn) -> list[bytes]:
    """An answer in reads: a chunk each for the most part, cut and put together anywhere else."""
    parts = [HEAD, *draw(st.lists(chunks(), max_size=12)), draw(LAST)]
    reads: list[bytes] = []
    for part in parts:
        how = draw(st.sampled_from(["whole", "whole", "whole", "cut", "lines", "joined"]))
        if how == "cut" and len(part) > 1:
            at = draw(st.integers(1, len(part) - 1))
            reads += [part[:at], part[at:]]
        elif how == "lines":
            # Where a chunk inside of a body looks like one of the framing's.
            lines = part.replace(b"\n\r\n", b"\n\r\n\0").replace(CHUNK, b"\0" + CHUNK + b"\0")
            reads += lines.split(b"\0")
        elif how == "joined" and reads:
            reads[-1] += part
        else:
            reads.append(part)
    return [read for read in reads if read]


@settings(max_examples=400, deadline=None)
@given(reads=cut(), closes=st.booleans(), pauses=st.frozensets(st.integers(1, 8), max_size=2))
def test_any_framing_is_heard_as_the_parser_hears_it(
    reads: list[bytes], closes: bool, pauses: frozenset[int]
) -> None:
    told = hear(Heard(pauses), reads, closes=closes, parses=True)
    assert hear(Heard(pauses), reads, closes=closes) == told


def cases() -> Iterator[tuple[str, list[bytes], int]]:
    yield "events", [HEAD, CHUNK, CHUNK, CHUNK, b"0\r\n\r\n"], 3
    yield "the head comes with the first", [HEAD + CHUNK, CHUNK, CHUNK], 2
    yield "two in one read", [HEAD + CHUNK, CHUNK + CHUNK, CHUNK], 1
    yield "cut inside, then whole again", [HEAD + CHUNK, CHUNK[:5], CHUNK[5:], CHUNK, CHUNK], 2
    yield (
        "a body that looks like framing",
        [HEAD + b"2\r\n\n\n\r\n", b"5\r\n0\r\n\r\n\r\n", CHUNK],
        2,
    )
    yield "upper case is for the parser", [HEAD + CHUNK, b"A\r\ndata: xy\n\n\r\n", CHUNK], 1
    yield "an extension is", [HEAD + CHUNK, b"9;a\r\ndata: x\n\n\r\n", CHUNK], 1
    yield "one byte more is", [HEAD + CHUNK, CHUNK + b"9", CHUNK[1:], CHUNK], 1
    inside = b"a\n\n\r\n" + CHUNK + b"z\n\n"
    begins = b"%x\r\na\n\n\r\n" % len(inside)
    yield "one inside a body is not one", [HEAD + CHUNK, begins, CHUNK, b"z\n\n\r\n", CHUNK], 1
    size = b"%x\r\n" % len(CHUNK)
    yield "nor is one after its size line", [HEAD + CHUNK, CHUNK + size, CHUNK, b"\r\n", CHUNK], 0
    yield "no event's end: not known", [HEAD + b"1\r\nx\r\n", b"1\r\nx\r\n", CHUNK, CHUNK], 1


@pytest.mark.parametrize(
    ("reads", "whole"), [case[1:] for case in cases()], ids=[c[0] for c in cases()]
)
def test_what_passes_the_parser_by(reads: list[bytes], whole: int) -> None:
    call = Heard()
    heard = hear(call, reads, closes=True)
    assert sum(raw is not None for raw in call.raws) == whole
    assert heard == hear(Heard(), reads, closes=True, parses=True)


@pytest.mark.parametrize("size", [1, 15, 16, 255, 256, 1016])
def test_the_framing_is_known_by_its_length(size: int) -> None:
    body = b"a" * size
    assert chunk_body(b"%x\r\n%b\r\n" % (size, body)) == body


@pytest.mark.parametrize("length", [0, 5, 21, 262, 1024, 10**6])
def test_no_chunk_is_that_long(length: int) -> None:
    assert chunk_body(b"a" * length) is None


@pytest.mark.parametrize("parses", [False, True])
def test_what_is_raised_at_a_chunk_ends_its_response(parses: bool) -> None:
    def fail() -> None:
        if len(call.reads) == 2:
            raise OSError("gone")

    call = Recorder()
    call.at_data = fail
    heads, reads, ends, lives, _ = hear(
        call, [HEAD + CHUNK, CHUNK, CHUNK], closes=False, parses=parses
    )
    assert (heads, reads) == ([(200, True)], [b"data: x\n\n"] * 2)
    assert ends == [(OSError, "gone")]
    assert not lives
