"""A small compressed answer that stands for gigabytes passes; its measuring copy is given up."""

import pytest

from tests.conftest import Rig
from tests.dialects.test_encoding import bombs
from tests.support.chat import CHAT
from tests.support.client import JSON, fetch
from tests.support.engine import Conversation

BOMBS = bombs()


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
@pytest.mark.parametrize("coding", BOMBS)
def test_a_bomb_passes_and_is_not_measured(rig: Rig, coding: str, kind: str) -> None:
    bomb = BOMBS[coding]

    async def answer(conversation: Conversation) -> None:
        await conversation.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Encoding: %b\r\n"
            b"Content-Length: %d\r\n\r\n" % (kind.encode(), coding.encode(), len(bomb)),
            bomb,
        )

    rig.engine.on(CHAT, answer)
    watch = rig.watch()
    response = fetch(rig.port, "POST", CHAT, [JSON], b'{"model":"qwen","messages":[]}')
    assert response.clean
    assert bytes(response.body) == bomb
    after = watch.after()
    assert after.total("unparsed_responses_total", reason="size") == 1
    assert after.total("completion_tokens_total") is None
    assert after.total("measurement_errors_total") is None
