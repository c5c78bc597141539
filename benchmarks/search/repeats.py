"""How often a suggestion is what runs already, and what measuring it on that start would teach.

    python -m benchmarks.search.repeats

Counts, over searches of random truths, the suggestions that repeat the trial before on its host,
and those that repeat any earlier point.  Then the standard deviation of the mean of two
measurements, on one start and on two: what a start shares (`shared_sd` of the truths) does not
average out on one.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import numpy as np

from autotune.parameter import Values
from benchmarks.search.methods import METHODS, OURS
from benchmarks.search.problem import problem
from benchmarks.search.running import NOISE_STREAM
from benchmarks.search.truths import Truth

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--surfaces", type=int, default=12, help="random truths")
    parser.add_argument("--trials", type=int, default=30)
    options = parser.parse_args(arguments)
    suggested = running = known = 0
    for number in range(options.surfaces):
        surface = problem(f"r{number}")
        rng = np.random.default_rng([number, NOISE_STREAM])
        method = METHODS[OURS](surface, number)
        point: Values = surface.space.effective(surface.space.deployed())
        seen: list[str] = []
        for _ in range(options.trials):
            method.observe(point, surface.measure(point, rng))
            seen.append(surface.space.key(point))
            point = method.propose()
            suggested += 1
            running += surface.space.key(point) == seen[-1]
            known += surface.space.key(point) in seen
    print(
        f"{suggested} suggestions on {options.surfaces} truths: {running} repeat the trial before, "
        f"{known} any earlier one"
    )
    truth = Truth.named("r0")
    shared = truth.shared_sd
    own = truth.bucket_sd * math.sqrt(float((truth.weights**2).sum()))
    print(
        f"one measurement {100 * math.hypot(shared, own):.2f} %; the mean of two on one start "
        f"{100 * math.hypot(shared, own / math.sqrt(2)):.2f} %, on two starts "
        f"{100 * math.hypot(shared, own) / math.sqrt(2):.2f} %"
    )


if __name__ == "__main__":
    main()
