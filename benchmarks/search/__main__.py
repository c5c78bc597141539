"""Compares ways to search: simulated time, no server.

    python -m benchmarks.search                    a few minutes: 24 random truths, one run each
    python -m benchmarks.search --full             every surface with 100 runs: hours, resumable
    python -m benchmarks.search --first 5000       24 random truths nobody has seen

Runs are kept in a file and never repeated while the sources that decide them stay the same; stop at
any time and start again, or bound a sitting with --minutes.  Regret is what the named point truly
loses against the best valid one, in percent.  Named is the tested point that the method's model
believes in, or the best observed where it has no model.  All methods see the same surfaces and
seeds of the noise.  Brackets are 95 % bootstrap intervals over surfaces.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from benchmarks.search.methods import METHODS, OURS, missing
from benchmarks.search.parallel import HOSTS, on_hosts, parallel_table
from benchmarks.search.running import Job, Run, done, save
from benchmarks.search.tables import compared, table, targets

__all__ = ["main"]

SURFACES = {"pcie": ["pcie"], "nvlink": ["nvlink"], "tree, not tuned on": ["tree9001"]}
SIX = [f"six{number}" for number in range(4)]
_OWN_SPACE = ("six", "tree")
_THREE_ONLY = ("prototype",)  # it was written for the three parameters of the other surfaces


def groups(options: argparse.Namespace) -> dict[str, list[Job]]:
    """What is to be run, by the table it belongs to."""
    last = options.first + options.surfaces
    random_ = [f"r{number}" for number in range(options.first, last)]
    seeds = options.seeds or (100 if options.full else 1)
    wanted = {
        f"random truths r{options.first}..r{last - 1}, seed [2718, number, attempt]": (
            random_,
            max(1, seeds // 20) if options.full else seeds,
        )
    }
    if options.full or options.named:
        wanted |= {name: (surfaces, seeds) for name, surfaces in SURFACES.items()}
        wanted["six parameters"] = (SIX, max(1, seeds // 4))
    jobs: dict[str, list[Job]] = {}
    for title, (surfaces, count) in wanted.items():
        three = not title.startswith(_OWN_SPACE)
        methods = [m for m in options.methods if three or m not in _THREE_ONLY]
        jobs[title] = [
            Job(surface, method, 1000 * place + seed, options.trials)
            for seed in range(count)
            for place, surface in enumerate(surfaces)
            for method in methods
        ]
    return jobs


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="every surface, 100 runs")
    parser.add_argument("--named", action="store_true", help="also pcie, nvlink, tree, six")
    parser.add_argument("--hosts", action="store_true", help="also four hosts in parallel")
    parser.add_argument("--first", type=int, default=0, help="number of the first random truth")
    parser.add_argument("--surfaces", type=int, default=24, help="random truths")
    parser.add_argument("--seeds", type=int, help="runs on each surface")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--minutes", type=float, help="stop computing after so long")
    parser.add_argument("--runs", type=Path, default=Path("search-runs.jsonl"))
    options = parser.parse_args(arguments)
    for method in list(options.methods):
        if package := missing(method):
            print(f"{method}: left out, the package {package} is not installed")
            options.methods.remove(method)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one process a core is faster than threads
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wanted = groups(options)
    jobs = [job for group in wanted.values() for job in group]
    if options.hosts:
        jobs += [
            Job(job.surface, OURS, job.seed, 40, HOSTS)
            for job in jobs
            if job.method == OURS and job.surface.startswith("r")
        ]
    runs = _performed(jobs, options)
    print(
        f"{options.trials} trials, the deployed point first; noise seeds 1000 * surface + run; "
        f"{len(runs)} of {len(jobs)} runs"
    )
    for title, group in wanted.items():
        _show(title, [runs[job] for job in group if job in runs])
    if options.hosts:
        print(parallel_table(list(runs.values())))


def _performed(jobs: Sequence[Job], options: argparse.Namespace) -> dict[Job, Run]:
    found = {run.job: run for run in done(options.runs)}
    left = [job for job in dict.fromkeys(jobs) if job not in found]
    end_s = time.monotonic() + 60 * options.minutes if options.minutes else None
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        flying = {pool.submit(on_hosts, job) for job in left[: 2 * options.jobs]}
        rest = iter(left[2 * options.jobs :])
        while flying:
            ended = next(as_completed(flying))
            flying.remove(ended)
            run = ended.result()
            save(run, options.runs)
            found[run.job] = run
            if end_s is None or time.monotonic() < end_s:
                flying |= {pool.submit(on_hosts, job) for job in _some(rest)}
    return {job: found[job] for job in jobs if job in found}


def _some(rest: Iterable[Job]) -> list[Job]:
    for job in rest:
        return [job]
    return []


def _show(title: str, runs: Sequence[Run]) -> None:
    by_method: dict[str, list[Run]] = {}
    for run in runs:
        by_method.setdefault(run.job.method, []).append(run)
    if not by_method:
        return
    print(table(title, by_method))
    ours = by_method.get(OURS, [])
    if ours and title.startswith("random"):
        print(targets(ours))
    for other in by_method:
        if ours and other != OURS:
            print(compared(ours, by_method[other], other))


if __name__ == "__main__":
    main()
