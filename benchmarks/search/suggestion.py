"""How long a suggestion takes when a study has many trials.

    python -m benchmarks.search.suggestion

Random valid points are observed until there are so many trials, then suggestions are asked for and
observed in turn, through Optuna's ask and the sampler of a study, with three trials of other hosts
under way.  One thread of linear algebra, as `autotune run` sets it.  Wall and CPU time: on a busy
machine the first says more about the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence

from autotune.parameter import Values

__all__ = ["main"]

MOST_S = 1.0
PENDING = 3


def _timed(surface: str, trials: int, asks: int) -> dict[str, float]:
    """Wall and CPU seconds of each suggestion after `trials` trials of random points."""
    import numpy as np

    from benchmarks.search.methods import METHODS, OURS, OptunaMethod
    from benchmarks.search.problem import problem

    surface_ = problem(surface)
    method = METHODS[OURS](surface_, 1)
    assert isinstance(method, OptunaMethod)
    rng = np.random.default_rng(1)
    space = surface_.space
    listed = space.enumerate(6500, seed=1)
    deployed = space.effective(space.deployed())
    method.observe(deployed, surface_.measure(deployed, rng))
    for _ in range(trials - 1):
        point: Values = space.effective(listed[int(rng.integers(len(listed)))])
        method.resume(method.again(point))
        method.observe(point, surface_.measure(point, rng))
    for _ in range(PENDING):
        method.again(space.effective(listed[int(rng.integers(len(listed)))]))
    wall, cpu = [], []
    for _ in range(asks):
        began, spent = time.perf_counter(), time.process_time()
        point = method.propose()
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - spent)
        method.observe(point, surface_.measure(point, rng))
    return {
        "median_s": float(np.median(wall)),
        "most_s": max(wall),
        "cpu_median_s": float(np.median(cpu)),
        "cpu_most_s": max(cpu),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--surfaces", nargs="+", default=["r0", "r1", "six0"])
    parser.add_argument("--trials", type=int, nargs="+", default=[30, 200])
    parser.add_argument("--asks", type=int, default=5)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(_timed(options.surfaces[0], options.trials[0], options.asks)))
        return
    print(f"{'surface':<8} {'trials':>6}  wall s (median / most)  CPU s (median / most)  peak MiB")
    for surface in options.surfaces:
        for trials in options.trials:
            command = [sys.executable, "-m", "benchmarks.search.suggestion", "--one"]
            command += ["--surfaces", surface, "--trials", str(trials)]
            ended = subprocess.run(
                [*command, "--asks", str(options.asks)],
                stdout=subprocess.PIPE, text=True, check=True,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )  # fmt: skip
            one = json.loads(ended.stdout.splitlines()[-1])
            met = "met" if one["most_s"] < MOST_S else "MISS"
            print(
                f"{surface:<8} {trials:>6}  {one['median_s']:10.2f} / {one['most_s']:<8.2f}  "
                f"{one['cpu_median_s']:9.2f} / {one['cpu_most_s']:<8.2f}  {one['peak_mib']:8.0f}"
                f"   under {MOST_S:g} s: {met}"
            )


if __name__ == "__main__":
    main()
