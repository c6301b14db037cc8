"""GGUF without the library that reads it."""

import sys
from pathlib import Path

import pytest
from tokgauge.model.resolve import resolve_weights
from tokgauge.model.weights import WeightsUnknown

pytestmark = pytest.mark.socketless


def test_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gguf", "gguf.constants"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    for root in (tmp_path, tmp_path / "model.gguf"):
        weights = resolve_weights(str(root), environment={})
        assert isinstance(weights, WeightsUnknown)
        assert "pip install 'tokgauge[gguf]'" in weights.reason
