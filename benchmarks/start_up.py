"""Measures how long `autotune --help` takes, as a whole process: what every command pays first.

    python -m benchmarks.start_up

Goal: a median of 0.3 s.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

__all__ = ["main"]

GOAL_S = 0.3


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line; 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=20, metavar="N", help="20 without it")
    runs = parser.parse_args(arguments).runs
    _timed()  # fills the caches of files and bytecode
    spent_s = sorted(_timed() for _ in range(runs))
    median_s = statistics.median(spent_s)
    print(
        f"autotune --help, {runs} runs: median {median_s:.3f} s,"
        f" least {spent_s[0]:.3f} s, most {spent_s[-1]:.3f} s; goal {GOAL_S:g} s"
    )
    return 0 if median_s <= GOAL_S else 1


def _timed() -> float:
    began_s = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "autotune", "--help"], check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - began_s


if __name__ == "__main__":
    sys.exit(main())
