"""Everything that a client can make endless, in bytes or in time, has a bound."""

import itertools
import re
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.conftest import MODELS, Rig
from tests.http.support import GET, PATH, assert_usable, chunked, echoed, read_all
from tests.support.chat import CHAT, body_of, whole_answer
from tests.support.client import JSON, RawClient, fetch, request
from tests.support.engine import Conversation, ScriptedEngine, json_answer, send, stream
from tests.support.metrics import wait_until
from tests.support.process import Process, serving

CHUNKED = b"POST /v1/echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
MB = 1_000_000

ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "trailers": (CHUNKED + b"1\r\nx\r\n0\r\n", b"X-Trailer: " + b"t" * 9000 + b"\r\n"),
    "one_trailer": (CHUNKED + b"0\r\nX-Trailer: ", b"t" * 10_000),
    "trailers_after_an_offer": (
        CHUNKED.replace(b"Host", b"Connection: Upgrade\r\nUpgrade: h2c\r\nHost") + b"0\r\n",
        b"X-Trailer: " + b"t" * 9000 + b"\r\n",
    ),
    "chunk_extension": (CHUNKED + b"1;a=", b"e" * 10_000),
    "chunk_extensions": (CHUNKED, b"1;a=" + b"e" * 3000 + b"\r\nx\r\n"),
    "zeros_of_a_chunk_size": (CHUNKED, b"0" * 10_000),
    "chunk_size_without_an_end": (CHUNKED, b"1" * 10_000),
    "blank_lines": (b"\r\n", b"\r\n" * 5000),
    "blank_lines_after_a_request": (GET, b"\r\n" * 5000),
    "header": (b"GET / HTTP/1.1\r\nX-A: ", b"a" * 10_000),
    "headers": (b"GET / HTTP/1.1\r\n", b"X-A: a\r\n" * 1000),
    "header_name": (b"GET / HTTP/1.1\r\n", b"A" * 10_000),
    "target": (b"GET /", b"a" * 10_000),
    "method": (b"", b"A" * 10_000),
    "version": (b"GET / HTTP/1.", b"1" * 10_000),
}


@pytest.fixture(scope="module")
def proxy() -> Iterator[Process]:
    async def anything(c: Conversation) -> None:
        await c.read_body()
        await c.send(json_answer({}))

    with ScriptedEngine(MODELS) as engine:
        engine.on(PATH, anything, early=True)
        with serving(engine.url) as process:
            for _ in range(20):
                fetch(process.port, "GET", PATH)
            yield process


def resident(proxy: Process) -> int:
    memory: int = psutil.Process(proxy.popen.pid).memory_info().rss
    return memory


def until_refused(client: RawClient, start: bytes, piece: bytes, at_most: int) -> int:
    """Send until the proxy closes; how many bytes it took."""
    sent = 0
    try:
        client.send(start)
        while sent < at_most:
            client.send(piece)
            sent += len(piece)
    except ConnectionError:
        pass
    return sent


@pytest.mark.parametrize("what", ENDLESS)
def test_nothing_is_endless(proxy: Process, what: str) -> None:
    start, piece = ENDLESS[what]
    before = resident(proxy)
    with RawClient(proxy.port, 5) as client:
        assert until_refused(client, start, piece, 60 * MB) < 50 * MB
    assert resident(proxy) - before < 8 * MB


