"""What the answers lose where trees get too large: the mean of the coding gate.

A verify kernel that is right for narrow trees can corrupt wide or large ones (tree masks that are
cut off, graphs captured for fewer tokens): answers then break from some size on, within a narrow
band, and the coding gate takes its share of the score.  As a logarithm:

    ln gate = level - depth * expit((ln budget + breadth * ln topk - size) / width)

A process that is smooth everywhere takes such a step for a slope and spoils its neighbourhood.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

from autotune.parameter import FloatArray
from autotune.search.physics import Shape

__all__ = ["BreakageModel"]

_NOISE = 0.02  # of ln gate: samples of the suite, and the reference that the score is divided by
# depth, breadth and width as natural logarithms, then size and level
_MEDIANS = np.array([np.log(0.1), 0.0, np.log(0.3), 5.5, 0.0])
_SPREADS = np.array([1.0, 0.4, 0.5, 1.2, 0.2])
_SIZES = (3.5, 4.5, 5.5)  # where the band is looked for


@dataclass(frozen=True, slots=True)
class BreakageModel:
    """A fitted step; `parameters` in the order of `_MEDIANS`."""

    parameters: FloatArray

    @classmethod
    def fit(cls, shape: Shape, log_gate: FloatArray) -> BreakageModel:
        """The best of several maximum a posteriori fits to the gates (n,) of measured trials."""

        def misfit(theta: FloatArray) -> FloatArray:
            wrong = (_log_gate(theta, shape) - log_gate) / _NOISE
            # noise of a binomial count is wide where answers break: large residuals count less
            robust = np.sign(wrong) * np.sqrt(2.0 * (np.sqrt(1.0 + wrong**2) - 1.0))
            return np.concatenate([robust, (theta - _MEDIANS) / _SPREADS])

        level = float(np.quantile(log_gate, 0.75))  # most points are expected not to break
        fits = []
        for size in _SIZES:
            start = np.array([*_MEDIANS[:3], size, level])
            fits.append(optimize.least_squares(misfit, start, max_nfev=40))
        return cls(np.asarray(min(fits, key=lambda fit: float(fit.cost)).x))

    def log_gate(self, shape: Shape) -> FloatArray:
        """Natural logarithm of the gate, shape (m,)."""
        return _log_gate(self.parameters, shape)


def _log_gate(theta: FloatArray, shape: Shape) -> FloatArray:
    depth, breadth, width = np.exp(np.clip(theta[:3], -12.0, 3.0))
    size = np.log(shape.budget[:, 0]) + breadth * np.log(shape.topk[:, 0])
    return np.asarray(theta[4] - depth * special.expit((size - theta[3]) / width))
