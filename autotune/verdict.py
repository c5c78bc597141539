"""Whether a finalist is better than the deployed configuration, from fresh measurements only.

The search's own observations are not used: the best of many noisy ones overstates itself.  The
finalists and the reference are measured again in turns; one turn on one host is a *block*, and

    ln score = configuration + block + noise

The noise variance is pooled over all configurations, since each alone has few repeats (Montgomery,
Design and Analysis of Experiments, section 4.1: the randomised complete block design).  Several
finalists are compared with one reference, so the intervals hold together (Dunnett 1955, A multiple
comparison procedure for comparing several treatments with a control, JASA 50, 1096-1121).

A winner is only named when its interval clears the reference, so the gains that are reported are
the luckier ones of their kind; the reported gain is the one to be expected given that it was
reported (`autotune.selection`).  The interval is left as it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

from autotune.measurement import Interval
from autotune.parameter import FloatArray
from autotune.selection import unselected
from autotune.stored import VerdictKind

__all__ = [
    "LEAST_REPEATS",
    "NONE_LEFT",
    "Finalist",
    "PointEstimate",
    "Remeasured",
    "Verdict",
    "VerdictKind",
    "dunnett_critical",
    "finalists",
    "verdict",
]

LEAST_REPEATS = 2  # with one measurement each there is no noise to compare with
NONE_LEFT = "no significant difference: no finalist may win"
_LEAST_FREEDOM = 2  # with one degree of freedom an interval of 95 % is 13 standard errors wide


@dataclass(frozen=True, slots=True)
class PointEstimate:
    """What the search believes of one tested point.

    Attributes:
        key: `SearchSpace.key` of the point.
        log_score: Posterior mean of ln score, or the mean of the observed ones without a model.
        changes: Parameters that differ from the deployed point.
    """

    key: str
    log_score: float
    changes: int


def finalists(points: Sequence[PointEstimate], k: int, *, reference: str) -> tuple[str, ...]:
    """Keys of the `k` points to measure again, best first; the reference is not one of them.

    Ranked by the posterior mean: the best observed value is mostly the luckiest one.
    """
    others = [point for point in points if point.key != reference]
    ranked = sorted(others, key=lambda point: (-point.log_score, point.changes, point.key))
    return tuple(dict.fromkeys(point.key for point in ranked))[:k]


@dataclass(frozen=True, slots=True)
class Remeasured:
    """One fresh measurement.

    Attributes:
        key: Which configuration.
        host, turn: Its block: where, and in which round of all configurations.
        score: Above 0, the unit does not matter.
    """

    key: str
    host: str
    turn: int
    score: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.score) and self.score > 0):
            raise ValueError(f"score {self.score} of {self.key} is not above 0")


@dataclass(frozen=True, slots=True)
class Finalist:
    """One finalist against the reference.

    Attributes:
        ratio: Score over the reference's.
        interval: Of the ratio; holds for all finalists together with 95 %.
        repeats: Fresh measurements of it.
    """

    key: str
    ratio: float
    interval: Interval
    changes: int
    repeats: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What may be claimed.

    Attributes:
        winner: Key of the configuration to use; None: the deployed one stays.
        ratio: Of the winner, freed from the luck of having been named; else of the best finalist
            as measured; None without enough data.
        interval: Of the same ratio, as measured.
        noise: Standard deviation of ln score between repeats, pooled; None without enough data.
        finalists: All of them, best first.
        sentence: The verdict in words.
    """

    kind: VerdictKind
    winner: str | None
    ratio: float | None
    interval: Interval | None
    sentence: str
    noise: float | None = None
    finalists: tuple[Finalist, ...] = ()


