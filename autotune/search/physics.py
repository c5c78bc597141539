"""What one round of draft and verify costs and brings: the mean of the search model.

A server with speculative decoding works in rounds: draft a tree, verify it in one pass, keep the
accepted path.  Output throughput of a bucket is therefore

    T = 1000 * C * tau(budget, topk, window, L) / t(budget, topk, window, L, C)    tok/s

=======  =======  ================================================================================
symbol   unit     meaning
=======  =======  ================================================================================
C        -        concurrency of the bucket
L        tokens   context of the bucket
seen     tokens   min(window, L): what the drafter attends to
n        tokens   C * (budget + 1): tokens that one verify pass computes
tau      tokens   accept length: tokens that a round brings, the bonus token among them
t        ms       duration of a round
=======  =======  ================================================================================

`tau` is a saturating curve in budget and top-k times a quality that falls where the window hides
context that the drafter would use, or shows more than it was trained with.  `t` is a sum of costs
with non-negative coefficients: weights, experts touched, computing, cache reads, drafting, the
host's work on the tree.  Forms: roofline argument of the DDTree paper (arXiv 2604.12989, section
4) and of Leviathan et al. (2023), section 3.  Both are fitted to every bucket of every trial; a
Gaussian process on what they leave over makes up for what they do not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import linalg, optimize

from autotune.parameter import FloatArray, Values
from autotune.search.round_forms import Cells, RoundForms, round_forms
from autotune.workload import Workload

__all__ = ["DraftVerifyModel", "RoundData", "Shape", "round_shape"]

_ACCEPT_SD = 0.02  # of log accept length; above the noise, since the curve is an approximation
_NO_WINDOW_TOKENS = 1.0e9

# accept length: natural logarithms of the medians, and their standard deviations
_ACCEPT_MEDIANS = np.log([4.0, 8.0, 0.8, 1.5, 1.5, 0.1, 0.1, 0.02, 2048.0])
_ACCEPT_SPREADS = np.array([0.5, 0.7, 0.3, 0.7, 0.7, 1.0, 1.0, 1.0, 0.4])


@dataclass(frozen=True, slots=True)
class Shape:
    """Points as the round sees them, each of shape (m, 1)."""

    budget: FloatArray
    topk: FloatArray
    window: FloatArray

    def __getitem__(self, rows: npt.NDArray[np.int_]) -> Shape:
        return Shape(self.budget[rows], self.topk[rows], self.window[rows])

    def at(self, context: FloatArray, streams: FloatArray) -> Cells:
        """Together with the buckets of a workload."""
        return Cells(self.budget, self.topk, self.window, context, streams)

    def joined(self, more: Shape) -> Shape:
        """These points, then the others."""
        pairs = ((self.budget, more.budget), (self.topk, more.topk), (self.window, more.window))
        return Shape(*(np.vstack(pair) for pair in pairs))


def round_shape(points: Sequence[Values]) -> Shape | None:
    """Budget, top-k and window of the points; None where they have no numeric budget.

    A missing top-k binds nothing (it equals the budget), a missing or left-out window hides
    nothing.
    """
    rows = []
    for point in points:
        budget = point.get("budget")
        if not isinstance(budget, int | float):
            return None
        topk, window = point.get("topk"), point.get("window")
        rows.append(
            (
                float(budget),
                float(topk) if isinstance(topk, int | float) else float(budget),
                float(window) if isinstance(window, int | float) else _NO_WINDOW_TOKENS,
            )
        )
    table = np.array(rows, dtype=np.float64).reshape(-1, 3)
    return Shape(table[:, :1], table[:, 1:2], table[:, 2:])


@dataclass(frozen=True, slots=True)
class RoundData:
    """Measured buckets of n trials: NaN where a bucket was not measured.

    Attributes:
        throughput: tok/s, shape (n, buckets), hosts already brought to one scale.
        accept: Accept length, shape (n, buckets).
        vagueness: Noise variance as a multiple of a fresh trial's, shape (n,); None: all alike.
    """

    shape: Shape
    throughput: FloatArray
    accept: FloatArray
    vagueness: FloatArray | None = None

    @property
    def trust(self) -> FloatArray:
        """What residuals are multiplied by, shape (n,)."""
        given = np.ones(len(self.throughput)) if self.vagueness is None else self.vagueness
        return np.asarray(1.0 / np.sqrt(given))


@dataclass(frozen=True, slots=True)
class DraftVerifyModel:
    """A fitted round model for the buckets of one workload.

    Attributes:
        accept_parameters: Natural logarithms, in the order of `_ACCEPT_MEDIANS`.
        accept_root: R with R R' their posterior covariance near the fit.
        rounds: How long a round may take, each form by its weight.
    """

    workload: Workload
    accept_parameters: FloatArray
    accept_root: FloatArray
    rounds: RoundForms

    @classmethod
    def fit(cls, workload: Workload, data: RoundData) -> DraftVerifyModel | None:
        """The maximum a posteriori fit; None when no bucket has both throughput and accept."""
        context, streams = _cells(workload)
        known = np.isfinite(data.throughput) & np.isfinite(data.accept) & (data.accept >= 1.0)
        known &= data.throughput > 0
        if not known.any():
            return None
        log_accept = np.where(known, np.log(np.where(known, data.accept, 1.0)), 0.0)

        def misfit(theta: FloatArray) -> FloatArray:
            model = np.log(_accept_length(theta, data.shape, context))
            scaled = (model - log_accept) / _ACCEPT_SD * data.trust[:, None]
            wrong = np.where(known, scaled, 0.0)[known]
            return np.concatenate([wrong, (theta - _ACCEPT_MEDIANS) / _ACCEPT_SPREADS])

        fitted = optimize.least_squares(misfit, _ACCEPT_MEDIANS, max_nfev=40, loss="soft_l1")
        jacobian = np.asarray(fitted.jac, dtype=np.float64)
        round_ms = 1000.0 * streams * np.where(known, data.accept, 1.0)
        round_ms = round_ms / np.where(known, data.throughput, 1.0)
        return cls(
            workload,
            np.asarray(fitted.x),
            _root_of_inverse(jacobian.T @ jacobian),
            round_forms(data.shape.at(context, streams), round_ms, known, data.trust),
        )

    def doubts(self, shape: Shape) -> tuple[FloatArray, FloatArray]:
        """What is not known of ln accept length and of ln round time, linear near the fit.

        Each of shape (m, buckets, q): deviations along q independent directions of variance 1.
        """
        context, streams = _cells(self.workload)
        centre = np.log(_accept_length(self.accept_parameters, shape, context))
        step = 0.05
        slopes = [
            (np.log(_accept_length(self.accept_parameters + step * unit, shape, context)) - centre)
            / step
            for unit in np.eye(len(self.accept_parameters))
        ]
        accept = np.stack(slopes, axis=-1) @ self.accept_root
        return np.asarray(accept), self.rounds.doubts(shape.at(context, streams))

    def accept_length(self, shape: Shape) -> FloatArray:
        """Tokens a round brings, shape (m, buckets)."""
        context, _ = _cells(self.workload)
        return _accept_length(self.accept_parameters, shape, context)

    def throughput(self, shape: Shape) -> FloatArray:
        """tok/s, shape (m, buckets)."""
        context, streams = _cells(self.workload)
        tau = _accept_length(self.accept_parameters, shape, context)
        log_ms = self.rounds.log_ms(shape.at(context, streams))
        return np.asarray(1000.0 * streams * tau / np.exp(log_ms))


def _root_of_inverse(precision: FloatArray) -> FloatArray:
    """R with R R' the inverse of a positive definite matrix."""
    lower = np.linalg.cholesky(precision + 1e-12 * np.trace(precision) * np.eye(len(precision)))
    return np.asarray(linalg.solve_triangular(lower.T, np.eye(len(precision)), lower=False))


