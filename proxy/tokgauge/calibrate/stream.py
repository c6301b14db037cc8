"""One streamed completion, with the times of its tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import httpx2
import msgspec

from tokgauge.calibrate.errors import CalibrationError
from tokgauge.dialects.answer import TOKEN
from tokgauge.dialects.routes import READERS
from tokgauge.dialects.sse import EventReader
from tokgauge.dialects.usage import Usage
from tokgauge.engine.error_text import error_text

_REFUSED = (400, 404, 405, 422)


@dataclass(slots=True)
class Streamed:
    """sent_at, arrivals of token events: monotonic seconds; usage: as the engine counts."""

    sent_at: float
    words: int
    arrivals: list[float] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    finished: bool = False


@dataclass(slots=True)
class Manner:
    """How this engine takes the experiment's requests; what it refuses is left out from then on."""

    model: str
    path: str = "/v1/completions"
    fixed_length: bool = True

    def body(self, prompt: str, tokens: int) -> bytes:
        """The JSON of a request."""
        asked: dict[str, Any] = {
            "model": self.model, "max_tokens": tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        if self.path == "/v1/completions":
            asked["prompt"] = prompt
        else:
            asked["messages"] = [{"role": "user", "content": prompt}]
        if self.fixed_length:
            asked |= {"ignore_eos": True, "min_tokens": tokens}
        return msgspec.json.encode(asked)

    def bends(self) -> bool:
        """Leave out one more thing that engines refuse; False when nothing is left."""
        if self.fixed_length:
            self.fixed_length = False
        elif self.path == "/v1/completions":
            self.path, self.fixed_length = "/v1/chat/completions", True
        else:
            return False
        return True


async def streamed(
    client: httpx2.AsyncClient, url: str, manner: Manner, prompt: str, words: int, tokens: int
) -> Streamed:
    """Ask and read to the end. Raises `CalibrationError`."""
    request = client.build_request(
        "POST", url + manner.path, content=manner.body(prompt, tokens),
        headers={"content-type": "application/json"},
    )  # fmt: skip
    found = Streamed(monotonic(), words)
    try:
        response = await client.send(request, stream=True)
        try:
            if response.status_code != 200:
                raise RefusedError(response.status_code, await response.aread())
            await _read(response, manner, found)
        finally:
            await response.aclose()
    except (httpx2.HTTPError, OSError) as error:
        reason = str(error) or type(error).__name__
        raise CalibrationError("broken", f"an answer was cut ({reason})") from error
    return found


class RefusedError(CalibrationError):
    """An answer with a status that is not 200."""

    def __init__(self, status: int, body: bytes) -> None:
        text = error_text(body)
        super().__init__("refused", f"the engine refuses the request with {status}: {text}")
        self.may_be_a_parameter = status in _REFUSED


async def _read(response: httpx2.Response, manner: Manner, found: Streamed) -> None:
    route = "completions" if manner.path == "/v1/completions" else "chat_completions"
    reader, events = READERS[route](), EventReader()
    async for data in response.aiter_raw():
        at = monotonic()
        for event in events.feed(data):
            if reader.event(event.name, event.data) & TOKEN:
                found.arrivals.append(at)
    if reader.error:
        raise CalibrationError("broken", "the engine reported an error within an answer")
    found.usage, found.finished = reader.usage, reader.finished
