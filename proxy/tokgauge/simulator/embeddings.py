"""/v1/embeddings: unit vectors that depend only on the text."""

from __future__ import annotations

import base64
import math
import random
import struct
import time
from typing import Any

from tokgauge.simulator import errors, tokens
from tokgauge.simulator.connection import Connection
from tokgauge.simulator.engine import Engine, hex_id

_DIMENSIONS = 64


async def handle(engine: Engine, connection: Connection) -> None:
    body = await connection.json_body()
    if "input" not in body:
        raise errors.missing("input", body)
    engine.check_model(body)
    given = body["input"]
    texts = [given] if isinstance(given, str) or not given or isinstance(given[0], int) else given
    size = int(body.get("dimensions") or _DIMENSIONS)
    encoded = body.get("encoding_format") == "base64"
    data = []
    prompt_tokens = 0
    for index, text in enumerate(texts):
        text_or_ids = text if isinstance(text, str) else " id" * len(text)
        prompt_tokens += len(engine.check_prompt(text_or_ids))
        vector = _vector(text_or_ids, size)
        value: Any = vector
        if encoded:
            value = base64.b64encode(struct.pack(f"<{size}f", *vector)).decode()
        data.append({"index": index, "object": "embedding", "embedding": value})
    await connection.respond_json(
        {
            "id": f"embd-{hex_id()}",
            "object": "list",
            "created": int(time.time()),
            "model": engine.profile.model,
            "data": data,
            "usage": {
                "prompt_tokens": prompt_tokens,
                "total_tokens": prompt_tokens,
                "completion_tokens": 0,
                "prompt_tokens_details": None,
            },
        }
    )


def _vector(text: str, size: int) -> list[float]:
    chance = random.Random(tokens.seed(text, 0))  # noqa: S311 - not for secrets
    vector = [chance.gauss(0, 1) for _ in range(size)]
    length = math.hypot(*vector)
    return [value / length for value in vector]
