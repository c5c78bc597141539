"""A simpler search to be better than: expected improvement on a fitted round plus one process.

The design of a first study of these surfaces, written anew for comparison only: start on the axes
round the deployed point, one process on the logarithm of the score left over by a fitted round,
memory as a linear law with a known end.  Everything it decides it decides from the same
observations as the others.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from autotune.parameter import FloatArray, Values
from autotune.testing.surfaces import Observation
from benchmarks.search.truths import Truth

__all__ = ["Prototype"]

_START = ((16, 4, 2048), (16, 8, 2048), (32, 8, 2048), (8, 4, 1024), (8, 4, 4096), (4, 2, 2048))
_REACH = np.array([0.35, 0.5, 0.5])  # within which a crash is feared
_MEDIANS = np.log([4.0, 8.0, 0.8, 1.5, 1.5, 0.1, 0.1, 0.02, 2048.0])
_SPREADS = np.array([0.5, 0.7, 0.3, 0.7, 0.7, 1.0, 1.0, 1.0, 0.4])
_MEMORY = np.array([0.2, 0.05, 0.2])  # GiB per node, per 16 pairs, per 256 tokens of window


class Prototype:
    """Proposes rows of a `Truth`; told what was observed."""

    def __init__(self, truth: Truth) -> None:
        names = ("budget", "topk", "window")
        self._truth = truth
        table = [[point[name] or 16_384 for name in names] for point in truth.points]
        self._columns = np.array(table, dtype=float)
        ranks = np.searchsorted(np.unique(self._columns[:, 2]), self._columns[:, 2]) / 6
        self._x = np.stack(
            [np.log2(self._columns[:, 0]) / 6, np.log2(self._columns[:, 1]) / 4, ranks], 1
        )
        self._queue: list[Values] = [dict(zip(names, point, strict=True)) for point in _START]
        self._rows: list[int] = []
        self._seen: list[Observation] = []

    def propose(self) -> Values:
        if self._queue:
            return self._queue.pop(0)
        mean, deviation, running = self._posterior()
        tested = np.array([row for row, o in zip(self._rows, self._seen, strict=True) if o.buckets])
        z = (mean - mean[tested].max()) / deviation
        gain = deviation * (z * special.ndtr(z) + np.exp(-z * z / 2) / math.sqrt(2 * math.pi))
        return self._truth.points[int(np.argmax(gain * running))]

    def observe(self, values: Values, observed: Observation) -> None:
        self._rows.append(self._truth.row(values))
        self._seen.append(observed)

    def named(self) -> int:
        """Row of the tested point with the best posterior mean."""
        mean, _, _ = self._posterior()
        tested = [row for row, o in zip(self._rows, self._seen, strict=True) if o.buckets]
        return max(tested, key=lambda row: mean[row])

    # -- inside -----------------------------------------------------------------------------------
    def _posterior(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mean and deviation of ln score and probability of running, at every point."""
        ran = np.array([bool(one.buckets) for one in self._seen])
        rows = np.array(self._rows)[ran]
        seen = [one for one in self._seen if one.buckets]
        y = np.log([max(one.score_ratio or 0.0, 1e-3) for one in seen])
        offset, memory = self._round(rows, seen)
        running = np.where(memory > self._truth.capacity_gib * 1.01, 1e-6, 1.0)
        if not ran.all():
            every = np.array(self._rows)
            near = _matern(self._x[every] / _REACH, self._x[every] / _REACH)
            sign = np.where(ran, 1.0, -1.0) - 0.4
            weights = np.linalg.solve(near + 0.05 * np.eye(len(every)), sign)
            feared = 0.4 + _matern(self._x / _REACH, self._x[every] / _REACH) @ weights
            running = running * special.ndtr(3 * feared)
        mean, deviation = _process(self._x[rows], y - offset[rows], self._x)
        return mean + offset, deviation, running

    def _round(
        self, rows: npt.NDArray[np.intp], seen: list[Observation]
    ) -> tuple[FloatArray, FloatArray]:
        """ln score of the fitted round, and GPU memory, at every point."""
        buckets = self._truth.workload.buckets
        context = np.array([float(b.context_tokens) for b in buckets])[None]
        streams = np.array([float(b.concurrency) for b in buckets])[None]
        rate = np.array([[one.buckets[b.key]["output_tok_per_s"] for b in buckets] for one in seen])
        accept = np.array([[one.buckets[b.key]["accept_length"] for b in buckets] for one in seen])
        here = self._columns[rows]

        def misfit(theta: FloatArray) -> FloatArray:
            wrong = (np.log(_accepted(theta, here, context)) - np.log(accept)) / 0.03
            return np.concatenate([wrong.ravel(), (theta - _MEDIANS) / _SPREADS])

        theta = optimize.least_squares(misfit, _MEDIANS, max_nfev=30).x
        took_ms = (1000 * streams * accept / rate).ravel()
        costs = _costs(here, context, streams).reshape(len(took_ms), -1)
        ridge = 0.02 * (np.abs(costs).mean(0) + 1e-12) / took_ms.mean() * math.sqrt(len(took_ms))
        design = np.vstack([costs / took_ms[:, None], np.diag(ridge)])
        coefficients, _ = optimize.nnls(
            design, np.concatenate([np.ones(len(took_ms)), np.zeros(len(ridge))])
        )
        round_ms = np.maximum(_costs(self._columns, context, streams) @ coefficients, 1e-3)
        throughput = 1000 * streams * _accepted(theta, self._columns, context) / round_ms
        level = float(self._truth.score[self._truth.deployed])
        score = np.log(throughput @ self._truth.weights / level)
        used = np.array([self._truth.capacity_gib - (one.free_gib or 0.0) for one in seen])
        features = _memory_features(here)
        prior = np.concatenate([[used.mean()], _MEMORY])
        ridge_memory = np.diag([0.003, 0.3, 0.3, 0.3])
        law = prior + np.linalg.solve(
            features.T @ features + ridge_memory, features.T @ (used - features @ prior)
        )
        return score, _memory_features(self._columns) @ law


