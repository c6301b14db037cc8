"""Each relay learns by itself whether usage may be asked for: the metric shows what each knows."""

from tests.support.chat import CHAT, ask, whole_answer
from tests.support.engine import ScriptedEngine, stream
from tests.support.metrics import scrape, wait_until
from tests.support.process import serving


def states(port: int) -> set[str]:
    """Those that hold for chats."""
    found = scrape(port)
    return {
        labels["state"]
        for labels in found.labels("usage_injection")
        if labels["route"] == "chat_completions" and found.total("usage_injection", **labels)
    }


def test_a_state_is_1_when_it_holds_in_one_relay() -> None:
    with ScriptedEngine(("qwen",)) as engine:
        engine.on(CHAT, stream(*whole_answer("a", "b", usage=False)))
        with serving(engine.url, "--workers", "2") as proxy:
            assert ask(proxy.port, asked=False).status == 200  # one of the two has learned by it
            both = {"learning", "on"}
            wait_until(lambda: states(proxy.port) == both, 10, "both relays have told")
            assert [states(proxy.port) for _ in range(5)] == [both] * 5
