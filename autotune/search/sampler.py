"""The sampler behind `sampler = "auto"`.

`GridGaussianProcessSampler` proposes valid effective points only.  What it proposes is a function
of the seed, the trial's number and the trials in the storage: a study that was stopped and taken
up again goes on as if it had not been.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection

from autotune.parameter import FloatArray, ParameterValue, Values
from autotune.search.acquisition import knowledge_gradient
from autotune.search.candidates import Candidates, neighbours
from autotune.search.feasible import log_feasible
from autotune.search.history import History, Outcome
from autotune.search.start import axis_design
from autotune.search.surrogate import Aggregate, Belief, believe
from autotune.space import SearchSpace
from autotune.workload import Workload

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial

__all__ = ["GridGaussianProcessSampler"]

_FIXED = "fixed_params"
_GIVEN_UP = 2  # failures without a verdict after which a point is not proposed again
_CLIMBED_FROM = 5  # best points whose neighbours join the candidates of a space too large to list
_LIKELY = 0.6  # least probability of running, as long as any point has it
_EQUAL = 1e-9  # acquisition values that differ by a smaller share are a tie, decided by the seed
_COMPARED = 400  # points whose joint belief is worked out
_HOPE = 1.0  # deviations above the mean by which they are chosen
BoolArray: TypeAlias = npt.NDArray[np.bool_]
IntArray: TypeAlias = npt.NDArray[np.int_]


class GridGaussianProcessSampler(BaseSampler):
    """Expected improvement over listed points, on a round model plus a Gaussian process.

    Args:
        space: What is tuned; its deployed point is where the search starts.
        seed: Decides ties and, in spaces too large to list, which points are considered.
        workload: Buckets of the score; with it, trials that carry `buckets` teach the round model.
        aggregate: How the score is made of the buckets.
        start: Different points that are tried before the models decide, whoever proposed them.
        limit: Most candidates considered at once.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        seed: int,
        workload: Workload | None = None,
        aggregate: Aggregate = Aggregate.ARITHMETIC,
        start: int = 6,
        limit: int = 6500,
    ) -> None:
        self.space = space
        self.seed = seed
        self.workload = workload
        self.aggregate = aggregate
        self._distributions = space.distributions()
        self._start = axis_design(space)
        self._least = start
        listed = space.enumerate(limit, seed=seed)
        self._complete = space.finite and len(listed) < limit
        self._ended: dict[int, Outcome] = {}
        self._listed = Candidates.of(space, [*listed, *self._start])

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """The whole space, always: it does not depend on what earlier trials had."""
        if set(trial.system_attrs.get(_FIXED, {})) >= set(self.space.names):
            return {}  # an enqueued trial brings its parameters along
        return dict(self._distributions)

    def sample_relative(
        self,
        study: Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """The next point; parameters that an enqueued trial fixes are respected."""
        if not search_space:
            return {}
        history = History.of(
            study.get_trials(deepcopy=False),
            self.space,
            maximize=study.direction is StudyDirection.MAXIMIZE,
            without=trial.number,
            known=self._ended,
        )
        fixed = trial.system_attrs.get(_FIXED, {})
        return dict(self.propose(history, number=trial.number, fixed=fixed))

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """A parameter that is not one of the space's: drawn at random, by seed and trial."""
        stream = np.random.SeedSequence(
            [self.seed, trial.number, zlib.crc32(param_name.encode())]
        ).generate_state(1)
        return RandomSampler(seed=int(stream[0])).sample_independent(
            study, trial, param_name, param_distribution
        )

    def propose(
        self, history: History, *, number: int, fixed: Values | None = None
    ) -> Mapping[str, ParameterValue]:
        """The point that trial `number` should measure.

        While few points are known: the next of the axis design.  Then the largest expected
        improvement times the probability of running.  A point that was measured before competes
        with what a repeat would teach.  One that runs now, that did not run before, that was
        pruned, or that failed twice for no known reason does not compete.
        """
        fixed = fixed or {}
        rng = np.random.default_rng([self.seed, number])
        known = {outcome.key for outcome in history.outcomes} | set(history.pending)
        given_up = {key for key, count in history.failures.items() if count >= _GIVEN_UP}
        given_up |= {outcome.key for outcome in history.outcomes if not outcome.feasible}
        # What was pruned could not reach the best of then, and the best only rises.  The models
        # take no score from it, so they would ask for it for ever.
        given_up |= {outcome.key for outcome in history.outcomes} - {
            outcome.key for outcome in history.scored
        }
        for point in self._start if len(known) < self._least else ():
            key = self.space.key(point)
            if key in known | given_up or not _agrees(point, fixed):
                continue
            if not self._hopeless(history, point):
                return point
        candidates = self._candidates(history)
        belief = self._believe(history, candidates)
        if belief is not None:
            candidates = belief.candidates
        allowed = np.array(
            [
                key not in history.pending and key not in given_up and _agrees(point, fixed)
                for key, point in zip(candidates.rows, candidates.points, strict=True)
            ]
        )
        if not allowed.any():  # everything runs already, or what is fixed is not valid
            agreeing = [p for p in self._candidates(history).points if _agrees(p, fixed)]
            return agreeing[int(rng.integers(len(agreeing)))] if agreeing else self.space.deployed()
        if belief is None:
            return candidates.points[int(rng.choice(np.flatnonzero(allowed)))]
        allowed &= self._likely(belief, allowed)
        rows = self._promising(belief, allowed)
        gain = self._gains(belief, rows)[0] * np.exp(belief.log_feasible[rows])
        gain = np.where(allowed[rows], gain, -np.inf)
        ties = rows[gain >= gain.max() * (1 - _EQUAL)]
        return candidates.points[int(rng.choice(ties))]

    def worth(self, belief: Belief) -> tuple[IntArray, FloatArray, FloatArray]:
        """Rows in question, what a trial at each is expected to raise the best mean by, and the
        posterior covariance between them."""
        allowed = np.ones(len(belief.candidates.points), dtype=bool)
        rows = self._promising(belief, self._likely(belief, allowed))
        gain, covariance = self._gains(belief, rows)
        return rows, gain * np.exp(belief.log_feasible[rows]), covariance

    def _gains(self, belief: Belief, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        x = belief.candidates.encoded[rows]
        parts = [
            (part.process.covariance(x, part.features[rows]), part.process.noise)
            for part in belief.parts
        ]
        tested = np.isin(rows, belief.tested)
        gain = knowledge_gradient(belief.mean[rows], parts, tested=tested, seed=self.seed)
        together = np.sum([covariance for covariance, _ in parts], axis=0)
        return np.maximum(gain, 0.0), np.asarray(together)

    @staticmethod
    def _likely(belief: Belief, allowed: BoolArray) -> BoolArray:
        """No promise is large enough for a start that most likely crashes."""
        likely = belief.log_feasible >= math.log(_LIKELY)
        return likely if (likely & allowed).any() else np.ones_like(likely)

    @staticmethod
    def _promising(belief: Belief, allowed: BoolArray) -> IntArray:
        """Rows worth the whole covariance: the most hopeful allowed ones and all tested ones."""
        hope = np.where(allowed, belief.mean + _HOPE * belief.deviation, -np.inf)
        most = np.argsort(-hope, kind="stable")[: min(_COMPARED, int(allowed.sum()))]
        return np.union1d(most, np.array(belief.tested, dtype=np.int_))

    def belief(self, history: History) -> Belief | None:
        """What the models say of every candidate; for finalists, reports and stop rules."""
        return self._believe(history, self._candidates(history))

    def named(self, history: History) -> Values | None:
        """The scored point that is believed to be the best; None without any."""
        belief = self.belief(history)
        if belief is None:
            return None
        return belief.candidates.points[max(belief.tested, key=lambda row: belief.mean[row])]

    def _believe(self, history: History, candidates: Candidates) -> Belief | None:
        return believe(
            self.space,
            history,
            candidates,
            workload=self.workload,
            aggregate=self.aggregate,
        )

    def _hopeless(self, history: History, point: Values) -> bool:
        """Whether a start point most likely crashes, given what crashed already."""
        one = Candidates.of(self.space, [point])
        known = log_feasible(self.space, history, one, workload=self.workload)
        return bool(known[0] < math.log(_LIKELY))

    def _candidates(self, history: History) -> Candidates:
        """The listed points, all that the history names, and in large spaces their neighbours."""
        more: dict[str, Values] = {outcome.key: outcome.values for outcome in history.outcomes}
        more.update(history.pending)
        if not self._complete:
            best: Sequence[Values] = [
                outcome.values
                for outcome in sorted(history.scored, key=lambda o: -(o.score or 0.0))
            ][:_CLIMBED_FROM]
            for point in best:
                more.update((self.space.key(one), one) for one in neighbours(self.space, point))
        return self._listed.joined(self.space, more)


def _agrees(point: Values, fixed: Values) -> bool:
    return all(point.get(name) == value for name, value in fixed.items())
