"""What the answers lose where trees get too large: the mean of the coding gate.

A verify kernel that is right for narrow trees can corrupt wide or large ones (tree masks that are
cut off, graphs captured for fewer tokens): answers then break from some size on, within a narrow
band, and the coding gate takes its share of the score.  As a logarithm:

    ln gate = level - depth * expit((ln budget + breadth * ln topk - size) / width)

A process that is smooth everywhere takes such a step for a slope and spoils its neighbourhood.  One
fitted step would be sure of a place that no trial has shown: between the largest tree that was
right and the smallest that was wrong it may be anywhere.  So steps on a grid are weighed by what
was seen; their mean is believed, and where they disagree is what is not known.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from scipy import special

from autotune.parameter import FloatArray
from autotune.search.physics import Shape

__all__ = ["BreakageModel"]

_NOISE = 0.02  # of ln gate: samples of the suite, and the reference that the score is divided by
_BROKEN_NOISE = 0.3  # of what is lost where answers break: a count of some tens of tasks
_TAILS = 4.0  # degrees of freedom of the noise: now and then a task too many fails for no reason
_STEPS = 3  # of the fixed point for the level
_NEGLIGIBLE = 0.003  # weight, next to the largest, below which a step is left out
_MOST = 100  # steps that are kept
# medians and standard deviations of depth, breadth, width as natural logarithms, and of the size
_MEDIANS = np.array([np.log(0.1), 0.0, np.log(0.3), 5.5])
_SPREADS = np.array([1.0, 0.4, 0.5, 1.2])
_GRID = np.array(
    list(
        itertools.product(
            (0.03, 0.1, 0.25, 0.5, 0.8),
            (0.5, 0.75, 1.0, 1.4),
            (0.1, 0.2, 0.4),
            np.arange(3.0, 8.1, 0.2),
        )
    )
)


@dataclass(frozen=True, slots=True)
class BreakageModel:
    """Likely steps.

    Attributes:
        steps: Depth, breadth, width and size of each, shape (k, 4).
        levels: Shape (k,).
        weights: Probabilities, shape (k,), sum 1.
    """

    steps: FloatArray
    levels: FloatArray
    weights: FloatArray

    @classmethod
    def fit(cls, shape: Shape, log_gate: FloatArray) -> BreakageModel:
        """What the gates (n,) of measured trials leave possible."""
        lost = _lost(_GRID, shape)
        noise = _NOISE + _BROKEN_NOISE * lost
        apart = log_gate[:, None] + lost
        levels = np.full(len(_GRID), np.quantile(log_gate, 0.75))  # most points do not break
        for _ in range(_STEPS):
            z = (apart - levels) / noise
            pull = (_TAILS + 1.0) / (_TAILS + z * z) / noise**2
            levels = (pull * apart).sum(0) / pull.sum(0)
        z = (apart - levels) / noise
        likely = -(0.5 * (_TAILS + 1.0) * np.log1p(z * z / _TAILS) + np.log(noise)).sum(0)
        place = np.column_stack([np.log(_GRID[:, :3]), _GRID[:, 3]])
        likely -= 0.5 * (((place - _MEDIANS) / _SPREADS) ** 2).sum(1)
        share = np.exp(likely - likely.max())
        kept = np.argsort(-share, kind="stable")[:_MOST]
        kept = kept[share[kept] >= _NEGLIGIBLE]
        return cls(_GRID[kept], levels[kept], share[kept] / share[kept].sum())

    def log_gate(self, shape: Shape) -> FloatArray:
        """Natural logarithm of the gate, shape (m,)."""
        return np.asarray((self.levels - _lost(self.steps, shape)) @ self.weights)

    def doubts(self, shape: Shape) -> FloatArray:
        """What is not known of it, as deviations along directions of variance 1, shape (m, k)."""
        each = self.levels - _lost(self.steps, shape)
        return np.asarray((each - (each @ self.weights)[:, None]) * np.sqrt(self.weights))


def _lost(steps: FloatArray, shape: Shape) -> FloatArray:
    """What each step takes from ln gate, shape (m, k)."""
    depth, breadth, width, size = steps.T
    place = np.log(shape.budget) + breadth * np.log(shape.topk)
    return np.asarray(depth * special.expit((place - size) / width))
