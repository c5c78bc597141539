"""How much a further measurement is expected to improve on the best known point."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from autotune.parameter import FloatArray

__all__ = ["knowledge_gradient"]

_DRAWS = 16


def knowledge_gradient(
    mean: FloatArray,
    parts: Sequence[tuple[FloatArray, float]],
    *,
    tested: npt.NDArray[np.bool_],
    seed: int,
) -> FloatArray:
    """How much higher the best mean of a tested point is expected to be after one more trial, (m,).

    Args:
        mean: Posterior means, shape (m,).
        parts: Independent summands that a trial measures at once: posterior covariance (m, m)
            and noise of one trial.
        tested: Points with a score, shape (m,).

    Source: Frazier, Powell and Dayanik (2009), The knowledge gradient policy for correlated normal
    beliefs, equation 13; the expectation is a mean over antithetic quasi-random draws.
    """
    size = len(mean)
    moves = []
    for covariance, noise in parts:
        own = np.sqrt(np.maximum(np.diag(covariance), 0.0) + noise**2 + 1e-18)
        moves.append(covariance / own[None, :])  # column x: what a trial at x moves everything by
    uniform = stats.qmc.Sobol(len(parts), seed=seed).random(_DRAWS // 2)
    draws = special.ndtri(np.clip(uniform, 1e-6, 1 - 1e-6))
    gain = np.zeros(size)
    before = mean[tested].max()
    for draw in np.vstack([draws, -draws]):
        after = mean[:, None] + sum(z * move for z, move in zip(draw, moves, strict=True))
        gain += np.maximum(after[tested].max(0), np.diag(after)) - before
    return np.asarray(gain / _DRAWS)
