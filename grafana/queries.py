"""PromQL of the dashboards, written so that a wrong metric or label fails at generation."""

from __future__ import annotations

from defined import TARGET_LABELS, series

RATE = "$__rate_interval"
RANGE = "$__range"

_VARIABLES = {"model": "model", "gpu": "gpu", "model_name": "model"}
"""Label → dashboard variable that chooses it."""


def select(name: str, **matchers: str) -> str:
    """The series of that name that the dashboard's variables choose.

    matchers: label → value, `!value` for any other, or `~regular expression`. Raises KeyError for
    an unknown series, ValueError for a label that it does not have. The engine's series are chosen
    by model alone, because they may come from a target of their own.
    """
    labels = series(name).labels
    target = [] if name.startswith("vllm:") else ["job", "instance"]
    parts = [f'{label}=~"${label}"' for label in target]
    parts += [f'{lb}=~"${var}"' for lb, var in _VARIABLES.items() if lb in labels]
    for label, value in matchers.items():
        if label not in labels:
            raise ValueError(f"{name} has no label {label}")
        operator = {"~": "=~", "!": "!="}.get(value[0], "=")
        parts.append(f'{label}{operator}"{value.lstrip("~!")}"')
    return f"{name}{{{','.join(parts)}}}"


def grouped(operator: str, by: str, name: str, inner: str) -> str:
    """`operator by (…) (inner)`; `by` holds labels that `name` has, separated by blanks."""
    unknown = set(by.split()) - series(name).labels - TARGET_LABELS
    if unknown:
        raise ValueError(f"{name} has no label {', '.join(sorted(unknown))}")
    return f"{operator} by ({', '.join(by.split())}) ({inner})"


def rate(name: str, by: str, **matchers: str) -> str:
    """Events per second of a counter, summed over everything but `by`."""
    return grouped("sum", by, name, f"rate({select(name, **matchers)}[{RATE}])")


def increase(name: str, over: str = RANGE, by: str = "", **matchers: str) -> str:
    """Events of a counter within `over`."""
    inner = f"increase({select(name, **matchers)}[{over}])"
    return grouped("sum", by, name, inner) if by else f"sum({inner})"


def quantile(share: float, histogram: str, by: str = "", **matchers: str) -> str:
    """A quantile of a histogram; `histogram` is its name without `_bucket`."""
    inner = rate(f"{histogram}_bucket", f"le {by}".strip(), **matchers)
    return f"histogram_quantile({share:g}, {inner})"


def mean(histogram: str) -> str:
    """The mean of a histogram's observations, exact whatever its buckets are."""
    total = f"sum(rate({select(histogram + '_sum')}[{RATE}]))"
    return f"{total} / (sum(rate({select(histogram + '_count')}[{RATE}])) > 0)"


def buckets(histogram: str, **matchers: str) -> str:
    """Observations of each bucket, for a heat map."""
    return increase(f"{histogram}_bucket", RATE, by="le", **matchers)
