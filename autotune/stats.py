"""Statistics of measured windows.  Pure; each function names its reference.

x_1..x_n   output throughput of n equal windows that follow each other, tok/s
rho        lag-1 autocorrelation of the windows
h          half-width of the 95 % interval of the mean, same unit as x
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from autotune.measurement import Interval

__all__ = [
    "enough",
    "halves_agree",
    "is_steady",
    "mean_interval",
    "percentile",
    "percentile_at_least",
    "relative_half_width",
]

# The autocorrelations that one-second windows of a closed loop have.  Negative values are left out:
# they would make the interval narrower, and synchronised requests produce them by accident.
_RHO: NDArray[np.float64] = np.linspace(0.0, 0.8, 9)
_BISECTIONS = 22
# What is known of the noise before the first window: as if three more windows had shown a spread of
# 1.7 % of the mean, the middle of the 0.5 to 5 % that one-second windows of real servers have.
# Without it eight quiet windows in a row end a noisy bucket too early.
_PRIOR_WINDOWS = 3
_PRIOR_SPREAD = 0.017
# Share of the mean above which two halves are never called equal, however noisy they are: with few
# windows the test of Geweke alone has little power.
_LARGEST_DRIFT = 0.1


def percentile(values: Sequence[float], q: float) -> float:
    """The q-th percentile (q in 0..100) by linear interpolation between order statistics.

    Definition 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages", The American
    Statistician 50 (1996); NumPy's default.

    Raises:
        ValueError: when there is no value.
    """
    if not values:
        raise ValueError("no percentile of an empty sample")
    return float(np.percentile(np.asarray(values, dtype=np.float64), q))


def percentile_at_least(
    seen: Sequence[float], unfinished: Sequence[float], q: float, *, since: Sequence[float] = ()
) -> tuple[float, bool]:
    """The q-th percentile of waits of which some had not ended when nobody looked any longer.

    A wait that was broken off is known to be at least so long.  Leaving it out would leave out the
    long ones, so its weight goes to what is longer than it, in equal parts: the estimate of Kaplan
    and Meier, "Nonparametric Estimation from Incomplete Observations", JASA 53 (1958), in the form
    of Efron, "The Two Sample Problem with Censored Data", 5th Berkeley Symposium (1967).  It is
    right where the end of looking does not depend on the wait.  Without unfinished waits it is
    `percentile`.

    A wait that was under way when looking began is there only because it had not ended before: the
    longer, the likelier.  It counts beside others from that length on (left truncation; Tsai,
    Jewell and Wang, "A note on the product-limit estimator under right censoring and left
    truncation", Biometrika 74, 1987).  Where nothing is left beside a wait that ends although
    longer ones are known, these count beside it: they would else be lost.

    Args:
        seen: Waits that ended.
        unfinished: How long the others had lasted.
        since: How long each had lasted when looking began, those seen first; empty: all 0.

    Returns:
        The percentile, and whether it is a lower bound only: it lies among waits that were broken
        off with nothing longer after them.

    Raises:
        ValueError: when there is no wait, or `since` has not one number for each.
    """
    if not seen and not unfinished:
        raise ValueError("no percentile of an empty sample")
    since = since or [0.0] * (len(seen) + len(unfinished))
    waits = [*((one, False) for one in seen), *((one, True) for one in unfinished)]
    # Of equal waits the seen one is first: the other may have lasted longer.
    watched = sorted((*wait, begun) for wait, begun in zip(waits, since, strict=True))
    weights = _product_limit(watched)
    last_seen = max(
        (n for n, (_, broken_off, _) in enumerate(watched) if not broken_off), default=-1
    )
    values = [
        (wait, weight)
        for n, ((wait, broken_off, _), weight) in enumerate(zip(watched, weights, strict=True))
        if not broken_off or n > last_seen
    ]
    certain = len(values) - (len(watched) - 1 - last_seen)
    # Definition 7 on as many waits as there were, at equal distances of the estimate.
    place = (len(watched) - 1) * q / 100
    below, above = math.floor(place), math.ceil(place)
    levels = (np.asarray([below, above]) + 0.5) / len(watched)
    reached = np.cumsum([weight for _, weight in values])
    low, high = np.minimum(np.searchsorted(reached, levels), len(values) - 1)
    value = values[low][0] + (place - below) * (values[high][0] - values[low][0])
    return value, bool(high >= certain)


def _product_limit(watched: Sequence[tuple[float, bool, float]]) -> list[float]:
    """Weights of waits (length, broken off, length when looking began) in ascending order."""
    ends = [n for n, (_, broken_off, _) in enumerate(watched) if not broken_off]
    begun = np.asarray([since for _, _, since in watched])
    weights, left = [0.0] * len(watched), 1.0
    for n in ends:
        others = begun[n + 1 :]
        beside = int(np.count_nonzero((others < watched[n][0]) | (others == 0)))
        weights[n] = left / (1 + (beside or len(others)))
        left -= weights[n]
    after = len(watched) - 1 - (ends[-1] if ends else -1)
    for n in range(len(watched) - after, len(watched)):
        weights[n] = left / after
    return weights


def mean_interval(windows: Sequence[float], *, confidence: float = 0.95) -> Interval:
    """Interval of the long-run mean of autocorrelated windows, same unit as `windows`.

    The windows are taken as a first-order autoregression with unknown mean, variance and rho; the
    half-width is that of the posterior of the mean under flat priors for the mean and for rho in
    0..0.8 and a weak one for the variance, scaled inverse chi-square with 3 degrees of freedom and
    1.7 % of the mean: a mixture of Student distributions (Zellner and Tiao, "Bayesian Analysis of
    the Regression Model with Autocorrelated Errors", JASA 59, 1964).  It lies round the plain mean,
    which is the throughput that was measured.  Why not batch means or a plug-in estimate of rho:
    with 8..40 windows and a stop as soon as the interval is narrow enough, both undercover, because
    the stop favours samples whose estimated variance is too small (measured 71-92 % at rho = 0.6
    for a nominal 95 %); a posterior does not depend on the rule that stopped the sampling (Berger,
    "Statistical Decision Theory and Bayesian Analysis", section 7.7).  rho = 0 is covered
    above the nominal confidence, rho = 0.6 a little below; `benchmarks.client_accuracy` measures.

    Args:
        windows: shape (n,), in order of time.

    Raises:
        ValueError: for fewer than two windows.
    """
    x = np.asarray(windows, dtype=np.float64)
    if x.size < 2:
        raise ValueError("an interval needs at least two windows")
    mean = float(x.mean())
    if mean == 0:
        return Interval(low=0.0, high=0.0)
    centres, scales, weights = _posterior(x / mean - 1)
    freedom = x.size - 1 + _PRIOR_WINDOWS
    half = _half_width(centres, scales, weights, freedom=freedom, tail=1 - confidence) * abs(mean)
    return Interval(low=mean - half, high=mean + half)


def _posterior(
    x: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Centre, scale and weight of the Student component of each rho; shapes (len(_RHO),).

    x: windows over their mean, less 1.

    Whitening: y_1 = sqrt(1 - rho^2) x_1, y_i = x_i - rho x_(i-1); the mean then has the regressor
    sqrt(1 - rho^2), 1 - rho, ..., 1 - rho (Prais and Winsten, 1954).
    """
    first = 1 - _RHO**2
    slope = 1 - _RHO
    steps = x[1:, None] - _RHO * x[:-1, None]
    precision = first + (x.size - 1) * slope**2
    centres = (first * x[0] + slope * steps.sum(axis=0)) / precision
    squares = first * (x[0] - centres) ** 2 + ((steps - slope * centres) ** 2).sum(axis=0)
    # The prior is one of the windows' own variance; that of the steps is (1 - rho^2) of it.
    squares += _PRIOR_WINDOWS * _PRIOR_SPREAD**2 * first
    freedom = x.size - 1 + _PRIOR_WINDOWS
    log_weight = (
        (1 + _PRIOR_WINDOWS) * np.log(first) - np.log(precision) - freedom * np.log(squares)
    ) / 2
    weights = np.exp(log_weight - log_weight.max())
    return centres, np.sqrt(squares / freedom / precision), weights / weights.sum()


def _half_width(
    centres: NDArray[np.float64],
    scales: NDArray[np.float64],
    weights: NDArray[np.float64],
    *,
    freedom: int,
    tail: float,
) -> float:
    """h with P(|mean| > h) = tail under the mixture, by bisection."""
    low = 0.0
    widest = float(special.stdtrit(freedom, 1 - tail / 2)) * float(scales.max())
    high = widest + float(np.abs(centres).max())
    for _ in range(_BISECTIONS):
        half = (low + high) / 2
        outside = special.stdtr(freedom, (centres - half) / scales) + special.stdtr(
            freedom, -(centres + half) / scales
        )
        if float((weights * outside).sum()) > tail:
            low = half
        else:
            high = half
    return high


def relative_half_width(windows: Sequence[float]) -> float:
    """h / mean; infinite for fewer than two windows or a mean of 0."""
    if len(windows) < 2:
        return math.inf
    mean = math.fsum(windows) / len(windows)
    return mean_interval(windows).half_width / mean if mean > 0 else math.inf


def enough(
    windows: Sequence[float], *, target_relative_half_width: float, least: int, most: int
) -> bool:
    """Whether to stop measuring: the interval is narrow enough, or the most windows are spent.

    The sequential procedure of Chow and Robbins, "On the Asymptotic Theory of Fixed-Width
    Sequential Confidence Intervals for the Mean", Annals of Mathematical Statistics 36 (1965), with
    a least number of windows.
    """
    if len(windows) >= most:
        return True
    return len(windows) >= least and relative_half_width(windows) <= target_relative_half_width


def is_steady(windows: Sequence[float], *, least: int = 6) -> bool:
    """Whether the last windows, `least` to twice as many, have stopped drifting.

    The means of the first and the second half must differ by less than 1.96 standard errors
    (Geweke, "Evaluating the Accuracy of Sampling-Based Approaches to the Calculation of Posterior
    Moments", 1992, with halves in place of his 10 % and 50 %) and by less than 10 % of the mean.
    `least` is 6, three windows a half: the fewest for which a variance within a half means
    something.  No throughput at all is not steady.
    """
    recent = np.asarray(windows[-2 * least :], dtype=np.float64)
    if recent.size < least:
        return False
    half = recent.size // 2
    early, late = recent[:half], recent[-half:]
    mean = float(recent.mean())
    if mean <= 0:
        return False
    difference = abs(float(early.mean() - late.mean()))
    error = math.sqrt((float(early.var(ddof=1)) + float(late.var(ddof=1))) / half)
    # Differences below a thousandth are the clock's: windows are cut at chunks, not at tokens.
    return difference <= _LARGEST_DRIFT * mean and difference <= max(1.96 * error, 1e-3 * mean)


def halves_agree(windows: Sequence[float]) -> bool:
    """Whether the two halves of all measured windows differ by no more than their interval allows.

    The difference of two halves has twice the standard error of the mean, so twice h is its own
    95 % bound; h already knows the autocorrelation.  As in `is_steady`, never above 10 %.  This is
    asked of a bucket whose warm-up did not pass `is_steady` in time.
    """
    if len(windows) < 4:
        return False
    half = len(windows) // 2
    mean = math.fsum(windows) / len(windows)
    difference = abs(math.fsum(windows[:half]) - math.fsum(windows[-half:])) / half
    return (
        mean > 0
        and difference <= _LARGEST_DRIFT * mean
        and difference <= max(2 * mean_interval(windows).half_width, 1e-3 * mean)
    )
