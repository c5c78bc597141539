"""Whether a server will fit, from the memory that those which ran left free.

A crash teaches the side of a wall; the memory left by each start that ran teaches where the wall
stands before anything has crashed.  The law is linear in what is allocated for trees and windows:

    free = level - node * budget - pair * budget * topk / 16 - window * min(window, L) / 256    GiB

with L the longest context of the workload.  A start without room crashes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import special

from autotune.parameter import FloatArray
from autotune.search.physics import Shape

__all__ = ["MemoryModel"]

_MEDIANS = np.array([0.0, 0.15, 0.03, 0.15])  # GiB, as in the formula; the level is measured
_SPREADS = np.array([30.0, 0.2, 0.05, 0.15])
_NOISE_GIB = 0.4  # of one start, and of the law itself


class MemoryModel:
    """A Bayesian linear law of free memory (Rasmussen and Williams, section 2.1.1)."""

    def __init__(self, shape: Shape, free_gib: Sequence[float], *, longest_tokens: float) -> None:
        self._longest = longest_tokens
        features = self._features(shape)
        weight = 1.0 / _NOISE_GIB**2
        precision = np.diag(_SPREADS**-2.0) + weight * features.T @ features
        pull = _MEDIANS * _SPREADS**-2.0 + weight * features.T @ np.asarray(free_gib)
        self._covariance = np.linalg.inv(precision)
        self._law = self._covariance @ pull

    def log_probability(self, shape: Shape) -> FloatArray:
        """Log of the probability that memory suffices, shape (m,)."""
        features = self._features(shape)
        mean = features @ self._law
        variance = np.einsum("mi,ij,mj->m", features, self._covariance, features) + _NOISE_GIB**2
        return np.asarray(special.log_ndtr(mean / np.sqrt(variance)))

    def _features(self, shape: Shape) -> FloatArray:
        budget, topk, window = shape.budget[:, 0], shape.topk[:, 0], shape.window[:, 0]
        held = np.minimum(window, self._longest)
        return np.stack([np.ones_like(budget), -budget, -budget * topk / 16, -held / 256], 1)
