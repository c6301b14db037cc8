"""What the proxy has learned about the engine behind it."""

from __future__ import annotations

import logging

import msgspec

from proxy.model.served import ServedModel, served_models
from proxy.wire.answer import UNREADABLE

logger = logging.getLogger("tokgauge")

OTHER = "other"
"""The label of every model that the engine does not list."""

MAX_MODELS = 1000
"""Listed models beyond which further names are `other`: labels stay bounded whatever is listed."""

PATIENT_ENGINES = ("vllm", "sglang")
"""Engines that answer questions about their models while they generate."""


_LONGEST_NAME = 1000


def read_models(status: int, body: bytes) -> tuple[tuple[ServedModel, ...] | None, str | None]:
    """The models that an answer to `GET /v1/models` lists, and what is wrong when it lists none.

    None for the models: the answer tells nothing. Takes long for a long list, so it belongs into a
    thread. Never raises.
    """
    named = "their names can be set with models"
    if status in (401, 403):
        return None, f"GET /v1/models wants a key ({status}): set api_key, or {named}"
    if status != 200:
        return None, f"GET /v1/models answers {status}: {named}"
    try:
        listed = served_models(msgspec.json.decode(body))
    except UNREADABLE:
        return None, f"GET /v1/models cannot be read: {named}"
    cards = tuple(card for card in listed if 0 < len(card.id) <= _LONGEST_NAME)[:MAX_MODELS]
    return cards, None if cards else f"GET /v1/models lists none: {named}"


class EngineFacts:
    """Models, their context lengths, whether the engine is up and whether it refuses injection.

    `up` is None until the first answer or failure.
    """

    def __init__(self, models: tuple[str, ...]) -> None:
        self._fixed = models
        self._listed: dict[str, ServedModel] = {}
        self._models_problem: str | None = None
        self.up: bool | None = None
        self.refuses_injection = False
        self.may_be_asked_while_busy = False
        """Known to answer `GET /v1/models` without disturbing running streams: llama-cpp-python
        cuts a stream for any other request."""

    def learn_models(self, cards: tuple[ServedModel, ...]) -> None:
        """Take what `read_models` has found."""
        self.may_be_asked_while_busy = any(card.owned_by in PATIENT_ENGINES for card in cards)
        self._listed = {card.id: card for card in cards}

    @property
    def models_problem(self) -> str | None:
        """Why no model has a name, and what to do; None while all is well or nothing is known."""
        return self._models_problem

    @models_problem.setter
    def models_problem(self, problem: str | None) -> None:
        if self._fixed or problem == self._models_problem:
            return
        self._models_problem = problem
        if problem is not None:
            logger.warning("%s; until then every model is counted as %s", problem, OTHER)

    def label(self, model: str | None) -> str:
        """The model's metric label: its name when the engine lists it, else `other`."""
        if model is not None and (model in self._listed or model in self._fixed):
            return model
        return OTHER

    def context_length(self, model: str | None) -> int | None:
        """The model's longest context in tokens, where the engine tells."""
        card = self._listed.get(model) if model is not None else None
        return card.max_model_len if card is not None else None

    @property
    def base(self) -> ServedModel | None:
        """The model whose weights the engine reads; LoRA adapters and aliases share it."""
        return next((card for card in self._listed.values() if card.parent is None), None)

    @property
    def base_label(self) -> str:
        """The label of figures that belong to the engine as a whole."""
        base = self.base
        if base is not None:
            return base.id
        return self._fixed[0] if self._fixed else OTHER
