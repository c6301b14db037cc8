"""What the proxy has learned about the engine behind it."""

from __future__ import annotations

from typing import Any

import msgspec

OTHER = "other"
"""The label of every model that the engine does not list."""

MAX_MODELS = 1000
"""Listed models beyond which further names are `other`: labels stay bounded whatever is listed."""


class _Card(msgspec.Struct):
    id: str
    root: Any = None
    parent: Any = None
    max_model_len: Any = None
    owned_by: Any = None


class _Cards(msgspec.Struct):
    data: list[_Card]


_PATIENT = ("vllm", "sglang")

_decode_cards = msgspec.json.Decoder(_Cards).decode


class EngineFacts:
    """Models, their context lengths, whether the engine is up and whether it refuses injection.

    `up` is None until the first answer or failure.
    """

    def __init__(self, models: tuple[str, ...]) -> None:
        self._fixed = frozenset(models)
        self._listed: dict[str, int | None] = {}
        self.up: bool | None = None
        self.refuses_injection = False
        self.may_be_asked_while_busy = False
        """Known to answer `GET /v1/models` without disturbing running streams: llama-cpp-python
        cuts a stream for any other request."""

    def learn_models(self, body: bytes) -> None:
        """Take the body of `GET /v1/models`. Raises `msgspec.MsgspecError` when it is not one."""
        cards = _decode_cards(body).data[:MAX_MODELS]
        self.may_be_asked_while_busy = any(card.owned_by in _PATIENT for card in cards)
        self._listed = {
            card.id: card.max_model_len if type(card.max_model_len) is int else None
            for card in cards
        }

    def label(self, model: str | None) -> str:
        """The model's metric label: its name when the engine lists it, else `other`."""
        if model is not None and (model in self._fixed or model in self._listed):
            return model
        return OTHER

    def context_length(self, model: str | None) -> int | None:
        """The model's longest context in tokens, where the engine tells."""
        return self._listed.get(model) if model is not None else None
