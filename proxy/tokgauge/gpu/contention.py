"""Who else is on the engine's GPU, and does it cost anything? Pure: readings in, judgement out.

The rule that started this project: a process that only holds memory is a neighbour, not a culprit.
Somebody is accused only with evidence: its own SM time, or a GPU that is busy while the engine has
nothing to do. What NVML does not tell is `unknown`, never `none`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tokgauge.gpu.readings import GpuProcess, GpuReading, Snapshot, whole_sum

__all__ = [
    "DEFAULT_ENGINE_NAMES",
    "UTILIZATION_WINDOW_SECONDS",
    "Activity",
    "Contention",
    "ContentionHistory",
    "EngineOnGpu",
    "Neighbour",
    "State",
    "judge_gpu",
    "judge_snapshot",
    "was_busy",
    "worst",
]

State = Literal["none", "idle_neighbours", "active_neighbours", "unknown"]
Activity = Literal["idle", "active", "unknown"]

# NVML's utilisation looks back up to one second, and so does our sampling.
UTILIZATION_WINDOW_SECONDS = 2.0

# Process titles and programs of the engines: `VLLM::EngineCore`, `VLLM::Worker_TP0`, `vllm serve`,
# `sglang::scheduler_TP0`, `/app/llama-server`, and others that speak the OpenAI API.
DEFAULT_ENGINE_NAMES = re.compile(
    r"(?:^|[/\s])(?:vllm|sglang|llama-server|trtllm-serve|trtllm|lmdeploy|"
    r"text-generation-server|aphrodite|ollama|mistralrs-server)(?:$|[\s:_.-])",
    re.IGNORECASE,
)

# Less than the smallest CUDA context; a GPU that nobody uses shows a few MiB.
_UNUSED_MEMORY_BYTES = 128 * 1024**2
# Memory in use that no listed process owns: up to this much is the driver's own.
_UNEXPLAINED_MEMORY_BYTES = 1024**3
_UNEXPLAINED_MEMORY_SHARE = 0.05

_ORDER: tuple[State, ...] = ("none", "idle_neighbours", "unknown", "active_neighbours")

# Share of SM time from which on a process runs: a desktop that draws its windows stays below.
_ACTIVE_SM_RATIO = 0.05
# Utilisation from which on a GPU is busy: a card with only a display attached stays below.
_BUSY_RATIO = 0.10


@dataclass(frozen=True, slots=True)
class EngineOnGpu:
    """How the engine's processes are found, and which GPUs it uses.

    `pids` are host pids, as nvidia-smi shows them on the host; naming them in the settings is the
    evidence that they mean the engine. With `name` a process belongs to the engine when the pattern
    is found in its name. With neither, the names of known engines are used. `gpus` are NVML indices
    or UUIDs; None means: the GPUs on which a process of the engine is found.
    """

    pids: frozenset[int] = frozenset()
    name: re.Pattern[str] | None = None
    gpus: frozenset[int | str] | None = None

    def owns(self, process: GpuProcess) -> bool:
        """True when this process is part of the engine (its tensor-parallel workers are, too)."""
        if process.pid in self.pids:
            return True
        if self.pids and self.name is None:
            return False
        pattern = DEFAULT_ENGINE_NAMES if self.name is None else self.name
        return process.name is not None and pattern.search(process.name) is not None

    def names_gpu(self, reading: GpuReading) -> bool:
        """True when the settings name this GPU."""
        return self.gpus is not None and (reading.index in self.gpus or reading.uuid in self.gpus)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A process on the engine's GPU that is not the engine."""

    pid: int
    name: str | None
    memory_bytes: int | None
    sm_ratio: float | None
    activity: Activity


@dataclass(frozen=True, slots=True)
class Contention:
    """The judgement about one GPU. `evidence` is one plain sentence for people.

    `neighbours` is complete only when `neighbours_known`: without it the engine could not be told
    from the others, or some processes are hidden.
    """

    gpu: int
    state: State
    evidence: str
    neighbours: tuple[Neighbour, ...] = ()
    neighbours_known: bool = False
    engine_processes: int = 0


def was_busy(at: float, in_flight: int, last_busy_at: float | None) -> bool:
    """True when the engine had work at any time that a reading taken at `at` looks back on.

    Utilisation covers the past second: an engine that finished half a second ago explains it.
    `last_busy_at` is the monotonic time when the last request ended, None when there was none.
    """
    if in_flight > 0:
        return True
    return last_busy_at is not None and at - last_busy_at < UTILIZATION_WINDOW_SECONDS


