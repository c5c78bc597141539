"""How often the 95 % interval holds the truth, and what stopping early saves.

Simulated buckets, with the stop that the product uses.  Noise of a window: 0.5 to 5 % of the mean
(log-uniform), as a first-order autoregression with rho 0 to 0.6, or as that of a closed loop whose
requests each have a speed of their own and span several windows, for which the interval's model is
only an approximation.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from autotune import stats
from autotune.measure_settings import MeasureSettings

__all__ = ["coverage", "stopping"]

_TRUE_TOK_PER_S = 1000.0
_LEAST_SPREAD, _MOST_SPREAD = 0.005, 0.05
_RHOS = (0.0, 0.2, 0.4, 0.6)
_SETTINGS = MeasureSettings()
_WARM_UP_WINDOWS = 8
"""Windows that pass before the measured ones, however long those are: the fewest are 7."""


def _autoregressive(rng: np.random.Generator, rho: float, count: int) -> NDArray[np.float64]:
    """Unit variance, lag-1 autocorrelation `rho`; shape (count,)."""
    fresh = rng.normal(size=count)
    noise = np.empty(count)
    noise[0] = fresh[0]
    for i in range(1, count):
        noise[i] = rho * noise[i - 1] + math.sqrt(1 - rho**2) * fresh[i]
    return noise


def _by_requests(rng: np.random.Generator, span: float, count: int) -> NDArray[np.float64]:
    """Unit variance; eight streams, each with a new speed every `span` windows; shape (count,)."""
    streams = 8
    noise = np.zeros(count)
    parts = 8  # a window is cut finer than the requests are
    for _ in range(streams):
        at = np.arange(count * parts) / parts + rng.uniform(0, span)
        speeds = rng.normal(size=int(at[-1] / span) + 2)
        noise += speeds[(at / span).astype(int)].reshape(count, parts).mean(axis=1)
    return noise / math.sqrt(streams)


def _series(rng: np.random.Generator, kind: float | str, count: int) -> list[float]:
    spread = math.exp(rng.uniform(math.log(_LEAST_SPREAD), math.log(_MOST_SPREAD)))
    noise = (
        _by_requests(rng, rng.uniform(0.5, 4.0), count)
        if isinstance(kind, str)
        else _autoregressive(rng, kind, count)
    )
    values: list[float] = (_TRUE_TOK_PER_S * (1 + spread * noise)).tolist()
    return values


def _stopped(windows: list[float], most: int) -> int:
    """Windows that the product would measure."""
    count = _SETTINGS.least_windows
    while not stats.enough(
        windows[:count],
        target_relative_half_width=_SETTINGS.target_half_width,
        least=_SETTINGS.least_windows,
        most=most,
    ):
        count += 1
    return count


def coverage(buckets: int, seed: int = 4) -> tuple[Table, bool]:
    """The table, and whether the share over all autoregressive buckets is within 93-97 %."""
    table = Table(title="coverage of the 95 % interval, stopped as the product stops")
    for column in ("noise", "buckets", "holds the truth", "mean windows"):
        table.add_column(column, justify="right")
    rng = np.random.default_rng(seed)
    each = math.ceil(buckets / len(_RHOS))
    held_of_all = 0
    for kind in (*_RHOS, "requests"):
        held, counts = 0, []
        for _ in range(each):
            windows = _series(rng, kind, _SETTINGS.most_windows)
            counts.append(_stopped(windows, _SETTINGS.most_windows))
            interval = stats.mean_interval(windows[: counts[-1]])
            held += interval.low <= _TRUE_TOK_PER_S <= interval.high
        held_of_all += held if not isinstance(kind, str) else 0
        name = kind if isinstance(kind, str) else f"rho {kind:g}"
        table.add_row(name, str(each), f"{held / each:.1%}", f"{np.mean(counts):.1f}")
    share = held_of_all / (each * len(_RHOS))
    right = 0.93 <= share <= 0.97
    table.add_row("all rho", str(each * len(_RHOS)), f"{share:.1%}", "ok" if right else "MISSED")
    return table, right


def stopping(buckets: int, seed: int = 5) -> tuple[Table, bool]:
    """Time against one fixed number of windows with the same worst half-width; goal 0.6."""
    rng = np.random.default_rng(seed)
    most = _SETTINGS.most_windows
    longest = 2 * most
    all_windows = [_series(rng, float(rng.uniform(0, 0.6)), longest) for _ in range(buckets)]
    counts = [_stopped(windows, most) for windows in all_windows]
    worst = max(
        stats.relative_half_width(windows[:count])
        for windows, count in zip(all_windows, counts, strict=True)
    )
    fixed = next(
        (
            count
            for count in range(_SETTINGS.least_windows, longest + 1, 2)
            if max(stats.relative_half_width(windows[:count]) for windows in all_windows) <= worst
        ),
        longest,
    )
    adaptive = float(np.mean(counts))
    ratio = (adaptive + _WARM_UP_WINDOWS) / (fixed + _WARM_UP_WINDOWS)
    right = ratio <= 0.6
    table = Table(title=f"stopping early, {buckets} buckets, noise 0.5-5 %, rho 0-0.6")
    for column in ("worst half-width", "fixed windows", "mean windows", "ratio of windows"):
        table.add_column(column, justify="right")
    table.add_column(f"ratio of time, {_WARM_UP_WINDOWS} windows of warm-up each", justify="right")
    table.add_column("goal 0.6", justify="right")
    table.add_row(
        *(f"{worst:.2%}", str(fixed), f"{adaptive:.1f}", f"{adaptive / fixed:.2f}"),
        *(f"{ratio:.2f}", "ok" if right else "MISSED"),
    )
    return table, right
