"""What docs/asgi.md shows, so that tests run that and nothing like it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def block(language: str) -> str:
    """The one block in this language."""
    text = (ROOT / "docs" / "asgi.md").read_text()
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)
    return str(found)


def command() -> list[str]:
    """The server's command, on the socket `{fd}`, without its environment."""
    variable, *words = block("sh").split()
    assert variable == "TOKGAUGE_UPSTREAM=http://127.0.0.1:8000"
    return ["fd://{fd}" if word == "127.0.0.1:8080" else word for word in words]
