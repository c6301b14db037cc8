"""Writes grafana/dashboards/*.json from the board_*.py beside it.

python grafana/generate.py writes; with --check it only says what is out of date (exit code 1).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import board_capacity
import board_gpu
import board_overview
import board_requests
from panels import Json

DIRECTORY = Path(__file__).parent / "dashboards"

NOT_SHOWN: dict[str, str] = {
    "tokgauge_constants_source": "says how the normal range was found; no figure to follow",
}
"""Metrics of the proxy that no panel shows, each with the reason."""


def dashboards() -> dict[str, Json]:
    """File name → dashboard. Raises when a query names a metric or label that is not exported."""
    return {
        "overview.json": board_overview.board(),
        "requests.json": board_requests.board(),
        "gpu.json": board_gpu.board(),
        "capacity.json": board_capacity.board(),
    }


def generate(*, check: bool) -> list[str]:
    """Write the files, or only compare them: the names of those that differed."""
    stale = []
    for name, content in dashboards().items():
        path = DIRECTORY / name
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(str(path.relative_to(DIRECTORY.parent.parent)))
            if not check:
                path.write_text(text, encoding="utf-8")
    return stale


if __name__ == "__main__":
    check = sys.argv[1:] == ["--check"]
    differed = generate(check=check)
    for name in differed:
        print(f"{name} {'is out of date: python grafana/generate.py' if check else 'written'}")
    sys.exit(check and bool(differed))
