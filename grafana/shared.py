"""What dashboards have in common: variables, colours of states, queries, links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import panels
from panels import Json, State, Steps, chosen
from queries import select

_DOCUMENTS = "https://github.com/tokgauge/tokgauge/blob/main/docs"

EFFICIENCY_STEPS: Steps = ((None, "blue"), (1.0, "purple"))
"""What is healthy depends on card, model and load; above 1 something is wrong everywhere."""

UP_STEPS: Steps = ((None, "red"), (1, "green"))

UP = (State(0, "down", "red"), State(1, "up", "green"))

LEVELS = {
    "not_judged": State(0, "not judged", "text"),
    "healthy": State(1, "healthy", "green"),
    "watch": State(2, "watch", "orange"),
    "suspect": State(3, "suspect", "red"),
    "above_ceiling": State(4, "above the ceiling", "purple"),
}
"""`level` of tokgauge_verdict → how it is shown."""

CONTENTION = {
    "none": State(0, "none", "green"),
    "idle_neighbours": State(1, "idle neighbours", "blue"),
    "active_neighbours": State(2, "active neighbours", "red"),
    "unknown": State(3, "unknown", "text"),
}
"""`state` of tokgauge_gpu_contention → how it is shown."""

HOLDS = (State(1, "yes", "orange"),)


def verdict(question: str) -> str:
    """The level of the answer to a question, as a number of LEVELS, by instance and model."""
    return _one_of("tokgauge_verdict", "level", "instance, model", LEVELS, question=question)


def worst_verdict() -> str:
    """What titles the status page: what is suspect, else what is worth watching, else the speed."""
    alarms = (
        f"{LEVELS[level].value} * max by (instance, model) "
        f"({select('tokgauge_verdict', level=level)} == 1)"
        for level in ("suspect", "watch")
    )
    return f"{' or '.join(alarms)} or {verdict('speed')}"


def contention() -> str:
    """The state that holds, as a number of CONTENTION, by instance and GPU."""
    return _one_of("tokgauge_gpu_contention", "state", "instance, gpu", CONTENTION)


def _one_of(name: str, label: str, by: str, states: Mapping[str, State], **matchers: str) -> str:
    """One number for the state that holds, from a metric that is 1 for it and 0 for the others."""
    numbered = (
        f"{state.value} * ({select(name, **matchers, **{label: key})} == 1)"
        for key, state in states.items()
    )
    return f"max by ({by}) ({' or '.join(numbered)})"


def judged_efficiency() -> str:
    """The efficiency while the verdict judges it: not between prefills, nor with little traffic."""
    not_judged = select("tokgauge_verdict", question="speed", level="not_judged")
    return (
        f"{select('tokgauge_memory_bandwidth_utilization_ratio')} "
        f"unless on (job, instance, model) ({not_judged} == 1)"
    )


def runbooks(*alerts: str) -> Mapping[str, str]:
    """Links to what to do when one of the alerts fires."""
    return {f"Runbook {alert}": f"{_DOCUMENTS}/runbooks/{alert}.md" for alert in alerts}


def documents(*names: str) -> Mapping[str, str]:
    """Links to documents of the project, such as `measuring.md#the-ceiling`."""
    titles = {
        "measuring.md": "What is measured",
        "verdict.md": "The three answers",
        "normal.md": "What is normal",
        "calibrate.md": "Calibrate",
        "measuring.md#the-ceiling": "The ceiling",
        "dashboards.md": "About these dashboards",
    }
    return {titles[name]: f"{_DOCUMENTS}/{name}" for name in names}


def dashboard(
    uid: str, title: str, text: str, variables: Sequence[Json], rows: Mapping[str, Sequence[Json]]
) -> Json:
    """A dashboard with the variables and links that all have; `variables` are its own ones."""
    common = (
        chosen("job", "Job", "label_values(tokgauge_build_info, job)"),
        chosen("instance", "Instance", 'label_values(tokgauge_build_info{job=~"$job"}, instance)'),
        chosen(
            "model",
            "Model",
            'label_values(tokgauge_requests_in_flight{job=~"$job",instance=~"$instance"}, model)',
        ),
    )
    links = documents("measuring.md", "dashboards.md")
    return panels.dashboard(uid, title, text, (*common, *variables), rows, links)


def gpu() -> Json:
    """Which GPU, by NVML's index."""
    return chosen(
        "gpu", "GPU", 'label_values(tokgauge_gpu_info{job=~"$job",instance=~"$instance"}, gpu)'
    )
