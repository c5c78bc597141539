"""Several hosts at once: how much shorter the wall-clock is to the same regret."""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence

import numpy as np
import optuna

from autotune.parameter import Values
from benchmarks.search.methods import METHODS, OURS, OptunaMethod
from benchmarks.search.problem import problem
from benchmarks.search.running import CRASH_MIN, NOISE_STREAM, START_MIN, Job, Run, code, perform

__all__ = ["HOSTS", "in_parallel", "on_hosts", "parallel_table"]

HOSTS = 4
_LEVEL_AT = 20  # trials of one host whose regret is to be reached
TARGET = 2.8


def on_hosts(job: Job) -> Run:
    """A job on as many hosts as it asks for."""
    return perform(job) if job.hosts == 1 else in_parallel(job)


def in_parallel(job: Job) -> Run:
    """Suggestions with the other hosts' trials pending; each host measures the reference first."""
    surface = problem(job.surface)
    space, optimum = surface.space, surface.best()[1]
    rng = np.random.default_rng([job.seed, NOISE_STREAM])
    method = METHODS[job.method](surface, job.seed)
    assert isinstance(method, OptunaMethod)
    deployed = space.effective(space.deployed())
    first = [method.trial, *(method.again(deployed) for _ in range(job.hosts - 1))]
    flying: list[tuple[float, int, Values, optuna.Trial]] = [
        (START_MIN * (1 + 0.01 * host), host, deployed, trial) for host, trial in enumerate(first)
    ]
    heapq.heapify(flying)
    believed, ended, crashes, ask_s = [], [], 0, 0.0
    asked = len(first)
    while flying:
        now_min, host, point, trial = heapq.heappop(flying)
        gave = surface.measure(point, rng)
        method.resume(trial)
        method.observe(point, gave)
        crashes += gave.infeasible
        ended.append(now_min)
        believed.append(1.0 - surface.truth(method.named() or deployed) / optimum)
        if asked < job.trials:
            began = time.perf_counter()
            point = method.propose()
            ask_s += time.perf_counter() - began
            took = CRASH_MIN if surface.truth(point) == 0 else START_MIN
            heapq.heappush(flying, (now_min + took, host, point, method.trial))
            asked += 1
    return Run(
        job, code(job.method), (), tuple(believed), tuple(ended), crashes, 0.0, (),
        ask_s / job.trials,
    )  # fmt: skip


def parallel_table(runs: Sequence[Run]) -> str:
    """Wall-clock of one host over that of several, to the mean regret of one host's 20 trials."""
    several = [run for run in runs if run.job.hosts > 1]
    keys = {(run.job.surface, run.job.seed) for run in several}
    single = [
        run
        for run in runs
        if run.job.hosts == 1
        and run.job.method == OURS
        and (run.job.surface, run.job.seed) in keys
        and len(run.ended_min) >= _LEVEL_AT
    ]
    if not single or not several:
        return ""
    from benchmarks.search.running import CHECKPOINTS

    place = CHECKPOINTS.index(_LEVEL_AT)
    level = float(np.mean([run.believed[place] for run in single]))
    alone = float(np.mean([run.ended_min[_LEVEL_AT - 1] for run in single]))
    together = _reached(several, level)
    if together is None:
        return f"\n{HOSTS} hosts never reach {100 * level:.2f} %: MISS"
    ratio = alone / together
    met = "met" if ratio >= TARGET else "MISS"
    return (
        f"\n{HOSTS} hosts, reference starts counted: mean regret {100 * level:.2f} % after "
        f"{together / 60:.1f} h, one host {alone / 60:.1f} h: {ratio:.1f} times shorter, "
        f"target {TARGET}: {met} ({len(several)} runs)"
    )


def _reached(runs: Sequence[Run], level: float) -> float | None:
    """Minutes until the mean over runs is at `level`, each run at what it has by then."""
    for now in sorted({end for run in runs for end in run.ended_min}):
        by_then = [
            next((r for r, e in zip(run.believed[::-1], run.ended_min[::-1], strict=True)
                  if e <= now), 1.0)
            for run in runs
        ]  # fmt: skip
        if np.mean(by_then) <= level:
            return now
    return None