def worst(states: Sequence[State]) -> State:
    """The one state for several GPUs or moments: active, else unknown, else idle, else none.

    Nothing at all is `unknown`.
    """
    return max(states, key=_ORDER.index, default="unknown")


def judge_snapshot(
    snapshot: Snapshot,
    engine: EngineOnGpu,
    engine_busy: bool | None,
) -> tuple[Contention, ...]:
    """The judgement for each GPU that the engine uses, in the snapshot's order.

    The engine's GPUs are those in the settings, else those with a process of the engine, else the
    only GPU there is, if the engine can be among what it hides. When the engine may sit on any of
    several GPUs or on another machine, all are `unknown`: a busy GPU is no evidence while it may
    be somebody else's. A GPU that the engine does not use is left out.
    """
    if engine.gpus is not None:
        used = [gpu for gpu in snapshot.gpus if engine.names_gpu(gpu)]
    else:
        used = [
            gpu
            for gpu in snapshot.gpus
            if any(engine.owns(process) for process in gpu.processes or ())
        ]
        if not used and len(snapshot.gpus) == 1 and _may_hide_engine(snapshot.gpus[0]):
            used = list(snapshot.gpus)
    if not used and engine.gpus is None:
        return tuple(
            Contention(
                gpu.index,
                "unknown",
                "no process of the engine was recognised; its GPUs or processes can be set",
            )
            for gpu in snapshot.gpus
        )
    return tuple(judge_gpu(gpu, engine, engine_busy) for gpu in used)


def judge_gpu(
    reading: GpuReading,
    engine: EngineOnGpu,
    engine_busy: bool | None,
) -> Contention:
    """The judgement about one GPU that the engine is known to use.

    `engine_busy` covers the whole time that the reading looks back on (see `was_busy`); None means
    that nobody knows.
    """
    if reading.lost:
        return Contention(reading.index, "unknown", "the driver has lost this GPU")
    if reading.mig:
        return Contention(
            reading.index, "unknown", "MIG is on: NVML tells no activity of single slices"
        )
    processes = reading.processes
    own = [process for process in processes or () if engine.owns(process)]
    # Processes are neighbours only once the engine itself is told from them.
    others = [process for process in processes or () if not engine.owns(process)] if own else []
    hidden = _unexplained_memory(reading)
    neighbours = tuple(_neighbour(process, _is_busy(reading)) for process in others)
    state, evidence = _active(reading, own, neighbours, hidden, engine_busy) or _at_rest(
        reading, own, neighbours, hidden
    )
    return Contention(
        gpu=reading.index,
        state=state,
        evidence=evidence,
        neighbours=neighbours,
        neighbours_known=state == "none" or (bool(own) and not hidden),
        engine_processes=len(own),
    )


def _active(
    reading: GpuReading,
    own: Sequence[GpuProcess],
    neighbours: Sequence[Neighbour],
    hidden: bool | None,
    engine_busy: bool | None,
) -> tuple[State, str] | None:
    """That somebody runs beside the engine, with the evidence; None without any."""
    active = [neighbour for neighbour in neighbours if neighbour.activity == "active"]
    if active:
        shares = ", ".join(_describe(neighbour) for neighbour in active)
        return "active_neighbours", f"running beside the engine: {shares}"
    engine_runs = any(
        process.sm_ratio is not None and process.sm_ratio >= _ACTIVE_SM_RATIO for process in own
    )
    # When only the engine is on the GPU, a busy GPU means that it serves others directly.
    alone = bool(own) and not neighbours and hidden is False
    if _is_busy(reading) and engine_busy is False and not engine_runs and not alone:
        return (
            "active_neighbours",
            f"the GPU is {reading.utilization_ratio:.0%} busy while the engine has nothing to do",
        )
    return None


def _at_rest(
    reading: GpuReading,
    own: Sequence[GpuProcess],
    neighbours: Sequence[Neighbour],
    hidden: bool | None,
) -> tuple[State, str]:
    """State and evidence where nobody is known to run beside the engine."""
    processes = reading.processes
    if processes is None:
        return "unknown", "NVML cannot list the processes of this GPU"
    if not processes:
        used = reading.memory_used_bytes
        if used is not None and used <= _UNUSED_MEMORY_BYTES:
            return "none", "no process, and no memory in use"
        held = "unknown memory" if used is None else f"{_mib(used)} in use"
        return "unknown", f"no process is listed, but {held}: processes are hidden"
    if not own:
        return "unknown", f"none of {len(processes)} processes was recognised as the engine"
    if not neighbours:
        if hidden:
            return "unknown", "more memory is in use than the listed processes hold"
        return "none", "only the engine is on this GPU"
    held = _held_by(neighbours)
    if hidden and _is_busy(reading) is not False:
        return "unknown", f"{held}; more memory is held by processes that are hidden"
    if all(neighbour.activity == "idle" for neighbour in neighbours):
        return "idle_neighbours", f"{held}; none of them runs"
    return "unknown", f"{held}; NVML does not tell whether they run"


