"""Compares ways to search on simulated surfaces: simulated time, no server.

    python -m benchmarks.search --surfaces 24 --seeds 2 --trials 30 --jobs 2

Each run measures the deployed point first.  Regret is what the named point truly loses against the
best valid one.  Named is the best observed score; for rows marked "posterior", the tested point
with the best posterior mean.  Every method sees the same surfaces and noise seeds.  Brackets are
95 % bootstrap intervals over surfaces.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Protocol

import numpy as np
import optuna

from autotune.parameter import Values
from autotune.search.history import BUCKETS_ATTRIBUTE, History
from autotune.search.sampler import GridGaussianProcessSampler
from autotune.space import SearchSpace
from autotune.testing.surfaces import Observation, Surface
from autotune.workload import Workload

__all__ = ["METHODS", "Run", "bootstrap", "main", "search"]

CHECKPOINTS = (10, 20, 30)
_NOISE_STREAM = 7_001  # keeps the noise apart from every sampler's own random numbers


class Problem(Protocol):
    @property
    def space(self) -> SearchSpace: ...
    @property
    def workload(self) -> Workload: ...
    def measure(self, values: Values, rng: np.random.Generator) -> Observation: ...
    def truth(self, values: Values) -> float: ...
    def best(self) -> tuple[Values, float]: ...


@dataclass(frozen=True, slots=True)
class Run:
    """One method on one surface with one seed.

    Attributes:
        named: Regret of the named point after each trial.
        posterior: The same by posterior mean at the checkpoints; NaN where there is none.
        crashes: Starts that did not run.
        overstated: Best observed score over its true one, minus 1, at the end.
        ask_s: Seconds spent choosing, all trials together.
    """

    named: tuple[float, ...]
    posterior: tuple[float, ...]
    crashes: int
    overstated: float
    ask_s: float


def search(problem: Problem, method: str, seed: int, trials: int) -> Run:
    """Run a method through plain Optuna ask and tell, as a study does."""
    rng = np.random.default_rng([seed, _NOISE_STREAM])
    space, optimum = problem.space, problem.best()[1]
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        direction="maximize", sampler=METHODS[method](problem, seed, trials)
    )
    study.enqueue_trial(space.deployed())
    distributions = space.distributions()
    seen: list[tuple[float, float]] = []
    named, posterior, crashes, ask_s = [], [], 0, 0.0
    for number in range(trials):
        began = time.perf_counter()
        trial = study.ask(distributions)
        ask_s += time.perf_counter() - began
        point = space.effective(trial.params)
        observed = problem.measure(point, rng)
        trial.set_constraint("infeasible", 1.0 if observed.infeasible else -1.0)
        if observed.score_ratio is None:
            crashes += 1
            study.tell(trial, min((score for score, _ in seen), default=0.0))
        else:
            trial.set_user_attr(BUCKETS_ATTRIBUTE, dict(observed.buckets))
            study.tell(trial, observed.score_ratio)
            seen.append((observed.score_ratio, problem.truth(point)))
        named.append(1.0 - max(seen)[1] / optimum)
        if number + 1 in CHECKPOINTS:
            posterior.append(_by_posterior(study, problem, optimum))
        after = getattr(study.sampler, "observe", None)
        if after is not None:
            after(point, observed)
    score, truth = max(seen)
    return Run(tuple(named), tuple(posterior), crashes, score / truth - 1.0, ask_s)


def _by_posterior(study: optuna.Study, problem: Problem, optimum: float) -> float:
    if not isinstance(study.sampler, GridGaussianProcessSampler):
        return math.nan
    history = History.of(study.get_trials(deepcopy=False), problem.space)
    candidates, belief = study.sampler.belief(history)
    if belief is None:
        return math.nan
    row = max(belief.tested, key=lambda row: belief.mean[row])
    return 1.0 - problem.truth(candidates.points[row]) / optimum


class OneAtATime(optuna.samplers.BaseSampler):
    """A careful person's sweep: each parameter in turn over a few values, the best kept."""

    def __init__(self, space: SearchSpace, seed: int) -> None:
        self._space = space
        self._rng = np.random.default_rng(seed)
        self._scores: dict[str, float] = {}
        self._plan = self._sweep()

    def observe(self, values: Values, observed: Observation) -> None:
        key = self._space.key(values)
        self._scores.setdefault(key, -1.0 if observed.infeasible else observed.score_ratio or 0.0)

    def _sweep(self) -> Iterator[Values]:
        best: Values = self._space.effective(self._space.deployed())
        for coarse in itertools.chain([True], itertools.repeat(False)):
            before = best
            for parameter in self._space.parameters:
                levels = parameter.levels()
                if coarse:
                    wanted = _spread(len(levels), log=parameter.log)
                else:
                    place = levels.index(best[parameter.name])
                    reach = max(1, round(place * 0.3)) if parameter.log else 1
                    wanted = [place + math.ceil(reach * f) for f in (-1, -0.5, 0.5, 1)]
                options = [best]
                for index in wanted:
                    if not 0 <= index < len(levels):
                        continue
                    point = self._space.effective({**best, parameter.name: levels[index]})
                    if point in options or self._space.violations(point):
                        continue
                    options.append(point)
                    if self._space.key(point) not in self._scores:
                        yield point
                best = max(options, key=lambda point: self._scores[self._space.key(point)])
            while not coarse and best == before:  # settled: look about at random
                near = {
                    p.name: p.levels()[
                        int(
                            np.clip(
                                p.levels().index(best[p.name]) + self._rng.integers(-3, 4),
                                0,
                                len(p.levels()) - 1,
                            )
                        )
                    ]
                    for p in self._space.parameters
                }
                point = self._space.effective(near)
                if not self._space.violations(point):
                    yield point

    def infer_relative_search_space(
        self, study: optuna.Study, trial: optuna.trial.FrozenTrial
    ) -> dict[str, optuna.distributions.BaseDistribution]:
        return {} if trial.number == 0 else self._space.distributions()

    def sample_relative(
        self,
        study: optuna.Study,
        trial: optuna.trial.FrozenTrial,
        search_space: dict[str, optuna.distributions.BaseDistribution],
    ) -> dict[str, object]:
        return dict(next(self._plan)) if search_space else {}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: optuna.trial.FrozenTrial,
        param_name: str,
        param_distribution: optuna.distributions.BaseDistribution,
    ) -> object:
        raise AssertionError("the first trial is enqueued, the others are relative")


