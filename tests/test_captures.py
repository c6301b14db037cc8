"""Real engines' bytes, replayed through the proxy in five cuttings of the same bytes.

`captures/expected.json` says for each capture which request led to it and what is measured. It was
derived from the bytes alone. Where a finish event with an empty text may or may not be a token, the
number of token events is a range. `outputs`: whether anything but reasoning was seen.
"""

import json
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Rig
from tests.support.client import JSON, Response
from tests.support.engine import Conversation, parse_headers
from tests.support.metrics import Scrape, Watch

CAPTURES = Path(__file__).parent / "captures"
EXPECTED: dict[str, dict[str, Any]] = json.loads((CAPTURES / "expected.json").read_text())
HIDDEN = [name for name, expected in EXPECTED.items() if expected.get("hide")]

HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade"}
ADDED = {b"x-tokgauge-id", b"x-accel-buffering"}


@dataclass
class Capture:
    """A captured response in its parts; `blocks` are the writes as they were made."""

    raw: bytes
    head: bytes
    body: bytes
    blocks: list[bytes]

    @classmethod
    def load(cls, name: str) -> "Capture":
        raw = (CAPTURES / f"{name}.http").read_bytes()
        start = 0
        end = raw.index(b"\r\n\r\n") + 4
        if raw.startswith(b"HTTP/1.1 100 "):
            start, end = end, raw.index(b"\r\n\r\n", end) + 4
        head, rest = raw[start:end], raw[end:]
        blocks = [raw[:end]]
        if not re.search(rb"(?im)^transfer-encoding: *chunked", head):
            return cls(raw, head, rest, [*blocks, rest] if rest else blocks)
        body = b""
        while rest:
            line = rest.index(b"\r\n") + 2
            size = int(rest[:line], 16)
            blocks.append(rest[: line + size + 2])
            body += rest[line : line + size]
            rest = rest[line + size + 2 :]
        return cls(raw, head, body, blocks)


def as_captured(capture: Capture) -> list[bytes]:
    return capture.blocks


def bytewise(capture: Capture) -> list[bytes]:
    """One byte per write; of a long capture its first and last 4,000 bytes, to save time."""
    raw = capture.raw
    edge = 4000 if len(raw) > 8000 else len(raw)
    first, middle, last = raw[:edge], raw[edge : len(raw) - edge], raw[max(edge, len(raw) - edge) :]
    pieces = [first[i : i + 1] for i in range(len(first))]
    pieces += [middle] if middle else []
    return pieces + [last[i : i + 1] for i in range(len(last))]


def at_once(capture: Capture) -> list[bytes]:
    return [capture.raw]


def in_segments(capture: Capture) -> list[bytes]:
    return [capture.raw[i : i + 1447] for i in range(0, len(capture.raw), 1447)]


def within_line_ends(capture: Capture) -> list[bytes]:
    """Cut between CR and LF, and between the two LF that end an event."""
    return re.split(rb"(?<=\r)(?=\n)|(?<=\n)(?=\n)", capture.raw)


CUTTINGS = [as_captured, bytewise, at_once, in_segments, within_line_ends]


async def replay(pieces: list[bytes], close: bool, conversation: Conversation) -> None:
    await conversation.send(*pieces)
    if close:
        conversation.close()


def end_to_end(head: bytes) -> list[tuple[bytes, bytes]]:
    dropped = HOP_BY_HOP | ADDED
    return [(n.lower(), v) for n, v in parse_headers(head) if n.lower() not in dropped]


def exchange(rig: Rig, expected: dict[str, Any], body: Any, pieces: list[bytes]) -> Response:
    rig.engine.on(expected["path"], partial(replay, pieces, expected["end"] != "complete"))
    with rig.client() as client:
        document = None if body is None else json.dumps(body).encode()
        headers = [] if body is None else [JSON]
        client.request(expected["method"], expected["path"], headers, document)
        return client.read_response(to_head=expected["method"] == "HEAD")


