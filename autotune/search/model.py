"""Gaussian processes for few, noisy, costly observations.

=================  ==========  =====================================================================
symbol             shape       meaning
=================  ==========  =====================================================================
x                  (n, d)      encoded points, every coordinate in [0, 1]
y                  (n,)        observations, in natural logarithms of a ratio (0.01 is one percent)
l                  (d,)        lengthscales, one for each coordinate
s2, n2             ()          signal and noise variance
c2                 ()          variance of the unknown constant mean
F                  (n, q)      features whose weights are unknown, of variance 1 each
v                  (n,)        noise variance of each observation as a multiple of n2
K                  (n, n)      c2 + s2 * matern52(x, x; l) + F F' + n2 * diag(v)
=================  ==========  =====================================================================

Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006): algorithm 2.1 (fit
and predict), equation 5.9 (gradient of the evidence), algorithm 3.1 (Laplace classification).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import linalg, optimize, special

from autotune.parameter import FloatArray

__all__ = ["FeasibilityModel", "GaussianProcess", "Prior", "matern52"]

_JITTER = 1e-9
_PREDICT_ROWS = 2048  # candidates at a time: bounds the memory to about 3 MB for 200 trials


def matern52(squared: FloatArray) -> FloatArray:
    """The Matern-5/2 correlation of squared, scaled distances; any shape."""
    root = np.sqrt(5.0 * np.maximum(squared, 0.0))
    return np.asarray((1.0 + root + root * root / 3.0) * np.exp(-root))


def _squared(a: FloatArray, b: FloatArray) -> FloatArray:
    """Squared distances between the rows of a (n, d) and b (m, d), shape (n, m)."""
    cross = (a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2.0 * a @ b.T
    return np.asarray(np.maximum(cross, 0.0))


@dataclass(frozen=True, slots=True)
class Prior:
    """Log-normal priors of the hyperparameters: a median and a standard deviation of the logarithm.

    The defaults suit logarithms of throughput ratios: settings move it by tens of percent, a
    restart by a few percent, and a coordinate's effect bends over about half its range.
    """

    lengthscale: float = 0.5
    lengthscale_sd: float = 0.8
    signal: float = 0.2
    signal_sd: float = 0.8
    noise: float = 0.035
    noise_sd: float = 0.5
    constant: float = 0.5


@dataclass(frozen=True, slots=True)
class GaussianProcess:
    """A fitted process; `predict` gives the noise-free value.

    Attributes:
        x: Encoded points, shape (n, d).
        features: Shape (n, q); q may be 0.
        vagueness: v, shape (n,).
        centre: Subtracted from the observations before anything else.
        lengthscales: Shape (d,).
        signal, noise: Standard deviations, in the unit of y.
        evidence: Log density of the data and the hyperparameters at their best.
    """

    x: FloatArray
    features: FloatArray
    vagueness: FloatArray
    centred: FloatArray
    centre: float
    lengthscales: FloatArray
    signal: float
    noise: float
    constant: float
    evidence: float
    _chol: FloatArray
    _weights: FloatArray

    @classmethod
    def fit(
        cls,
        x: FloatArray,
        y: FloatArray,
        *,
        prior: Prior | None = None,
        features: FloatArray | None = None,
        vagueness: FloatArray | None = None,
    ) -> GaussianProcess:
        """The maximum a posteriori fit; equal rows of x are repeats and are all used."""
        prior = prior or Prior()
        if len(x) != len(y) or not len(y):
            raise ValueError(f"{len(x)} points and {len(y)} observations")
        if features is None:
            features = np.zeros((len(x), 0))
        if vagueness is None:
            vagueness = np.ones(len(x))
        fixed = prior.constant**2 + features @ features.T
        centre = float(np.median(y))
        z = y - centre
        d = x.shape[1]
        per_axis = ((x[:, None, :] - x[None, :, :]) ** 2).reshape(len(x) ** 2, d)
        medians = np.log([*[prior.lengthscale] * d, prior.signal, prior.noise])
        spreads = np.array([*[prior.lengthscale_sd] * d, prior.signal_sd, prior.noise_sd])
        gram_shape, own = (len(y), len(y)), np.diag(vagueness)
        jitter = _JITTER * np.eye(len(y))

        def loss(theta: FloatArray) -> tuple[float, FloatArray]:
            scales, signal, noise = np.exp(theta[:d]), np.exp(theta[d]), np.exp(theta[d + 1])
            root = np.sqrt(5.0 * (per_axis @ scales**-2)).reshape(gram_shape)
            decay = np.exp(-root)
            signal_part = signal**2 * (1.0 + root + root * root / 3.0) * decay
            gram = fixed + signal_part + noise**2 * own + jitter
            chol = linalg.cholesky(gram, lower=True, check_finite=False)
            half, _ = linalg.lapack.dpotri(chol, lower=True)
            inverse = np.tril(half) + np.tril(half, -1).T
            alpha = inverse @ z
            pull = inverse - np.outer(alpha, alpha)
            gradient = np.empty_like(theta)
            # d matern52 / d log l_i = 5/3 (1 + root) exp(-root) * per_axis_i / l_i^2
            slope = pull * (signal**2 * (5.0 / 3.0) * (1.0 + root) * decay)
            gradient[:d] = 0.5 * (slope.ravel() @ per_axis) / scales**2
            gradient[d] = (pull * signal_part).sum()
            gradient[d + 1] = np.diag(pull) @ vagueness * noise**2
            pulls = (theta - medians) / spreads
            value = 0.5 * z @ alpha + np.log(np.diag(chol)).sum() + 0.5 * pulls @ pulls
            return float(value), gradient + pulls / spreads

        bounds = [(m - 4.0 * s, m + 4.0 * s) for m, s in zip(medians, spreads, strict=True)]
        best = optimize.minimize(
            loss, medians, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 60}
        )
        theta = np.asarray(best.x)
        return cls._at(
            x, features, vagueness, z, centre, np.exp(theta[:d]),
            float(np.exp(theta[d])), float(np.exp(theta[d + 1])),
            prior.constant, -float(best.fun),
        )  # fmt: skip

    @classmethod
    def _at(
        cls, x: FloatArray, features: FloatArray, vagueness: FloatArray, z: FloatArray,
        centre: float, lengthscales: FloatArray, signal: float, noise: float, constant: float,
        evidence: float,
    ) -> GaussianProcess:  # fmt: skip
        scaled = x / lengthscales
        gram = constant**2 + signal**2 * matern52(_squared(scaled, scaled))
        gram += features @ features.T
        gram[np.diag_indices_from(gram)] += noise**2 * vagueness + _JITTER
        chol = linalg.cholesky(gram, lower=True, check_finite=False)
        weights = linalg.cho_solve((chol, True), z, check_finite=False)
        return cls(
            x, features, vagueness, z, centre, lengthscales, signal, noise, constant, evidence,
            chol, np.asarray(weights),
        )  # fmt: skip

    def predict(
        self, x: FloatArray, features: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Posterior mean and standard deviation at x (m, d), each of shape (m,)."""
        features = np.zeros((len(x), self.features.shape[1])) if features is None else features
        means, deviations = [], []
        for start in range(0, len(x), _PREDICT_ROWS):
            rows = slice(start, start + _PREDICT_ROWS)
            cross, half = self._towards(x[rows], features[rows])
            own = self.constant**2 + self.signal**2 + (features[rows] ** 2).sum(1)
            means.append(cross @ self._weights + self.centre)
            deviations.append(np.sqrt(np.maximum(own - (half * half).sum(0), 1e-12)))
        return np.concatenate(means), np.concatenate(deviations)

    def covariance(self, x: FloatArray, features: FloatArray | None = None) -> FloatArray:
        """Posterior covariance of the noise-free values at x (m, d), shape (m, m)."""
        features = np.zeros((len(x), self.features.shape[1])) if features is None else features
        _, half = self._towards(x, features)
        scaled = x / self.lengthscales
        own = self.constant**2 + self.signal**2 * matern52(_squared(scaled, scaled))
        return np.asarray(own + features @ features.T - half.T @ half)

    def _towards(self, x: FloatArray, features: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Covariance of x with the data, shape (m, n), and L^-1 times its transpose."""
        near = matern52(_squared(x / self.lengthscales, self.x / self.lengthscales))
        cross = self.constant**2 + self.signal**2 * near + features @ self.features.T
        half = linalg.solve_triangular(self._chol, cross.T, lower=True, check_finite=False)
        return np.asarray(cross), np.asarray(half)

    def leave_one_out(self) -> FloatArray:
        """What each observation misses the prediction from all others by, shape (n,).

        Source: Rasmussen and Williams (2006), equation 5.12.
        """
        identity = np.eye(len(self.x))
        inverse = linalg.cho_solve((self._chol, True), identity, check_finite=False)
        return np.asarray(self._weights / np.diag(inverse))

    def believing(self, x: FloatArray, features: FloatArray | None = None) -> GaussianProcess:
        """The process after measuring its own mean at x: the mean stays, the deviation shrinks.

        Source: Ginsbourger, Le Riche and Carraro (2010), Kriging is well-suited to parallelize
        optimization: the kriging believer, for points whose measurement is under way.
        """
        if not len(x):
            return self
        features = np.zeros((len(x), self.features.shape[1])) if features is None else features
        fantasies, _ = self.predict(x, features)
        return self._at(
            np.vstack([self.x, x]), np.vstack([self.features, features]),
            np.concatenate([self.vagueness, np.ones(len(x))]),
            np.concatenate([self.centred, fantasies - self.centre]),
            self.centre, self.lengthscales, self.signal, self.noise, self.constant, self.evidence,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class FeasibilityModel:
    """Probability that a point's server starts and serves: a process classified by Laplace's rule.

    The kernel is a Matern plus a linear one: what runs out (memory, a kernel's width) mostly does
    so beyond a wall across one direction, which smooth bumps alone would round off.  How steep both
    are is chosen from a few settings by the evidence, since a study has a handful of crashes.
    """

    x: FloatArray
    evidence: float
    _kernel: _FeasibilityKernel
    _gradient: FloatArray
    _root: FloatArray
    _chol: FloatArray

    @classmethod
    def fit(cls, x: FloatArray, feasible: npt.NDArray[np.bool_]) -> FeasibilityModel:
        """Fit to x (n, d) and feasible (n,)."""
        kernels = [_FeasibilityKernel(bumps, slope) for bumps in _BUMPS for slope in _SLOPES]
        fits = [cls._at(kernel, x, feasible) for kernel in kernels]
        return max(fits, key=lambda fit: fit.evidence)

    @classmethod
    def _at(
        cls, kernel: _FeasibilityKernel, x: FloatArray, feasible: npt.NDArray[np.bool_]
    ) -> FeasibilityModel:
        gram = kernel(x, x)
        target = np.where(feasible, 1.0, 0.0)
        eye = np.eye(len(x))
        latent, a = np.zeros(len(x)), np.zeros(len(x))
        for _ in range(_NEWTON_STEPS):
            probability = special.expit(latent + _BIAS)
            weight = probability * (1.0 - probability)
            root = np.sqrt(weight)
            chol = linalg.cholesky(eye + root[:, None] * gram * root[None, :], lower=True)
            b = weight * latent + target - probability
            a = b - root * linalg.cho_solve((chol, True), root * (gram @ b))
            moved = gram @ a
            done = float(np.abs(moved - latent).max()) < 1e-6
            latent = moved
            if done:
                break
        probability = special.expit(latent + _BIAS)
        root = np.sqrt(probability * (1.0 - probability))
        chol = linalg.cholesky(eye + root[:, None] * gram * root[None, :], lower=True)
        likelihood = special.log_expit(np.where(feasible, 1.0, -1.0) * (latent + _BIAS)).sum()
        evidence = float(likelihood - 0.5 * a @ latent - np.log(np.diag(chol)).sum())
        return cls(x, evidence, kernel, target - probability, root, np.asarray(chol))

    def log_probability(self, x: FloatArray) -> FloatArray:
        """Log of the probability of being feasible at x (m, d), shape (m,).

        The logistic is averaged over the latent's variance by MacKay's approximation (Bishop,
        Pattern Recognition and Machine Learning, equation 4.153).
        """
        gram = self._kernel(x, self.x)
        half = linalg.solve_triangular(self._chol, (gram * self._root).T, lower=True)
        variance = np.maximum(self._kernel.variance(x) - (half * half).sum(0), 0.0)
        latent = gram @ self._gradient + _BIAS
        return np.asarray(special.log_expit(latent / np.sqrt(1.0 + np.pi * variance / 8.0)))


_BIAS = 2.0  # logit of running where nothing is known
_BUMPS = (1.5, 4.0)  # logits that a bump may reach, standard deviation
_SLOPES = (1.0, 10.0, 50.0, 250.0)  # logits along one whole axis, standard deviation
_BUMP_LENGTH = 0.5
_NEWTON_STEPS = 50


@dataclass(frozen=True, slots=True)
class _FeasibilityKernel:
    bumps: float
    slope: float

    def __call__(self, a: FloatArray, b: FloatArray) -> FloatArray:
        smooth = matern52(_squared(a / _BUMP_LENGTH, b / _BUMP_LENGTH))
        return np.asarray(self.bumps**2 * smooth + self.slope**2 * ((a - 0.5) @ (b - 0.5).T))

    def variance(self, a: FloatArray) -> FloatArray:
        return np.asarray(self.bumps**2 + self.slope**2 * ((a - 0.5) ** 2).sum(1))
