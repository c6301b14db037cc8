"""Writes prometheusrule.yaml from config/recording_rules.yml and config/alerts.yml.

python deploy/kubernetes/generate.py writes; with --check it only says whether the file is out of
date (exit code 1). The text of the rules is taken as it is, comments included.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE / "prometheusrule.yaml"
SOURCES = ("recording_rules.yml", "alerts.yml")

_HEAD = """\
# Written by deploy/kubernetes/generate.py from config/recording_rules.yml and config/alerts.yml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: tokgauge
spec:
  groups:
"""


def manifest() -> str:
    """The groups of both files below one `groups:`."""
    text = _HEAD
    for source in SOURCES:
        head, found, groups = (
            (HERE.parents[1] / "config" / source).read_text().partition("\ngroups:\n")
        )
        if not found:
            raise SystemExit(f"{source} has no line `groups:`")
        text += textwrap.indent(f"{head}\n{groups}", "    ", lambda line: bool(line.strip()))
    return text


def main() -> int:
    """Write or check; the exit code."""
    wanted = manifest()
    if TARGET.exists() and TARGET.read_text() == wanted:
        return 0
    if sys.argv[1:] == ["--check"]:
        print(f"{TARGET.name} is out of date: python deploy/kubernetes/generate.py")
        return 1
    TARGET.write_text(wanted)
    print(f"{TARGET.name} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
