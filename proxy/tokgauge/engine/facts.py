"""What the proxy has learned about the engine behind it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic, time

import msgspec

from tokgauge.model.served import ServedModel, served_models

logger = logging.getLogger("tokgauge")

OTHER = "other"
"""The label of every model that the engine does not list."""

MAX_MODELS = 1000
"""Listed models beyond which further names are `other`: labels stay bounded whatever is listed."""

PATIENT_ENGINES = ("vllm", "sglang")
"""Engines that answer questions about their models while they generate."""


_LONGEST_NAME = 1000
_LONGEST_ERROR = 300


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
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None, f"GET /v1/models cannot be read: {named}"
    cards = tuple(card for card in listed if 0 < len(card.id) <= _LONGEST_NAME)[:MAX_MODELS]
    return cards, None if cards else f"GET /v1/models lists none: {named}"


@dataclass(frozen=True, slots=True)
class Down:
    """An engine that cannot be reached. since: Unix time of the first try in vain [s]. error: what
    the last one met, in a few words.
    """

    since: float
    error: str


def read_version(status: int, body: bytes) -> str | None:
    """What an answer to `GET /version` tells (vLLM); None where it does not. Never raises."""
    if status != 200:
        return None
    try:
        found = msgspec.json.decode(body, type=dict[str, object]).get("version")
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    return found if isinstance(found, str) else None


class EngineFacts:
    """Models, their context lengths, whether the engine is up when it started.

    `up` is None until the first answer or failure.
    """

    def __init__(self, models: tuple[str, ...]) -> None:
        self._fixed = models
        self._listed: dict[str, ServedModel] = {}
        self._bases = self._without_list = {
            name: ServedModel(name, None, None, None) for name in models
        }
        self._models_problem: str | None = None
        self.up: bool | None = None
        self.up_at = float("-inf")
        self.down: Down | None = None
        self.started_at: float | None = None
        """When its process started, as its metrics page tells (Unix time)."""
        self.kind: str | None = None
        """Which engine it is, by its metrics page; None where that does not tell."""
        self.version: str | None = None
        """As `GET /version` tells."""
        self.is_vllm = False
        """Known to send an event for each token, with an empty text for a part of a character."""
        self.may_be_asked_while_busy = False
        """Known to answer `GET /v1/models` without disturbing running streams: llama-cpp-python
        cuts a stream for any other request."""

    def reached(self, up: bool, at: float, error: str = "") -> None:
        """Somebody has tried to reach it, at `at` (monotonic seconds). error: why in vain."""
        if at < self.up_at:
            return
        self.up, self.up_at = up, at
        if up:
            self.down = None
        elif self.down is None:
            self.down = Down(time() - (monotonic() - at), error[:_LONGEST_ERROR])
        else:
            # A relay that only heard of it has no error to tell.
            self.down = Down(self.down.since, error[:_LONGEST_ERROR] or self.down.error)

    def learn_models(self, cards: tuple[ServedModel, ...]) -> None:
        """Take what `read_models` has found."""
        owners = {card.owned_by for card in cards if card.owned_by in PATIENT_ENGINES}
        self.may_be_asked_while_busy = bool(owners)
        if owners:
            self.is_vllm = owners == {"vllm"}
        self._listed = {card.id: card for card in cards}
        listed = {card.id: card for card in cards if card.parent is None}
        self._bases = listed or self._without_list

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

    def label(self, *names: str | None) -> str:
        """The model's metric label: the first of its names that the engine lists, else `other`."""
        for name in names:
            if name is not None and (name in self._listed or name in self._fixed):
                return name
        return OTHER

    def context_length(self, *names: str | None) -> int | None:
        """The longest context in tokens of the model with one of these names, where it is told.

        That of an adapter is its base's, unless it has one of its own.
        """
        card = self._listed.get(self.label(*names))
        if card is None:
            return None
        if card.max_model_len is None and (base := self.base_of(card.id)) is not None:
            card = base
        return card.max_model_len

    @property
    def bases(self) -> tuple[ServedModel, ...]:
        """The models with weights of their own: adapters left out, else the names that are set."""
        return tuple(self._bases.values())

    def base_of(self, name: str | None) -> ServedModel | None:
        """The model whose weights are read for the one with this name; None when not listed."""
        if name is None or name in self._bases or name not in self._listed:
            return self._bases.get(name) if name is not None else None
        parent = self._listed[name].parent
        among = [base for base in self.bases if parent in (base.id, base.root)]
        # The name of the base is not always one that it is served under.
        among = among or list(self.bases)
        return among[0] if len(among) == 1 else None


def one_of(bases: Sequence[ServedModel]) -> ServedModel | None:
    """The first of these, if all of them are names of the same weights."""
    first = bases[0] if bases else None
    if first is None or len(bases) == 1:
        return first
    same = first.root is not None and all(base.root == first.root for base in bases)
    return first if same else None


class ServedNow:
    """Whose weights the engine reads now, as the answers name it.

    A model that answered last less than `memory` seconds ago counts.
    """

    def __init__(self, facts: EngineFacts, memory: float) -> None:
        self._facts = facts
        self._memory = memory
        self._named: dict[str, float] = {}

    def answered(self, name: str | None, at: float) -> None:
        """An answer with tokens said at `at` (monotonic seconds) that `name` gave it."""
        base = self._facts.base_of(name)
        if base is not None:
            self._named[base.id] = max(at, self._named.get(base.id, at))

    def base(self) -> ServedModel | None:
        """The one model whose weights are read; None when it is not known or there are several.

        Where the engine serves one under several names, the name of the last answers.
        """
        bases = self._facts.bases
        if len(bases) == 1:
            return bases[0]
        known = [base for base in bases if base.id in self._named]
        last = max((self._named[base.id] for base in known), default=0.0)
        recent = [base for base in known if last - self._named[base.id] <= self._memory]
        return one_of(recent or bases)

    @property
    def among_several(self) -> bool:
        """Whether there are models, and it is not known which of them is read."""
        return bool(self._facts.bases) and self.base() is None

    def reads(self, name: str | None) -> bool:
        """Whether answers of the model with this name read the weights of `base`."""
        base = self.base()
        if base is None or len(self._facts.bases) == 1:
            return base is not None or not self.among_several
        own = self._facts.base_of(name)
        return own is not None and (own.id == base.id or own.root == base.root is not None)
