"""`python -m tests.ledger --exchanges 20000 --workers 2`: a long ledger."""

import argparse
import sys

from tests.ledger.run import run_ledger


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ledger", description=__doc__)
    parser.add_argument("--exchanges", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    result = run_ledger(options.exchanges, options.workers, options.seed)
    print(result)
    print("what the engine was told to do:", dict(result.ledger.deeds))
    print(*result.wrong, sep="\n")
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
