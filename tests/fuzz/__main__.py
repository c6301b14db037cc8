"""`python -m tests.fuzz --seeds 0-100000`: a long campaign, half of it on each side."""

import argparse
import sys
import time

from tests.fuzz.campaign import run_campaign


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seeds", default="0-100000", help="first seed and the one after the last")
    parser.add_argument("--side", choices=("requests", "responses", "both"), default="both")
    options = parser.parse_args()
    first, after = map(int, options.seeds.split("-"))
    middle = (first + after) // 2
    parts = [("requests", range(first, middle)), ("responses", range(middle, after))]
    if options.side != "both":
        parts = [(options.side, range(first, after))]
    wrong = 0
    for side, seeds in parts:
        began = time.monotonic()
        figures = run_campaign(side, seeds)
        print(f"{side}: {figures}, {time.monotonic() - began:.0f} s")
        print(*figures.wrong, sep="\n", flush=True)
        wrong += len(figures.wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