def _spread(count: int, *, log: bool) -> list[int]:
    """Up to eight places among `count` levels, by ratio or evenly."""
    if count <= 8:
        return list(range(count))
    spaced = np.geomspace(1, count, 8) if log else np.linspace(1, count, 8)
    return sorted({round(place) - 1 for place in spaced})


def _auto(problem: Problem, seed: int, trials: int) -> optuna.samplers.BaseSampler:
    return GridGaussianProcessSampler(problem.space, seed=seed, workload=problem.workload)


def _auto_plain(problem: Problem, seed: int, trials: int) -> optuna.samplers.BaseSampler:
    return GridGaussianProcessSampler(problem.space, seed=seed)


METHODS: dict[str, Callable[[Problem, int, int], optuna.samplers.BaseSampler]] = {
    "auto": _auto,
    "auto, scores only": _auto_plain,
    "one at a time": lambda problem, seed, trials: OneAtATime(problem.space, seed),
    "tpe": lambda problem, seed, trials: optuna.samplers.TPESampler(seed=seed),
    "random": lambda problem, seed, trials: optuna.samplers.RandomSampler(seed=seed),
}


def bootstrap(per_surface: Sequence[float], *, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of the mean over surfaces."""
    values = np.asarray(per_surface)
    rng = np.random.default_rng(seed)
    means = values[rng.integers(0, len(values), size=(4000, len(values)))].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def _surface_runs(surface: int, *, method: str, seeds: int, trials: int) -> list[Run]:
    problem = Surface.random(surface)
    return [search(problem, method, 1000 * surface + seed, trials) for seed in range(seeds)]


def _row(name: str, figures: Sequence[Sequence[Sequence[float]]]) -> str:
    """`figures[surface][seed][checkpoint]` as a line of regrets in percent."""
    cells = []
    for checkpoint in range(len(figures[0][0])):
        means = [100 * float(np.mean([run[checkpoint] for run in runs])) for runs in figures]
        low, high = bootstrap(means)
        cells.append(f"{np.mean(means):5.1f} [{low:4.1f}, {high:4.1f}]")
    return f"{name:<28} " + "  ".join(cells)


def report(name: str, runs: Sequence[Sequence[Run]], trials: int) -> str:
    """The lines of one method."""
    points = [n for n in CHECKPOINTS if n <= trials]
    flat = [run for of_surface in runs for run in of_surface]
    within = [
        np.mean([run.named[points[-1] - 1] <= bound for run in flat]) for bound in (0.02, 0.05)
    ]
    line = _row(name, [[[run.named[n - 1] for n in points] for run in rs] for rs in runs])
    line += (
        f"  {100 * within[0]:3.0f} % {100 * within[1]:3.0f} %"
        f"  {np.mean([run.crashes for run in flat]):4.1f}"
        f"  {100 * np.mean([run.overstated for run in flat]):+5.1f} %"
        f"  {1000 * np.mean([run.ask_s for run in flat]) / trials:5.0f}"
    )
    if not math.isnan(flat[0].posterior[0]):
        line += "\n" + _row(f"{name} (posterior)", [[run.posterior for run in rs] for rs in runs])
    return line


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--surfaces", type=int, default=24)
    parser.add_argument("--first", type=int, default=0, help="number of the first surface")
    parser.add_argument("--seeds", type=int, default=1, help="runs on each surface")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    options = parser.parse_args(arguments)
    numbers = range(options.first, options.first + options.surfaces)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one process a core is faster than threads
    print(
        f"surfaces {numbers[0]}..{numbers[-1]}, {options.seeds} run(s) each with seeds "
        f"1000 * surface + run, {options.trials} trials"
    )
    columns = "  ".join(f"regret@{n:<10}" for n in CHECKPOINTS if n <= options.trials)
    print(f"{'method, percent':<28} {columns}  <2 %  <5 %  crash  overst.  ask ms")
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for method in options.methods:
            work = partial(_surface_runs, method=method, seeds=options.seeds, trials=options.trials)
            print(report(method, list(pool.map(work, numbers)), options.trials), flush=True)


if __name__ == "__main__":
    main()