def verdict(
    measured: Sequence[Remeasured],
    *,
    reference: str,
    changes: Mapping[str, int],
    barred: Set[str] = frozenset(),
    level: float = 0.95,
) -> Verdict:
    """Judge the finalists against `reference`.

    The winner is the simplest one within the noise: among those better than the reference, and
    not significantly worse than the best of them, the one with the fewest changes.

    Args:
        measured: Fresh measurements of the reference and every finalist.
        changes: Parameters that differ from the deployed point, for every finalist.
        barred: Finalists that may not win, such as those whose coding answers fail.  What was
            measured of them still tells how large the noise is, and their intervals are shown.
    """
    keys = sorted({one.key for one in measured} - {reference})
    counts = Counter(one.key for one in measured)
    lacking = _lacking(counts, keys, reference)
    if lacking:
        return _not_enough(lacking)
    blocks = sorted({(one.host, one.turn) for one in measured})
    design = np.zeros((len(measured), len(keys) + len(blocks)))
    y = np.array([math.log(one.score) for one in measured])
    for row, one in enumerate(measured):
        if one.key != reference:
            design[row, keys.index(one.key)] = 1.0
        design[row, len(keys) + blocks.index((one.host, one.turn))] = 1.0
    rank = int(np.linalg.matrix_rank(design))
    freedom = len(y) - rank
    if rank < design.shape[1]:
        return _not_enough("some configurations never shared a turn with the others")
    if freedom < _LEAST_FREEDOM:
        return _not_enough(
            f"{len(blocks)} final round(s) of {len(keys)} finalist(s) show the noise "
            f"{'once' if freedom == 1 else 'never'}, which decides nothing; ask for final_rounds = "
            f"{3 if freedom < 1 else len(blocks) + 1} or more"
        )
    spread = np.linalg.inv(design.T @ design)
    effects = (spread @ design.T @ y)[: len(keys)]
    variance = float(((y - design @ (spread @ design.T @ y)) ** 2).sum()) / freedom
    covariance = np.asarray(spread[: len(keys), : len(keys)], dtype=np.float64)
    errors = np.sqrt(variance * np.diag(covariance))
    critical = dunnett_critical(freedom, _loadings(covariance), level=level)
    judged = [
        Finalist(
            key,
            math.exp(effect),
            Interval(math.exp(effect - critical * error), math.exp(effect + critical * error)),
            changes[key],
            counts[key],
        )
        for key, effect, error in zip(keys, effects, errors, strict=True)
    ]
    judged.sort(key=lambda finalist: -finalist.ratio)
    noise = math.sqrt(variance)
    allowed = [finalist for finalist in judged if finalist.key not in barred]
    better = [finalist for finalist in allowed if finalist.interval.low > 1.0]
    if not better:
        return _stays(allowed, judged, noise)
    single = float(special.stdtrit(freedom, 0.5 + level / 2))
    best = keys.index(better[0].key)
    within = []
    for finalist in better:
        other = keys.index(finalist.key)
        apart = covariance[best, best] + covariance[other, other] - 2 * covariance[best, other]
        behind = effects[best] - effects[other]
        if behind <= single * math.sqrt(max(0.0, variance * apart)):
            within.append(finalist)
    winner = min(within, key=lambda finalist: (finalist.changes, -finalist.ratio))
    error = float(errors[keys.index(winner.key)])
    gain = unselected(math.log(winner.ratio), error, critical, noise=noise, freedom=freedom)
    ratio = math.exp(gain)
    return Verdict(
        VerdictKind.BETTER,
        winner.key,
        ratio,
        winner.interval,
        f"better by {_percent(ratio)} % {_bounds(winner.interval)} than the deployed configuration",
        noise,
        tuple(judged),
    )


