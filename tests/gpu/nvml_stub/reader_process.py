"""Reads the GPUs once for every line on standard input; prints each snapshot as a line of JSON.

Run in a process of its own, because the NVML library can be chosen only before it is loaded.
"""

import dataclasses
import json
import sys

from tokgauge.gpu.nvml import NvmlReader


class Clock:
    """Goes on by what the test says, so that no test waits for a pause to end."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def main() -> None:
    clock = Clock()
    reader = NvmlReader(process_names=True, clock=clock)
    for line in sys.stdin:
        clock.now += float(line)
        snapshot = reader.read()
        gpus = [
            {
                field.name: sorted(value) if isinstance(value, frozenset) else value
                for field in dataclasses.fields(gpu)
                for value in [getattr(gpu, field.name)]
                if field.name != "processes"
            }
            | {
                "processes": None
                if gpu.processes is None
                else [dataclasses.asdict(process) for process in gpu.processes]
            }
            for gpu in snapshot.gpus
        ]
        document = {
            "up": snapshot.up,
            "problem": snapshot.problem,
            "errors": dict(snapshot.errors),
            "gpus": gpus,
        }
        print(json.dumps(document), flush=True)
    reader.close()


main()
