"""How much a further measurement is expected to improve on the best known point."""

from __future__ import annotations

import numpy as np
from scipy import special

from autotune.parameter import FloatArray

__all__ = ["informed_deviation", "log_expected_improvement"]

_FAR = -1e6  # beyond this the series below has no digits left


def informed_deviation(deviation: FloatArray, noise: float) -> FloatArray:
    """How far one measurement with `noise` will move the posterior mean of a point.

    `deviation` is what is not known of the point's true value.  A repeat of a well-known point
    moves its mean little, so an improvement built on this quantity prefers new points and repeats
    only where a repeat tells more.  Source: Frazier, Powell and Dayanik (2009), The knowledge
    gradient policy for correlated normal beliefs, equation 12 for one point.
    """
    variance = deviation * deviation
    return np.asarray(variance / np.sqrt(variance + noise * noise + 1e-18))


def log_expected_improvement(mean: FloatArray, deviation: FloatArray, best: float) -> FloatArray:
    """Log of E[max(0, f - best)] for f ~ N(mean, deviation^2), exact also where it underflows.

    Source: Ament, Daulton, Eriksson, Balandat and Bakshy (2023), Unexpected improvements to
    expected improvement for Bayesian optimization, equation 9.
    """
    z = np.maximum((mean - best) / deviation, _FAR)
    near = z > -1.0
    result = np.empty_like(z)
    zn = z[near]
    result[near] = np.log(np.exp(-0.5 * zn**2) / np.sqrt(2.0 * np.pi) + zn * special.ndtr(zn))
    zf = z[~near]
    # phi(z) + z Phi(z) = phi(z) (1 - sqrt(pi/2) |z| erfcx(|z|/sqrt 2)), and the bracket tends to
    # 1/z^2 - 3/z^4 where the subtraction has lost its digits
    bracket = 1.0 - np.sqrt(np.pi / 2.0) * -zf * special.erfcx(-zf / np.sqrt(2.0))
    bracket = np.where(zf < -500.0, 1.0 / zf**2 - 3.0 / zf**4, bracket)
    result[~near] = -0.5 * zf**2 - 0.5 * np.log(2.0 * np.pi) + np.log(bracket)
    return np.asarray(result + np.log(deviation))