@pytest.mark.parametrize("what", ENDLESS)
def test_a_little_too_much_is_told(proxy: Process, what: str) -> None:
    start, piece = ENDLESS[what]
    status = {400, 505} if what in ("method", "version") else {400, 431}
    with RawClient(proxy.port, 5) as client:
        client.send(start)
        if start == GET:
            assert client.read_response().status == 200
        for _ in range(80_000 // len(piece) + 40):
            client.send(piece)
        responses = read_all(client)
    assert [r.clean for r in responses] == [True] * len(responses)
    assert responses[-1].status in status, responses[-1].head


def test_as_much_as_is_allowed_passes(rig: Rig) -> None:
    echoed(rig)
    signature = b";chunk-signature=" + b"0" * 64
    signed = b"".join(
        b"%x%b\r\n%b\r\n" % (1000, signature, b"x" * 1000) for _ in range(1000)
    )  # 80 kB of extensions
    with rig.client(5) as client:
        client.send(CHUNKED, signed, b"0\r\n", b"X-A: " + b"a" * 60_000 + b"\r\n", b"\r\n")
        assert client.read_response().body.endswith(b"\n" + b"x" * 1_000_000)
        client.send(CHUNKED, b"1\r\nx\r\n" * 20_000, b"0\r\n\r\n")
        assert client.read_response().body.endswith(b"\n" + b"x" * 20_000)
        client.send(request("GET", PATH, [("X-A", "a" * 65_000)]))
        assert client.read_response().status == 200
        client.send(b"\r\n" * 1000)
        assert_usable(client)


def test_thousands_of_pipelined_requests_are_read_as_they_are_answered(proxy: Process) -> None:
    count = 5000
    one = b"GET /v1/echo HTTP/1.1\r\nHost:a\r\n\r\n"
    before = resident(proxy)
    with RawClient(proxy.port, 20) as client:
        client.send(one * count)
        most = 0
        for number in range(count):
            assert client.read_response().status == 200
            if number % 500 == 0:
                most = max(most, resident(proxy))
        assert_still = client.send(one).read_response()
        assert assert_still.status == 200
    assert most - before < 8 * MB


def test_distinct_paths_leave_nothing_behind(proxy: Process) -> None:
    def ask(numbers: range) -> None:
        with RawClient(proxy.port, 10) as client:
            for number in numbers:
                client.send(request("GET", f"/v1/{number}/" + "p" * 60_000))
                assert client.read_response().status == 404

    ask(range(200))
    before = resident(proxy)
    ask(range(200, 1700))
    assert resident(proxy) - before < 8 * MB


def test_no_key_stays_in_memory(proxy: Process) -> None:
    """What a client sends as its key is gone when its connection is."""
    key = "sk-" + "".join(f"{n:02x}" for n in range(90, 130))
    for _ in range(3):
        with RawClient(proxy.port, 5) as client:
            client.send(request("GET", PATH, [("Authorization", f"Bearer {key}")]))
            assert client.read_response().status == 200
    for number in range(300):  # other requests take the place of the freed memory
        fetch(proxy.port, "GET", PATH, [("Authorization", "Bearer " + f"other-{number:04}" * 12)])
    found = 0
    with open(f"/proc/{proxy.popen.pid}/maps") as maps:
        writable = [line.split()[0] for line in maps if " rw" in line]
    with open(f"/proc/{proxy.popen.pid}/mem", "rb", 0) as memory:
        for place in writable:
            start, end = (int(part, 16) for part in place.split("-"))
            try:
                memory.seek(start)
                found += len(re.findall(key.encode(), memory.read(end - start)))
            except (OSError, ValueError):
                continue
    assert found <= 3  # a freed copy or two may not be overwritten yet


# Time


@pytest.fixture
def hasty(new_rig: Callable[..., Rig]) -> Rig:
    return echoed(new_rig(head_timeout=0.6, body_timeout=0.6, keep_alive_timeout=1.2))


UNFINISHED: dict[str, bytes] = {
    "half_a_head": b"GET /v1/echo HTTP/1.1\r\nHost: a\r\nX-A",
    "one_byte": b"G",
    "half_a_body": request("POST", PATH, [("Content-Length", "10")]) + b"12345",
    "no_body": request("POST", PATH, [("Content-Length", "10")]),
    "half_a_chunk": CHUNKED + b"5\r\n12",
    "half_the_trailers": CHUNKED + b"1\r\nx\r\n0\r\nX-A: 1\r\n",
    "half_a_chat": request("POST", CHAT, [JSON, ("Content-Length", "100")]) + b"{",
    "no_continued_body": request(
        "POST", PATH, [("Content-Length", "10"), ("Expect", "100-continue")]
    ),
}


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("what", UNFINISHED)
def test_what_is_not_finished_ends_in_408(hasty: Rig, what: str, ahead: int) -> None:
    watch = hasty.watch()
    with hasty.client(5) as client:
        client.send(GET * ahead + UNFINISHED[what])
        for _ in range(ahead):
            assert client.read_response().status == 200
        started = time.monotonic()
        response = client.read_response()
        assert response.status == 408
        assert response.clean
        error = response.json()
        assert isinstance(error, dict)
        assert error["error"]["code"] == "request_timeout"
        assert client.at_end()
        assert 0.3 < time.monotonic() - started < 3
    assert watch.after(ahead + 1).outcomes == {"rejected": 1, **({"ok": 1} if ahead else {})}
    wait_until(lambda: not hasty.scrape().total("requests_in_flight"))


def test_a_connection_that_says_nothing_is_closed(hasty: Rig) -> None:
    with hasty.client(5) as client, hasty.client(5) as kept:
        assert_usable(kept)
        started = time.monotonic()
        assert client.at_end()
        assert kept.at_end()
        assert 0.6 < time.monotonic() - started < 4


def test_slow_but_steady_is_legal(hasty: Rig) -> None:
    with hasty.client(5) as client, hasty.client(5) as other:
        client.send(request("POST", PATH, [("Content-Length", "8")]))
        other.send(CHUNKED)
        for _ in range(8):
            time.sleep(0.2)
            client.send(b"x")
            other.send(b"1\r\nx\r\n")
        other.send(b"0\r\n\r\n")
        for one in (client, other):
            assert one.read_response().body == b"POST /v1/echo HTTP/1.1\nxxxxxxxx"
            assert_usable(one)


def test_the_clients_time_ends_with_its_request(hasty: Rig) -> None:
    """Limits are for what the client has to do: not for answers, and not while the proxy waits."""

    async def late(c: Conversation) -> None:
        await c.pause(1.0)
        await stream(*whole_answer("a", "b"), gap=0.3)(c)

    hasty.engine.on(CHAT, late)
    with hasty.client(8) as client:
        client.send(request("POST", CHAT, [JSON], body_of(asked=True)), GET[:20])
        assert client.read_response().clean
        client.send(GET[20:])
        assert client.read_response().status == 200


def test_an_engine_that_takes_no_body_is_not_the_clients_fault(hasty: Rig) -> None:
    async def slow(c: Conversation) -> None:
        await c.pause(1.5)
        await c.read_body()
        await c.send(json_answer({}))

    hasty.engine.on(PATH, slow, early=True)
    with hasty.client(8) as client:
        client.send(request("POST", PATH, [], b"x" * 20_000_000))
        assert client.read_response().status == 200


@pytest.mark.parametrize("steady", [True, False], ids=["steady", "silent"])
def test_the_rest_of_a_body_that_nobody_wants_has_no_endless_time(hasty: Rig, steady: bool) -> None:
    hasty.engine.on(PATH, send(json_answer({}, "413 Content Too Large")), early=True)
    with hasty.client(5) as client:
        client.send(CHUNKED + b"1\r\nx\r\n")
        assert client.read_response().status == 413
        started = time.monotonic()
        try:
            while steady and time.monotonic() - started < 5:
                client.send(b"1\r\nx\r\n")
                time.sleep(0.02)
            assert client.at_end()
        except ConnectionError:
            pass
        assert time.monotonic() - started < 4


def test_a_client_that_leaves_in_the_middle_is_no_timeout(hasty: Rig) -> None:
    watch = hasty.watch()
    with hasty.client(5) as client:
        client.send(UNFINISHED["half_a_body"])
        hasty.engine.wait_requests(1)
    assert watch.after().outcomes == {"client_closed": 1}


# Memory of bodies that are not complete


def test_unfinished_bodies_share_a_bound() -> None:
    """Beyond it a body goes up as it comes; none of them is refused."""
    size = 4 * MB
    with ScriptedEngine(MODELS) as engine:
        engine.on(CHAT, send(json_answer({"a": 1})), early=False)
        options = ("--unfinished-bodies-bytes", str(8 * MB))
        with serving(engine.url, *options) as proxy:
            body = body_of(stream=False, pad="x" * size)
            for _ in range(4):  # buffers that stay are there before the first look
                assert fetch(proxy.port, "POST", CHAT, [JSON], body).status == 200
            engine.requests.clear()
            before = resident(proxy)
            clients = [RawClient(proxy.port, 20) for _ in range(20)]
            head = request("POST", CHAT, [JSON, ("Content-Length", str(len(body)))])
            for client in clients:
                client.send(head + body[:-1000])
            time.sleep(0.5)
            grown = resident(proxy) - before
            assert 8 <= len(engine.requests) < 20, "some are collected, the others have gone up"
            for client in clients:
                client.send(body[-1000:])
            for client in clients:
                assert client.read_response().status == 200
                client.close()
            assert grown < 40 * MB, f"{grown} bytes"  # all of them are 80 MB
    assert len(engine.requests) == 20
    assert all(received.body == body for received in engine.requests)


def test_what_unfinished_bodies_held_is_given_back(new_rig: Callable[..., Rig]) -> None:
    """However they end: afterwards there is room for others, which are read for measuring."""
    rig = new_rig(unfinished_bodies_bytes=200_000, body_timeout=0.4)
    rig.teach()
    rig.engine.on(CHAT, stream(*whole_answer("a", "b")))
    head = request("POST", CHAT, [JSON, ("Content-Length", "1000000")])
    ways = itertools.cycle(["leave", "malformed", "stall"])
    for _ in range(9):
        way = next(ways)
        with rig.client(5) as client:
            if way == "malformed":
                client.send(CHUNKED.replace(PATH.encode(), CHAT.encode()))
                client.send(b"20000\r\n" + b" " * 0x20000 + b"\r\nzz\r\n")
                assert client.read_response().status == 400
            else:
                client.send(head + b"{" + b" " * 150_000)
                if way == "stall":
                    assert client.read_response().status == 408
    wait_until(lambda: not rig.scrape().total("requests_in_flight"))
    response = fetch(rig.port, "POST", CHAT, [JSON], body_of(pad="x" * 150_000))
    assert response.clean
    assert b"stream_options" in rig.engine.requests[-1].body, "it was read"


def test_bodies_of_tiny_chunks_hold_no_more_than_their_bytes() -> None:
    with ScriptedEngine(MODELS) as engine, serving(engine.url) as proxy:
        engine.on(CHAT, send(json_answer({})))
        before = resident(proxy)
        with RawClient(proxy.port, 20) as client:
            client.send(CHUNKED.replace(PATH.encode(), CHAT.encode()))
            for _ in range(100):
                client.send(chunked(*[b" "] * 10_000)[:-5])
            assert resident(proxy) - before < 15 * MB
            client.send(b"0\r\n\r\n")
            assert client.read_response().status == 200
        assert len(engine.requests[0].body) == 1_000_000
