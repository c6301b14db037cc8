"""`python -m tests.situations`: all situations, on every core."""

import argparse
import csv
import multiprocessing
import sys
import time
from pathlib import Path

from tests.situations.campaign import Figures, play
from tests.situations.situation import (
    combined_situations,
    faulty_situations,
    healthy_situations,
)

MISTAKEN = Path(__file__).parents[2] / "docs" / "mistaken.tsv"


def _record(figures: Figures) -> None:
    with MISTAKEN.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(("wrong", "situations", "right", "mistaken"))
        writer.writerows(sorted(figures.table()))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.situations", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="first of the seeds")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--times", type=int, default=1, help="how many times 330 situations")
    parser.add_argument("--record", action="store_true", help=f"write {MISTAKEN.name}")
    options = parser.parse_args()
    first, times = options.seed, options.times
    situations = [
        *healthy_situations(range(first, first + 2 * times)),
        *faulty_situations(range(first, first + 4 * times)),
        *combined_situations(range(first, first + times)),
    ]
    began = time.monotonic()
    with multiprocessing.Pool(options.processes) as pool:
        figures = Figures(pool.map(play, situations, chunksize=1))
    for played in figures.played:
        if not played.is_right:
            print(played, flush=True)
    for row in sorted(figures.table()):
        print(*row, sep="\t")
    if options.record:
        _record(figures)
    print(
        f"{len(situations)} situations, {len(figures.falsely_accused)} falsely accused, "
        f"{len(figures.to_be_found)} to be found, {figures.found:.1%} of them with the right first "
        f"cause, {time.monotonic() - began:.0f} s"
    )
    return 1 if figures.falsely_accused or figures.found < 0.95 else 0


if __name__ == "__main__":
    sys.exit(main())
