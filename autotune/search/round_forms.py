"""How long a round takes, when nobody has said where its steps are.

    t = sum of c_i * cost_i(tokens, streams, context, budget, topk) + c_s * [tokens > edge]    ms

with all c not negative.  Kernels work in whole tiles, so tokens are rounded up to some multiple;
graphs are captured for certain sizes, so a round takes longer at once beyond some edge.  Tile and
edge are the engine's secret: each pair is a form of its own, without a step too.  A form's weight
is its share of the marginal likelihood (Hoeting, Madigan, Raftery and Volinsky 1999, Bayesian model
averaging: a tutorial), so that a step has to earn its place and is not lost where it did.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import linalg, optimize

from autotune.parameter import FloatArray

__all__ = ["Cells", "RoundForm", "RoundForms", "round_forms"]

_SHARED_SD = 0.025  # of log throughput, common to the buckets of one start
_BUCKET_SD = 0.03  # of log throughput, of one bucket
_COSTS = 11
_TILES = (1, 16, 64, 128)
_EDGES = 64.0 * 2.0 ** (np.arange(67) / 12)  # one budget more is a twelfth octave or less
_NO_EDGE = float("inf")
_SMOOTH = 0.5  # probability of no step, and of no tiles, before the data
_STEP_SHARE = 0.2  # of a round that a step takes; every other cost may be all of it
_TEMPER = 2.25  # all forms are simpler than the truth: their evidence counts less by so much
_NEGLIGIBLE = 0.02  # weight, next to the largest, below which a form is left out
_MOST_FORMS = 8
_NNLS_MOST = 50  # iterations for each coefficient


@dataclass(frozen=True, slots=True)
class Cells:
    """Where rounds are looked at: columns (m, 1) of points, rows (1, buckets) of the workload."""

    budget: FloatArray
    topk: FloatArray
    window: FloatArray
    context: FloatArray
    streams: FloatArray

    def tokens(self, tile: int) -> FloatArray:
        """Tokens that one verify pass computes, shape (m, buckets)."""
        return np.asarray(np.ceil(self.streams * (self.budget + 1.0) / tile) * tile)

    def costs(self, tile: int) -> FloatArray:
        """What a round spends time on, before coefficients; shape (m, buckets, terms)."""
        tokens, streams, context = self.tokens(tile), self.streams, self.context
        costs = np.empty((*tokens.shape, _COSTS))
        costs[..., 0] = 1.0  # weights, launches, reductions
        costs[..., 1] = 1.0 - np.exp(-tokens / 100.0)  # experts touched by few tokens
        costs[..., 2] = 1.0 - np.exp(-tokens / 400.0)  # experts touched by many
        costs[..., 3] = tokens  # computing or links, from the first token on
        costs[..., 4] = np.maximum(0.0, tokens - 256.0)  # and past the knee of the roofline
        costs[..., 5] = np.maximum(0.0, tokens - 1024.0)
        costs[..., 6] = streams * context  # the target's cache
        costs[..., 7] = streams * np.minimum(self.window, context)  # the drafter's cache
        costs[..., 8] = self.budget * np.sqrt(streams)  # the tree on the host
        costs[..., 9] = self.budget
        costs[..., 10] = self.topk
        return costs

    def tiled(self, tiles: Iterable[int]) -> dict[int, FloatArray]:
        """The costs for each tile."""
        return {tile: self.costs(tile) for tile in tiles}


_NOMINAL = (np.array([[32.0]]), np.array([[8.0]]), np.array([[2048.0]]))


@dataclass(frozen=True, slots=True)
class RoundForm:
    """One fitted form.

    Attributes:
        weight: Its probability among the forms.
        coefficients: Of the costs, then of the step; ms.
        root: R with R R' their posterior covariance.
    """

    weight: float
    tile: int
    edge: float
    coefficients: FloatArray
    root: FloatArray

    @property
    def step_ms(self) -> float:
        """By how much a round is longer beyond the edge."""
        return 0.0 if self.edge == _NO_EDGE else float(self.coefficients[_COSTS])

    def times(self, cells: Cells, costs: FloatArray, factors: FloatArray) -> FloatArray:
        """The costs of its tile and its step, times factors (terms, ...); (m, buckets, ...)."""
        result = costs @ factors[:_COSTS]
        if self.edge == _NO_EDGE:
            return np.asarray(result)
        beyond = cells.tokens(self.tile) > self.edge
        return np.asarray(result + np.multiply.outer(beyond, factors[_COSTS]))


@dataclass(frozen=True, slots=True)
class RoundForms:
    """The likely forms, heaviest first, weights summing to 1."""

    forms: tuple[RoundForm, ...]

    def log_ms(self, cells: Cells) -> FloatArray:
        """Natural logarithm of the duration: the mean over the forms, shape (m, buckets)."""
        return np.asarray(self._each(cells, cells.tiled(self._tiles)) @ self._weights)

    def doubts(self, cells: Cells) -> FloatArray:
        """What is not known of it: deviations along independent directions of variance 1.

        Of each form its constants, linear near the fit, and how far it is from the mean of all;
        shape (m, buckets, q).
        """
        costs = cells.tiled(self._tiles)
        logs = self._each(cells, costs)
        apart = logs - (logs @ self._weights)[..., None]
        parts = []
        for place, form in enumerate(self.forms):
            slopes = form.times(cells, costs[form.tile], form.root)
            slopes /= np.exp(logs[..., place, None])
            both = np.concatenate([slopes, apart[..., place, None]], axis=-1)
            parts.append(np.sqrt(form.weight) * both)
        return np.concatenate(parts, axis=-1)

    @property
    def _tiles(self) -> set[int]:
        return {form.tile for form in self.forms}

    @property
    def _weights(self) -> FloatArray:
        return np.array([form.weight for form in self.forms])

    def _each(self, cells: Cells, costs: Mapping[int, FloatArray]) -> FloatArray:
        """ln ms by each form, shape (m, buckets, forms)."""
        durations = [form.times(cells, costs[form.tile], form.coefficients) for form in self.forms]
        return np.asarray(np.log(np.maximum(np.stack(durations, axis=-1), 1e-3)))


def _beyond(cells: Cells, tile: int, edges: FloatArray) -> FloatArray:
    beyond = cells.tokens(tile)[..., None] > edges
    return beyond.astype(np.float64)


def round_forms(
    cells: Cells, round_ms: FloatArray, known: npt.NDArray[np.bool_], trust: FloatArray
) -> RoundForms:
    """Every form fitted, the unlikely ones left out.

    Args:
        round_ms: Measured durations, shape (n, buckets).
        known: Where they are.
        trust: What residuals of a trial are multiplied by, shape (n,).
    """
    forms = list(_fits(cells, round_ms, known, trust))
    evidence = np.array([evidence for evidence, _ in forms]) / _TEMPER
    share = np.exp(evidence - evidence.max()) * [_prior(form) for _, form in forms]
    order = np.argsort(-share, kind="stable")[:_MOST_FORMS]
    order = order[share[order] >= _NEGLIGIBLE * share.max()]
    total = share[order].sum()
    kept = tuple(
        RoundForm(float(share[i] / total), form.tile, form.edge, form.coefficients, form.root)
        for i, form in ((i, forms[i][1]) for i in order)
    )
    return RoundForms(kept)


def _prior(form: RoundForm) -> float:
    tile = _SMOOTH if form.tile == _TILES[0] else (1 - _SMOOTH) / max(1, len(_TILES) - 1)
    return tile * (_SMOOTH if form.edge == _NO_EDGE else (1 - _SMOOTH) / len(_EDGES))


def _fits(
    cells: Cells, round_ms: FloatArray, known: npt.NDArray[np.bool_], trust: FloatArray
) -> Iterator[tuple[float, RoundForm]]:
    """Every form with the logarithm of its marginal likelihood; weights are left open.

    Coefficients have independent normal priors about as wide as one round; the noise variance has
    an inverse gamma prior as strong as one start, since the forms' own errors add to it.
    """
    rows = [row for row in range(len(known)) if known[row].any()]
    white = [trust[row] * _whitening(int(known[row].sum())) for row in rows]
    target = np.concatenate([w.sum(1) for w in white])
    nominal = Cells(*_NOMINAL, cells.context, cells.streams)
    level = float(round_ms[known].mean())
    strength = float(known.shape[1])
    for tile in _TILES:
        costs = cells.costs(tile)
        # of a term's largest use: what no trial has shown yet is as unknown as at a nominal point
        most = np.maximum(costs[known].mean(0), nominal.costs(tile).mean((0, 1)))
        size = np.where(most > 0, most, level) / level
        size = np.concatenate([size, np.full(len(_EDGES), 1 / (_STEP_SHARE * level))])
        terms = np.concatenate([costs, _beyond(cells, tile, _EDGES)], axis=-1) / size
        design = np.vstack(
            [w @ (terms[r, known[r]] / round_ms[r, known[r], None])
             for r, w in zip(rows, white, strict=True)]
        )  # fmt: skip
        gram, pull = design.T @ design, design.T @ target
        for place in (None, *range(len(_EDGES))):
            used = np.array([*range(_COSTS), *([] if place is None else [_COSTS + place])])
            precision = gram[np.ix_(used, used)] + np.eye(len(used))
            lower = np.linalg.cholesky(precision)
            half = linalg.solve_triangular(lower, pull[used], lower=True, check_finite=False)
            try:
                scaled, missed = optimize.nnls(lower.T, half, maxiter=_NNLS_MOST * len(used))
            except RuntimeError:  # it went round in circles: no cost below none, if not the best
                free = linalg.solve_triangular(lower.T, half, check_finite=False)
                scaled = np.maximum(free, 0.0)
                missed = np.float64(np.linalg.norm(lower.T @ scaled - half))
            lost = float(target @ target - half @ half + missed**2)
            evidence = -0.5 * (strength + len(target)) * np.log(strength + lost)
            evidence -= float(np.log(np.diag(lower)).sum())
            root = linalg.solve_triangular(lower.T, np.eye(len(used)), check_finite=False)
            yield (
                float(evidence),
                RoundForm(
                    1.0,
                    tile,
                    _NO_EDGE if place is None else float(_EDGES[place]),
                    scaled / size[used],
                    root / size[used, None],
                ),
            )


def _whitening(size: int) -> FloatArray:
    """Matrix that makes the noise of `size` buckets of one start white, shape (size, size).

    The noise has covariance bucket^2 I + shared^2 11', whose inverse root is the rank-one change
    below: what all buckets share is told apart from what separates them.
    """
    along = 1.0 / np.sqrt(_BUCKET_SD**2 + size * _SHARED_SD**2)
    across = 1.0 / _BUCKET_SD
    return np.asarray(across * np.eye(size) + (along - across) / size)