def _accepted(theta: FloatArray, columns: FloatArray, context: FloatArray) -> FloatArray:
    gain, size, power, chain, breadth, hidden, beyond, long, trained = np.exp(theta)
    budget, topk, window = (column[:, None] for column in columns.T)
    seen = np.minimum(window, context)
    lost = hidden * np.maximum(0, np.log2(np.minimum(context, trained) / seen))
    lost = lost + beyond * np.maximum(0, np.log2(seen / trained))
    quality = np.exp(-lost - long * np.log2(1 + context / 1024))
    by_topk = 1 - (1 - chain / (1 + chain)) * np.exp(-(topk - 1) / breadth)
    return np.asarray(1 + gain * quality * (1 - np.exp(-((budget / size) ** power))) * by_topk)


def _costs(columns: FloatArray, context: FloatArray, streams: FloatArray) -> FloatArray:
    budget, topk, window = (column[:, None] for column in columns.T)
    tokens = streams * (budget + 1)
    terms = (
        np.ones_like(tokens), tokens, np.sqrt(tokens), np.maximum(0, tokens - 512),
        streams * context, streams * np.minimum(window, context), budget + 0 * streams,
        topk + 0 * streams,
    )  # fmt: skip
    return np.stack(np.broadcast_arrays(*terms), -1)


def _memory_features(columns: FloatArray) -> FloatArray:
    budget, topk, window = columns.T
    return np.stack(
        [np.ones_like(budget), budget, budget * topk / 16, np.minimum(window, 8192) / 256], 1
    )


def _matern(a: FloatArray, b: FloatArray) -> FloatArray:
    squared = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * a @ b.T
    root = np.sqrt(5 * np.maximum(squared, 0))
    return np.asarray((1 + root + root * root / 3) * np.exp(-root))


def _process(x: FloatArray, y: FloatArray, everywhere: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Posterior of a Matern process with maximum a posteriori hyperparameters."""
    centre, spread = float(y.mean()), max(float(y.std()), 1e-6)
    z = (y - centre) / spread
    expected_noise = math.log(np.clip((0.035 / spread) ** 2, 1e-4, 0.8))

    def gram(p: FloatArray) -> FloatArray:
        scaled = x / np.exp(p[:3])
        noise = math.exp(p[4]) + 1e-6
        return np.asarray(math.exp(p[3]) * _matern(scaled, scaled) + noise * np.eye(len(x)))

    def loss(p: FloatArray) -> float:
        try:
            lower = np.linalg.cholesky(gram(p))
        except np.linalg.LinAlgError:
            return 1e6
        fitted = np.linalg.solve(lower, z)
        likelihood = 0.5 * fitted @ fitted + np.log(np.diag(lower)).sum()
        pulls = ((p[:3] - math.log(0.5)) / 0.8) ** 2
        return float(
            likelihood + 0.5 * pulls.sum() + 0.5 * p[3] ** 2
            + 0.5 * ((p[4] - expected_noise) / 0.7) ** 2
        )  # fmt: skip

    best = optimize.minimize(
        loss,
        np.array([*[math.log(0.5)] * 3, 0.0, expected_noise]),
        method="L-BFGS-B",
        options={"maxiter": 25},
        bounds=[(-3.5, 2.5)] * 3 + [(-3, 3), (-12, 1)],
    ).x
    lower = np.linalg.cholesky(gram(best))
    weights = np.linalg.solve(lower.T, np.linalg.solve(lower, z))
    scales, signal = np.exp(best[:3]), math.exp(best[3])
    cross = signal * _matern(everywhere / scales, x / scales)
    half = np.linalg.solve(lower, cross.T)
    variance = np.maximum(signal - (half**2).sum(0), 1e-9)
    return cross @ weights * spread + centre, np.sqrt(variance) * spread
