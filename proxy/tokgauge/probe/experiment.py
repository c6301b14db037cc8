"""The experiment: choose a model, ask it once not streamed and once streamed, each run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from tokgauge.diagnosis.inputs import RateUnknown, StreamSeen
from tokgauge.engine import metrics_page as engine_metrics
from tokgauge.engine.error_text import error_text, printable
from tokgauge.engine.metrics_page import EngineReading
from tokgauge.measure.conclusion import MIN_ARRIVALS_FOR_RATE, MIN_TOKENS_FOR_RATE
from tokgauge.model.served import ServedModel
from tokgauge.probe.errors import ProbeError
from tokgauge.probe.question import Question
from tokgauge.probe.server import Answer, RefusedError, Server, Watcher

__all__ = ["Experiment", "Run", "run_experiment"]

_REFUSED_PARAMETERS = (400, 422)

_ONE_TOKEN_PER_EVENT = 1.02
"""Up to here an event stands for one token; above, several tokens came from one step, or events
were merged, and the events alone do not tell which."""


@dataclass(frozen=True, slots=True)
class Run:
    """The same question, asked both ways."""

    not_streamed: Answer
    streamed: Answer


@dataclass(frozen=True, slots=True)
class Experiment:
    """All runs, under the same conditions."""

    url: str
    card: ServedModel
    """The model as the server lists it; only its id is known when it lists none."""
    question: Question
    runs: tuple[Run, ...]
    notes: tuple[str, ...]
    """What was different from a plain experiment."""
    readings: tuple[EngineReading, EngineReading] | None = None
    """The server's own figures before and after the last stream, where it has known ones."""
    reading_at_first: EngineReading | None = None
    """The same before the last answer that was not streamed."""

    def typical(self, figure: Callable[[Run], float | None]) -> float | None:
        """The median of a figure over the runs that have it."""
        return _median([figure(run) for run in self.runs])

    @property
    def decode_rate(self) -> float | None:
        """Tokens per second of the stream, from its first token to its last."""
        return self.typical(lambda run: run.streamed.measurement.decode_tokens_per_second)

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens that the stream gained per step of the engine, above 1 with speculation.

        None where nobody tells: the server's own counters, else as many events as tokens.
        """
        if self.readings is not None:
            before, after = self.readings
            told = engine_metrics.between(before, after).tokens_per_step
            if told is not None:
                return told
            if before.kind == "vllm" and after.spec_drafts_total is None:
                return 1.0
        per_event = self.typical(lambda run: run.streamed.measurement.tokens_per_event)
        return 1.0 if per_event is not None and per_event <= _ONE_TOKEN_PER_EVENT else None

    @property
    def tokens_of_others(self) -> int | None:
        """Tokens that the server generated for others during the last stream, where it tells."""
        if self.readings is None:
            return None
        return _of_others(*self.readings, self.runs[-1].streamed)

    @property
    def tokens_of_others_before(self) -> int | None:
        """The same during the last answer that was not streamed."""
        if self.readings is None or self.reading_at_first is None:
            return None
        return _of_others(self.reading_at_first, self.readings[0], self.runs[-1].not_streamed)

    @property
    def requests_of_others(self) -> int | None:
        """The most requests that ran or waited when none of ours did, around the last run."""
        looks = (self.reading_at_first, *(self.readings or ()))
        found = [
            look.running + (look.waiting or 0)
            for look in looks
            if look is not None and look.running is not None
        ]
        return max(found, default=None)

    @property
    def mean_context(self) -> float | None:
        """Tokens of context that a decode step had before it, on average over the streams."""

        def tokens(run: Run) -> float | None:
            measured = run.streamed.measurement
            if measured.prompt_tokens is None or measured.completion_tokens is None:
                return None
            return measured.prompt_tokens + measured.completion_tokens / 2

        return self.typical(tokens)

    @property
    def stream_seen(self) -> StreamSeen:
        """The streams as a judgement takes them."""
        last = self.runs[-1].streamed
        tokens = last.measurement.completion_tokens
        because, needed = self._no_rate()
        return StreamSeen(
            decode_rate=self.decode_rate,
            no_rate_because=because,
            needed=needed,
            tokens=tokens,
            tokens_per_step=self.tokens_per_step,
            context_tokens=self.mean_context,
            tokens_of_others=self.tokens_of_others,
            kv_cache_usage=self.readings[1].kv_cache_usage if self.readings is not None else None,
        )

    def _no_rate(self) -> tuple[RateUnknown | None, int | None]:
        """Why there is no decode rate, and what it takes."""
        if self.decode_rate is not None:
            return None, None
        last = self.runs[-1].streamed
        tokens = last.measurement.completion_tokens
        if not last.streamed:
            return "not_streamed", None
        if tokens is not None and tokens < MIN_TOKENS_FOR_RATE:
            return "few_tokens", MIN_TOKENS_FOR_RATE
        return "few_arrivals", MIN_ARRIVALS_FOR_RATE

    @property
    def characters_per_second(self) -> float | None:
        """Pace at which text appears while it streams."""

        def pace(run: Run) -> float | None:
            measured = run.streamed.measurement
            rate, tokens = measured.decode_tokens_per_second, measured.completion_tokens
            if rate is None or not tokens or not run.streamed.characters:
                return None
            return run.streamed.characters / tokens * rate

        return self.typical(pace)


def run_experiment(
    server: Server,
    *,
    model: str | None,
    prompt: str,
    max_tokens: int,
    runs: int,
    watcher: Watcher,
) -> Experiment:
    """Make the experiment `runs` times. Raises `ProbeError` when it cannot be made."""
    listed, notes = _listed(server, model)
    card = _choose(listed, model, notes)
    question = Question(card.id, prompt, max_tokens)
    made: list[Run] = []
    first: EngineReading | None = None
    before: EngineReading | None = None
    for number in range(1, runs + 1):
        of = f" ({number} of {runs})" if runs > 1 else ""
        answers = []
        for stream, name in ((False, "not streamed"), (True, "streamed")):
            before = server.engine_reading()
            if not stream:
                first = before
            watcher.begins(name + of)
            try:
                answer, question = _ask(server, question, card, listed, stream, watcher, notes)
            finally:
                watcher.ends()
            answers.append(answer)
        made.append(Run(*answers))
    after = None if before is None else server.engine_reading()
    if not made[-1].streamed.streamed:
        notes.append("the server did not stream although it was asked to: no decode rate")
    readings = None if before is None or after is None else (before, after)
    return Experiment(server.url, card, question, tuple(made), tuple(notes), readings, first)


def _of_others(before: EngineReading, after: EngineReading, ours: Answer) -> int | None:
    """Tokens between two readings that were not ours."""
    own = ours.measurement.completion_tokens
    if own is None or before.generation_tokens_total is None:
        return None
    if after.generation_tokens_total is None:
        return None
    if engine_metrics.between(before, after).problem is not None:
        return None
    return max(0, after.generation_tokens_total - before.generation_tokens_total - own)


def _listed(server: Server, model: str | None) -> tuple[tuple[ServedModel, ...], list[str]]:
    try:
        return server.models(), []
    except RefusedError as refused:
        if refused.status in (404, 405) and model is not None:
            return (), ["the server has no list of models (GET /v1/models)"]
        raise _error(server, refused, "/v1/models", None, ()) from refused


def _choose(listed: Sequence[ServedModel], model: str | None, notes: list[str]) -> ServedModel:
    if model is not None:
        # Unknown to the list is not unknown to the server: routers and llama.cpp take aliases.
        known = next((card for card in listed if card.id == model), None)
        return known or ServedModel(id=model, root=None, parent=None, max_model_len=None)
    bases = [card for card in listed if card.parent is None] or list(listed)
    if not bases:
        raise ProbeError(
            "no_model", "the server lists no models: is one loaded? If so, name it with --model"
        )
    if len(listed) > 1:
        others = ", ".join(printable(card.id) for card in listed if card is not bases[0])
        notes.append(
            f"the server lists {len(listed)} models; the first was asked "
            f"(--model chooses another: {others})"
        )
    return bases[0]


def _ask(
    server: Server,
    question: Question,
    card: ServedModel,
    listed: Sequence[ServedModel],
    stream: bool,
    watcher: Watcher,
    notes: list[str],
) -> tuple[Answer, Question]:
    """Ask, leaving out what the server refuses; the question as it was accepted comes back."""
    while True:
        try:
            answer = server.ask(
                question, stream=stream, context_length=card.max_model_len, watcher=watcher
            )
        except RefusedError as refused:
            changed = None
            if refused.status in _REFUSED_PARAMETERS:
                changed = question.without_what_was_refused(refused.body)
            if changed is None:
                raise _error(server, refused, question.path, question.model, listed) from refused
            question, note = changed
            notes.append(note)
        else:
            return answer, question


def _error(
    server: Server,
    refused: RefusedError,
    path: str,
    model: str | None,
    listed: Sequence[ServedModel],
) -> ProbeError:
    status, said = refused.status, error_text(refused.body)
    where = f"{server.url}{path}"
    if status in (401, 403):
        return ProbeError(
            "unauthorized",
            f"{where} refuses the key ({status}: {said}): give one with --api-key or in "
            "OPENAI_API_KEY",
        )
    if model is not None and _names_model(refused, model):
        names = ", ".join(printable(card.id) for card in listed) or "nothing"
        return ProbeError(
            "unknown_model", f"the server does not know the model {model!r}; it lists: {names}"
        )
    if status in (404, 405):
        return ProbeError(
            "not_openai",
            f"{where} answers {status} ({said}): not an OpenAI-compatible server, or its address "
            "has another path. Give the part before /v1"
            + ("" if model is not None else "; for a server without a model list add --model"),
        )
    if 300 <= status < 400:
        return ProbeError("refused", f"{where} redirects ({status}): give the final address")
    if status >= 500:
        return ProbeError("server_error", f"{where} fails with {status}: {said}")
    return ProbeError("refused", f"{where} refuses the request with {status}: {said}")


def _names_model(refused: RefusedError, model: str) -> bool:
    """Whether the refusal is about the name of the model."""
    text = refused.body.lower()
    named = model.lower().encode() in text or b"model_not_found" in text
    lost = any(word in text for word in (b"not exist", b"not found", b"not_found", b"unknown"))
    return refused.status in (400, 404, 422) and named and lost


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