def by_label(gained: Scrape, name: str, label: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for labels in gained.labels(name):
        values[labels[label]] = gained.total(name, **{label: labels[label]}) or 0.0
    return values


def measured(gained: Scrape) -> dict[str, Any]:
    """The counts of one exchange: all that must not depend on how the bytes were cut."""
    return {
        "outcomes": gained.outcomes,
        "codes": by_label(gained, "requests_total", "code"),
        "completion": by_label(gained, "completion_tokens_total", "source"),
        "prompt": gained.total("prompt_tokens_total"),
        "finish": by_label(gained, "finish_reasons_total", "reason"),
        "truncations": gained.total("truncations_total"),
        "token_events": gained.total("token_events_total"),
        "firsts": gained.count("time_to_first_token_seconds"),
        "outputs": gained.count("time_to_first_output_seconds"),
    }


def check_counts(counts: dict[str, Any], expected: dict[str, Any]) -> None:
    assert counts["outcomes"] == {expected["outcome"]: 1.0}
    assert counts["codes"] == {str(expected["code"]): 1.0}
    if "token_events" in expected:
        least, most = expected["token_events"]
        assert least <= (counts["token_events"] or 0) <= most
        assert counts["firsts"] == (most > 0)
    if "outputs" in expected:
        assert counts["outputs"] == expected["outputs"]
    if expected.get("source") == "usage":
        tokens = expected["completion_tokens"]
        assert counts["completion"] == ({"usage": tokens} if tokens else {})
        assert counts["prompt"] == expected["prompt_tokens"]
    elif expected.get("source") == "events":
        assert counts["completion"] == {"events": counts["token_events"]}
    else:
        assert counts["completion"] == {}
    assert (counts["truncations"] or 0) == expected.get("truncations", 0)
    finish = expected.get("finish_reasons", {})
    if "*" in finish:  # the other dialects' words for it: one reason, however it is spelled
        assert sum(counts["finish"].values()) == 1
    else:
        assert counts["finish"] == finish


@pytest.mark.parametrize("name", EXPECTED)
def test_replayed_in_every_cutting(rig: Rig, name: str) -> None:
    expected = EXPECTED[name]
    capture = Capture.load(name)
    watch = Watch(rig.port)
    first = None
    for cutting in CUTTINGS:
        response = exchange(rig, expected, expected["body"], cutting(capture))
        told = f"{name}, {cutting.__name__}"
        assert response.body == capture.body, told
        assert response.status_line == capture.head.split(b"\r\n")[0], told
        assert end_to_end(response.head) == end_to_end(capture.head), told
        assert response.clean is (expected["end"] != "cut"), told
        counts = measured(watch.after())
        first = first or counts
        assert counts == first, told
    assert first is not None
    check_counts(first, expected)


def as_unasked(body: bytes) -> bytes:
    """The stream that vLLM sends without the wish: `system_fingerprint` rides on every event with
    which a choice finishes, and there is no usage event.
    """
    found = re.search(rb'data: [^\n]*"choices":\[\],"usage":[^\n]*\n\n', body)
    assert found is not None
    fingerprint = re.search(rb',"system_fingerprint":"[^"]*"', found.group())
    assert fingerprint is not None
    rest = body[: found.start()] + body[found.end() :]
    stamped = rb"\g<0>" + fingerprint.group() + b"}"
    return re.sub(rb'data: [^\n]*"finish_reason":"[^\n]*(?=\}\n\n)', stamped, rest).replace(
        fingerprint.group() + b"}}\n", fingerprint.group() + b"}\n"
    )


@pytest.mark.parametrize("options", [None, {"include_usage": False}], ids=["unasked", "refused"])
@pytest.mark.parametrize("name", HIDDEN)
def test_injected_usage_is_hidden_in_every_cutting(
    rig: Rig, name: str, options: dict[str, bool] | None
) -> None:
    expected = EXPECTED[name]
    capture = Capture.load(name)
    body = {**expected["body"], "stream_options": options}
    if options is None:
        del body["stream_options"]
    unasked = as_unasked(capture.body)
    plain = [capture.head, b"%x\r\n%b\r\n0\r\n\r\n" % (len(unasked), unasked)]
    assert exchange(rig, {**expected, "end": "complete"}, body, plain).body == unasked
    watch = Watch(rig.port)
    for cutting in CUTTINGS:
        response = exchange(rig, expected, body, cutting(capture))
        assert bytes(response.body) == unasked, cutting.__name__
        assert end_to_end(response.head) == end_to_end(capture.head)
        assert response.clean
        check_counts(measured(watch.after()), expected)


def test_every_capture_has_its_expectation() -> None:
    stored = {str(p.relative_to(CAPTURES).with_suffix("")) for p in CAPTURES.rglob("*.http")}
    assert stored == set(EXPECTED)