def _may_hide_engine(reading: GpuReading) -> bool:
    """True when this GPU is in use and at least one of its processes has no name here.

    With all names told and none of them the engine's, it runs under another name or elsewhere.
    """
    unused = (
        reading.memory_used_bytes is not None and reading.memory_used_bytes <= _UNUSED_MEMORY_BYTES
    )
    named = bool(reading.processes) and all(
        process.name is not None for process in reading.processes or ()
    )
    return not unused and not named


def _is_busy(reading: GpuReading) -> bool | None:
    if reading.utilization_ratio is None:
        return None
    return reading.utilization_ratio >= _BUSY_RATIO


def _neighbour(process: GpuProcess, gpu_busy: bool | None) -> Neighbour:
    activity: Activity
    if process.sm_ratio is not None:
        activity = "active" if process.sm_ratio >= _ACTIVE_SM_RATIO else "idle"
    else:
        # On a GPU at rest nobody runs, whatever else is not told.
        activity = "idle" if gpu_busy is False else "unknown"
    return Neighbour(
        pid=process.pid,
        name=process.name,
        memory_bytes=process.used_memory_bytes,
        sm_ratio=process.sm_ratio,
        activity=activity,
    )


def _unexplained_memory(reading: GpuReading) -> bool | None:
    """True when much more memory is in use than the listed processes hold; None when not told."""
    held = whole_sum(process.used_memory_bytes for process in reading.processes or ())
    if reading.memory_used_bytes is None or held is None:
        return None
    allowance = max(
        _UNEXPLAINED_MEMORY_BYTES, _UNEXPLAINED_MEMORY_SHARE * (reading.memory_total_bytes or 0)
    )
    return reading.memory_used_bytes - held > allowance


def _held_by(neighbours: Sequence[Neighbour]) -> str:
    count = f"{len(neighbours)} neighbour{'s' if len(neighbours) > 1 else ''}"
    held = whole_sum(item.memory_bytes for item in neighbours)
    if held is None:
        return f"{count} with memory that NVML does not tell"
    return f"{count} with {_mib(held)} of memory"


def _describe(neighbour: Neighbour) -> str:
    name = f" ({neighbour.name})" if neighbour.name else ""
    return f"pid {neighbour.pid}{name} at {neighbour.sm_ratio or 0:.0%} of SM time"


def _mib(amount: int) -> str:
    return f"{amount / 1024**2:,.0f} MiB"


class ContentionHistory:
    """The judgements of the last minutes, so that an exchange can ask what it met.

    `add` runs in the sampler's thread; `latest` and `met` may be called from any other without
    waiting, since they read one immutable tuple. `engine_busy(at)` is called in the sampler's
    thread with the monotonic time of a snapshot.
    """

    # Ten minutes at one sample a second: longer than the streams that people wait for.
    _KEPT = 600
    # A shorter exchange than a sampling period takes the sample before it, if it is this fresh.
    _FRESH_SECONDS = 3.0

    def __init__(
        self,
        engine: EngineOnGpu,
        engine_busy: Callable[[float], bool | None],
    ) -> None:
        self._engine = engine
        self._engine_busy = engine_busy
        self._entries: tuple[tuple[float, State, tuple[Contention, ...]], ...] = ()

    def add(self, snapshot: Snapshot) -> None:
        """Judge a new snapshot and keep the result."""
        found = judge_snapshot(snapshot, self._engine, self._engine_busy(snapshot.at))
        state = worst([contention.state for contention in found])
        kept = self._entries[-self._KEPT + 1 :]
        self._entries = (*kept, (snapshot.at, state, found))

    def latest(self, now: float) -> tuple[Contention, ...]:
        """The last judgement by GPU; () when there is none or it is stale."""
        entries = self._entries
        if not entries or now - entries[-1][0] > self._FRESH_SECONDS:
            return ()
        return entries[-1][2]

    def contention_during(self, start: float, end: float) -> State:
        """The worst state between two monotonic times; `unknown` when nobody looked."""
        seen: list[State] = []
        for at, state, _ in reversed(self._entries):
            if at > end:
                continue
            if at < start:
                if not seen and end - at <= self._FRESH_SECONDS:
                    seen.append(state)
                break
            seen.append(state)
        return worst(seen)