def dunnett_critical(freedom: int, loadings: FloatArray, *, level: float = 0.95) -> float:
    """The c for which all |t_i| of comparisons with one control stay below c, with `level`.

    Args:
        freedom: Degrees of freedom of the pooled variance.
        loadings: The correlation of comparisons i and j is `loadings[i] * loadings[j]`; sqrt(1/2)
            for equal numbers of measurements.  Shape (comparisons,).

    Source: Dunnett (1955), equation 3: given the control's deviation z and the pooled standard
    deviation s, the comparisons are independent; both are integrated out.
    """
    from scipy import stats  # takes longer to import than a report needs it

    nodes, weights = np.polynomial.hermite_e.hermegauss(24)
    weights = weights / math.sqrt(2 * math.pi)
    rest = np.sqrt(1.0 - loadings**2)
    bulk = stats.chi2.ppf([1e-8, 1 - 1e-8], freedom)
    low, high = np.sqrt(bulk / freedom)
    scales, scale_weights = _legendre(low, high)
    density = stats.chi2.pdf(freedom * scales**2, freedom) * 2 * freedom * scales * scale_weights

    def covered(c: float) -> float:
        shift = loadings[None, None, :] * nodes[None, :, None]
        reach = c * scales[:, None, None]
        inside = special.ndtr((reach - shift) / rest) - special.ndtr((-reach - shift) / rest)
        return float(density @ (inside.prod(-1) @ weights))

    if len(loadings) == 1:  # Student's t
        return float(special.stdtrit(freedom, 0.5 + level / 2))
    most = float(special.stdtrit(freedom, 1 - (1 - level) / (2 * len(loadings))))  # Bonferroni's
    least = float(special.stdtrit(freedom, 0.5 + level / 2))
    return float(optimize.brentq(lambda c: covered(c) - level, least * 0.99, most * 1.01))


def _legendre(low: float, high: float) -> tuple[FloatArray, FloatArray]:
    nodes, weights = np.polynomial.legendre.leggauss(40)
    half = (high - low) / 2
    return low + half * (nodes + 1), half * weights


def _loadings(covariance: FloatArray) -> FloatArray:
    """Loadings whose products come nearest to the correlations of the comparisons."""
    size = len(covariance)
    if size == 1:
        return np.array([math.sqrt(0.5)])
    scale = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(scale, scale)
    off = correlation[~np.eye(size, dtype=bool)]
    # never above what the data show: less correlation gives wider intervals
    return np.full(size, math.sqrt(min(0.99, max(0.0, float(off.min())))))


def _lacking(counts: Mapping[str, int], keys: Sequence[str], reference: str) -> str:
    if counts.get(reference, 0) < LEAST_REPEATS:
        return (
            f"the deployed configuration was measured again {counts.get(reference, 0)} time(s), "
            f"{LEAST_REPEATS} are needed"
        )
    if not keys:
        return "no finalist was measured again"
    least = min(keys, key=lambda key: counts[key])
    if counts[least] < LEAST_REPEATS:
        return f"a finalist was measured again {counts[least]} time(s), {LEAST_REPEATS} are needed"
    return ""


def _not_enough(reason: str) -> Verdict:
    return Verdict(VerdictKind.NOT_ENOUGH_DATA, None, None, None, f"not enough data: {reason}")


def _stays(allowed: Sequence[Finalist], judged: Sequence[Finalist], noise: float) -> Verdict:
    kind = VerdictKind.NO_SIGNIFICANT_DIFFERENCE
    if not allowed:
        return Verdict(kind, None, None, None, NONE_LEFT, noise, tuple(judged))
    best = allowed[0]
    figures = f"{_percent(best.ratio, sign=True)} % {_bounds(best.interval, sign=True)}"
    worse = best.interval.high < 1.0
    return Verdict(
        kind,
        None,
        best.ratio,
        best.interval,
        f"nothing better than the deployed configuration: the best finalist is at {figures}"
        if worse
        else f"no significant difference: {figures}",
        noise,
        tuple(judged),
    )


def _percent(ratio: float, *, sign: bool = False) -> str:
    return f"{100 * (ratio - 1):{'+' if sign else ''}.1f}"


def _bounds(interval: Interval, *, sign: bool = False) -> str:
    return f"[{_percent(interval.low, sign=sign)}, {_percent(interval.high, sign=sign)}]"
