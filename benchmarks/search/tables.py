"""Runs as tables: figure beside target, 95 % bootstrap intervals, MISS where a target is missed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy import stats

from benchmarks.search.running import CHECKPOINTS, Run

__all__ = ["bootstrap", "compared", "curve", "table", "targets", "wilson"]

GPUS = 8
_RESAMPLES = 4000
TARGETS = {"regret@10": 2.5, "regret@20": 1.5, "regret@30": 1.0, "odd@20": 2.2}
TRIALS_WITHIN_5, TRIALS_WITHIN_2, CRASHES, BIAS, WRONG = 12, 16, 0.2, 1.0, 7.0


def curve(run: Run) -> tuple[float, ...]:
    """Regret at each checkpoint: of the point that the model names, else of the best observed."""
    if run.believed:
        return run.believed
    return tuple(run.observed[n - 1] for n in CHECKPOINTS if n <= len(run.observed))


def bootstrap(by_surface: Mapping[str, Sequence[float]], *, seed: int = 0) -> tuple[float, ...]:
    """Mean, low and high; surfaces are drawn, or the runs where there is one surface."""
    groups = list(by_surface.values())
    values = np.array([np.mean(group) for group in groups] if len(groups) > 1 else groups[0])
    rng = np.random.default_rng(seed)
    means = values[rng.integers(0, len(values), size=(_RESAMPLES, len(values)))].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(values.mean()), float(low), float(high)


def _grouped(runs: Sequence[Run], figure: Callable[[Run], float | None]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        if (value := figure(run)) is not None:
            found[run.job.surface].append(value)
    return found


def _regret(n: int) -> Callable[[Run], float | None]:
    place = CHECKPOINTS.index(n)
    return lambda run: 100 * curve(run)[place] if place < len(curve(run)) else None


def _until(runs: Sequence[Run], share: float, bound: float) -> int | None:
    """The first checkpoint at which `share` of the runs are within `bound`."""
    for place, n in enumerate(CHECKPOINTS):
        known = [curve(run)[place] <= bound for run in runs if place < len(curve(run))]
        if known and np.mean(known) >= share:
            return n
    return None


def _hours(runs: Sequence[Run], trials: int | None) -> str:
    if trials is None:
        return "-"
    spent = np.mean([run.ended_min[trials - 1] for run in runs if len(run.ended_min) >= trials])
    return f"{spent / 60 * GPUS:.0f}"


def table(title: str, by_method: Mapping[str, Sequence[Run]]) -> str:
    """One line for each method."""
    lines = [
        "",
        title,
        f"{'method':<15} {'runs':>5}  "
        + "  ".join(f"{f'regret@{n}, %':<19}" for n in (10, 20, 30))
        + "  90 % in 5 %   75 % in 2 %   crashes  observed-true  reported-true  wrong   ask",
        f"{'':<15} {'':>5}  " + " " * 63 + "  trials GPU-h  trials GPU-h",
    ]
    for method, runs in by_method.items():
        cells = []
        for n in (10, 20, 30):
            grouped = _grouped(runs, _regret(n))
            mean, low, high = bootstrap(grouped) if grouped else (math.nan,) * 3
            cells.append(f"{mean:5.2f} [{low:5.2f}, {high:5.2f}]" if grouped else f"{'-':<20}")
        five, two = _until(runs, 0.9, 0.05), _until(runs, 0.75, 0.02)
        wrong, judged = _wrong(runs)
        lines.append(
            f"{method:<15} {len(runs):>5}  "
            + " ".join(cells)
            + f" {_trials(five):>6} {_hours(runs, five):>5}"
            + f" {_trials(two):>7} {_hours(runs, two):>5}"
            + f" {np.mean([run.crashes for run in runs]):9.2f}"
            + f" {100 * np.mean([run.overstated for run in runs]):+12.1f} %"
            + f" {_bias(runs):+12.2f} %  {wrong}/{judged}"
            + f" {np.mean([run.ask_s for run in runs]):5.2f}"
        )
    return "\n".join(lines)


def _trials(n: int | None) -> str:
    return f">{CHECKPOINTS[-1]}" if n is None else str(n)


def _bias(runs: Sequence[Run]) -> float:
    judged = [run.judged() for run in runs]
    gaps = [claimed - true for claimed, true in judged if claimed is not None and true is not None]
    return 100 * float(np.mean(gaps)) if gaps else math.nan


def _wrong(runs: Sequence[Run]) -> tuple[int, int]:
    """Verdicts that name a winner which is not better, and verdicts in all."""
    wrong = sum(true is not None and true <= 1.0 for _, true in (run.judged() for run in runs))
    return wrong, len(runs)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """95 % interval of a rate.

    Source: Wilson (1927), Probable inference, the law of succession, and statistical inference.
    """
    interval = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def targets(runs: Sequence[Run]) -> str:
    """The goals on random truths, one line each."""
    odd = [run for run in runs if int(run.job.surface[1:]) % 2]
    figures: list[tuple[str, float, float]] = []
    for name, target in TARGETS.items():
        n = int(name.partition("@")[2])
        grouped = _grouped(odd if name.startswith("odd") else runs, _regret(n))
        if grouped:
            figures.append((f"mean {name}, %", target, bootstrap(grouped)[0]))
    for share, bound, target in ((0.9, 0.05, TRIALS_WITHIN_5), (0.75, 0.02, TRIALS_WITHIN_2)):
        name = f"trials until {share:.0%} within {bound:.0%}"
        figures.append((name, target, float(_until(runs, share, bound) or math.inf)))
    figures.append(("crashed starts", CRASHES, float(np.mean([run.crashes for run in runs]))))
    figures.append(("reported minus true gain, points", BIAS, abs(_bias(runs))))
    wrong, judged = _wrong(runs)
    figures.append(("wrong winners, % (upper bound)", WRONG, 100 * wilson(wrong, judged)[1]))
    lines = ["", f"{'goal':<36} {'target':>8} {'figure':>8}"]
    for name, target, figure in figures:
        met = "met" if round(figure, 2) <= target else "MISS"
        lines.append(f"{name:<36} {target:8.1f} {figure:8.2f}  {met}")
    return "\n".join(lines)


def compared(ours: Sequence[Run], theirs: Sequence[Run], name: str) -> str:
    """Difference of regret on the same surfaces and seeds, ours minus theirs, in points."""
    lines = ["", f"ours minus {name}, points of regret (below 0: ours is better)"]
    by_key = {(run.job.surface, run.job.seed): run for run in theirs}
    for n in (10, 20, 30):
        figure = _regret(n)
        gaps: dict[str, list[float]] = defaultdict(list)
        for run in ours:
            other = by_key.get((run.job.surface, run.job.seed))
            if other is None:
                continue
            mine, his = figure(run), figure(other)
            if mine is not None and his is not None:
                gaps[run.job.surface].append(mine - his)
        if not gaps:
            continue
        mean, low, high = bootstrap(gaps)
        word = "better" if high < 0 else "WORSE" if low > 0 else "within the noise"
        lines.append(f"  @{n}: {mean:+.2f} [{low:+.2f}, {high:+.2f}]  {word}")
    return "\n".join(lines)