def _cells(workload: Workload) -> tuple[FloatArray, FloatArray]:
    """Context and concurrency of the buckets, each of shape (1, buckets)."""
    context = np.array([[bucket.context_tokens for bucket in workload.buckets]], dtype=np.float64)
    streams = np.array([[bucket.concurrency for bucket in workload.buckets]], dtype=np.float64)
    return context, streams


def _accept_length(theta: FloatArray, shape: Shape, context: FloatArray) -> FloatArray:
    bounded = np.clip(
        theta, _ACCEPT_MEDIANS - 6 * _ACCEPT_SPREADS, _ACCEPT_MEDIANS + 6 * _ACCEPT_SPREADS
    )
    gain, size, power, chain, breadth, hidden, beyond, long, trained = np.exp(bounded)
    seen = np.minimum(shape.window, context)
    lost = hidden * np.maximum(0.0, np.log2(np.minimum(context, trained) / seen))
    lost = lost + beyond * np.maximum(0.0, np.log2(seen / trained))
    quality = np.exp(-lost - long * np.log2(1.0 + context / 1024.0))
    by_topk = 1.0 - np.exp(-(shape.topk - 1.0) / breadth) / (1.0 + chain)
    by_budget = 1.0 - np.exp(-np.minimum((shape.budget / size) ** power, 50.0))
    return np.asarray(1.0 + gain * quality * by_budget * by_topk)
