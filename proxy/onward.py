"""The head of an answer as it goes on to the client, rendered once for answers that are alike."""

from __future__ import annotations

from proxy.headers import Header, content_headers, to_client
from proxy.protocol import Client, render_head
from proxy.transport import ResponseReader

_MARK = b"\0"  # cannot be in a head


def content_of(head: ResponseReader) -> dict[str, str]:
    """Content-Type and Content-Encoding of an answer, by name in lower case."""
    seen = head.seen
    if seen is None:
        return content_headers(head.headers)
    content: dict[str, str] | None = seen.onward.get("content")
    if content is None:
        content = seen.onward["content"] = content_headers(head.headers)
    return content


def begin_answer(
    client: Client, head: ResponseReader, *, exchange_id: bytes, hides: bool, body_follows: bool
) -> bool:
    """Begin the answer at the client. hides: the body may become shorter than it came."""
    seen = head.seen
    if seen is not None and client.keep_alive and client.request.simple:
        rendered: tuple[bytes, bytes | None] | None = seen.onward.get(hides)
        if rendered is None:
            rendered = seen.onward[hides] = _pattern(client, head, hides)
        framing, pattern = rendered
        if pattern is not None:
            block = pattern % (*head.values, exchange_id)
            return client.begin_rendered(framing, block, body_follows=body_follows)
    onward = _onward(head.headers, exchange_id, hides)
    return client.begin(head.status, onward, body_follows=body_follows)


def _onward(headers: list[Header], exchange_id: bytes, hides: bool) -> list[Header]:
    content_type = content_headers(headers).get("content-type", "")
    return to_client(
        headers,
        exchange_id=exchange_id,
        event_stream=content_type.startswith("text/event-stream"),
        length_changes=hides,
    )


def _pattern(client: Client, head: ResponseReader, hides: bool) -> tuple[bytes, bytes | None]:
    """The framing, and the head with `%b` for each value that varies and for the exchange's id.

    None for the head when one of those values does not go on.
    """
    seen = head.seen
    assert seen is not None  # noqa: S101
    marked = seen.headers([_MARK] * len(head.values))
    onward = _onward(marked, _MARK, hides)
    framing, block = render_head(200, onward, client.request, keep_alive=True)
    if block.count(_MARK) != len(head.values) + 1:
        return framing, None
    return framing, block.replace(b"%", b"%%").replace(_MARK, b"%b")
