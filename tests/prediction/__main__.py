"""`python -m tests.prediction --seeds 0-200`: calibrate engines in virtual time, predict them."""

import argparse
import sys
import time

from tokgauge.diagnosis.fit import Fitted

from tests.prediction.campaign import of_one_load, predictions
from tests.prediction.figures import figures, table

_ERROR, _COVERED = 0.05, 0.9


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.prediction", description=__doc__)
    parser.add_argument("--seeds", default="0-200", help="first-end")
    first, end = map(int, parser.parse_args().seeds.split("-"))
    began = time.monotonic()
    found = [one for seed in range(first, end) for one in predictions(seed)]
    wrong = [seed for seed in range(first, end) if isinstance(of_one_load(seed), Fitted)]
    print(*table(found), sep="\n")
    print(f"constants told though bytes do not vary: {len(wrong)} of {end - first} seeds", wrong)
    print(f"{time.monotonic() - began:.0f} s")
    whole = figures(found)
    return int(whole.error > _ERROR or whole.covered < _COVERED or bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
