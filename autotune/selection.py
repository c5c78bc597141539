"""What a winner's gain is believed to be, given that it was named: the luck of its kind taken off.

A winner is named only when its gain is significant, so the gains that are reported are the luckier
ones of their kind.  All in units of the estimated standard error of the gain:

=======  =========================================================================================
symbol   meaning
=======  =========================================================================================
t        the measured gain over its estimated standard error
c        what t had to exceed to be named; t - c .. t + c is the simultaneous interval
theta    the true gain over the estimated standard error
w        the estimated standard error over the true one: w^2 is chi-square over its degrees
f        degrees of freedom of the estimated noise
=======  =========================================================================================

Given theta and w, t is normal about theta with standard deviation 1 / w, and a winner is named
with the probability that a Student t with f degrees, not centred but at theta * w, exceeds c.
The likelihood given the naming is the quotient of the two.  Zhong and Prentice (2008),
Bias-reduced estimators and confidence intervals for odds ratios in genome-wide association
studies, Biostatistics 9, 621-634, name its mode and its mean, for known noise.  Its mode falls to
no gain at all for a t just above c; its mean moves there, too, but has less mean absolute error at
every gain (`benchmarks.search.verdicts`).  Here the noise is not known: it is integrated out.  The
mean is taken within the simultaneous interval, as the hybrid estimators of Andrews, Kitagawa and
McCloskey (2024), Inference on winners, Quarterly Journal of Economics 139, 305-358.

A handful of degrees of freedom leaves noise of several times what was seen possible, and with it
luck behind any winner.  So a little is taken as known beforehand: as if four degrees of freedom
more had shown a noise of 3 % (a scaled inverse chi-square prior), the middle of what starts of one
configuration differ by.  It moves the reported gain alone; naming and interval know nothing of it.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special, stats

from autotune.parameter import FloatArray

__all__ = ["unselected"]

_GAINS, _SCALES = 161, 40  # nodes of theta and of w
_TAIL = 1e-6  # of the distribution of w, on either side
_PRIOR_FREEDOM, _PRIOR_NOISE = 4, 0.03


def unselected(
    effect: float, error: float, critical: float, *, noise: float, freedom: int
) -> float:
    """The mean of the true effect, given that the measured one is above `critical` errors.

    Args:
        effect: Difference of ln score, as the result.
        error: Its estimated standard error; 0 leaves the effect as it is.
        noise: Estimated standard deviation of ln score between starts, of which `error` is made.
        freedom: Degrees of freedom of both.
    """
    if error <= 0:
        return effect
    measured = effect / error
    theta = np.linspace(measured - critical, measured + critical, _GAINS)
    w, weights = _scales(freedom)
    own = w * np.exp(-0.5 * (w * (measured - theta[:, None])) ** 2)  # density of t
    named = _named(theta[:, None] * w, critical, w, weights)
    expected = _PRIOR_FREEDOM * (_PRIOR_NOISE / noise) ** 2 / 2
    before = _PRIOR_FREEDOM * np.log(w) - expected * w**2
    density = (own / named) @ (weights * np.exp(before - before.max()))
    density[[0, -1]] /= 2  # trapezoidal rule
    return error * float(density @ theta / density.sum())


def _scales(freedom: int) -> tuple[FloatArray, FloatArray]:
    """Nodes of w and their probabilities."""
    low, high = np.sqrt(stats.chi2.ppf([_TAIL, 1 - _TAIL], freedom) / freedom)
    nodes, weights = np.polynomial.legendre.leggauss(_SCALES)
    w = low + (high - low) / 2 * (nodes + 1)
    density = stats.chi2.pdf(freedom * w**2, freedom) * w
    weights = weights * density  # of w given the noise, and of the noise given w with 1 / sigma
    return w, weights / weights.sum()


def _named(centre: FloatArray, critical: float, w: FloatArray, weights: FloatArray) -> FloatArray:
    """Probability that t exceeds `critical` where the standardised true gain is `centre`."""
    chance = special.ndtr(centre[..., None] - critical * w) @ weights
    return np.asarray(np.maximum(chance, math.ulp(1.0)))
