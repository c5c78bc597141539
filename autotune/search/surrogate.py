"""What is believed about every candidate, given the trials so far.

The told score is the logarithm of a ratio to the reference.  Its model is

    ln score = physics(point) + process(point) + noise

where `physics` is the fitted round model (zero where it cannot be fitted) and `process` a Gaussian
process with an unknown constant.  Servers that did not run say nothing about the score; they
feed a model of feasibility of their own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from autotune.parameter import FloatArray
from autotune.search.acquisition import informed_deviation
from autotune.search.breakage import BreakageModel
from autotune.search.candidates import Candidates
from autotune.search.history import History
from autotune.search.model import FeasibilityModel, GaussianProcess, Prior
from autotune.search.physics import DraftVerifyModel, RoundData, round_shape
from autotune.space import SearchSpace
from autotune.workload import Workload

__all__ = ["Aggregate", "Belief", "Scale", "believe", "log_feasible"]

_FLOOR = 1.5  # logarithms below the best are cut here: how bad a very bad point is tells nothing
_WORSE = 1.2  # the round model is dropped when it predicts left-out scores so much worse
_COMPARABLE = 6  # with fewer scores, what one misses says little
_PHYSICS_TRIALS = 2  # the fewest trials with buckets that the round model is fitted to
_PLAIN = Prior()
_RESIDUAL = Prior(signal=0.06, constant=0.2)
_GATE = Prior(signal=0.02, constant=0.2, noise=0.015, noise_sd=0.8)
_ACCEPT = Prior(signal=0.05, constant=0.1, noise=0.005)


class Aggregate(StrEnum):
    """How a score is made of the buckets' throughputs."""

    ARITHMETIC = "arithmetic"
    GEOMETRIC = "geometric"


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps told scores to the unit of the models and back.

    Positive scores are modelled by their logarithm.  Others are shifted and divided so that their
    spread is what the priors expect of logarithms of ratios.
    """

    logarithmic: bool
    shift: float
    factor: float

    @classmethod
    def of(cls, scores: Sequence[float]) -> Scale:
        if all(score > 0 for score in scores):
            return cls(True, 0.0, 1.0)
        spread = float(np.std(scores))
        return cls(False, float(np.median(scores)), 0.2 / spread if spread > 0 else 1.0)

    def forward(self, scores: Sequence[float]) -> FloatArray:
        values = np.asarray(scores, dtype=np.float64)
        scaled = np.log(values) if self.logarithmic else (values - self.shift) * self.factor
        return np.asarray(np.maximum(scaled, scaled.max() - _FLOOR))


@dataclass(frozen=True, slots=True)
class Belief:
    """The posterior over one set of candidates.

    Attributes:
        mean, deviation: Of the noise-free score in the unit of `Scale`, shape (m,).
        informed: How far one more trial would move the mean, shape (m,).
        log_feasible: Log of the probability that the server runs, shape (m,).
        noise: Standard deviation of one trial's score.
        best: Largest posterior mean among the points that were scored.
        tested: Rows of points with a score.
        physics: Whether the round model is the mean.
    """

    scale: Scale
    mean: FloatArray
    deviation: FloatArray
    informed: FloatArray
    log_feasible: FloatArray
    noise: float
    best: float
    tested: tuple[int, ...]
    physics: bool


def believe(
    space: SearchSpace,
    history: History,
    candidates: Candidates,
    *,
    workload: Workload | None = None,
    aggregate: Aggregate = Aggregate.ARITHMETIC,
) -> Belief | None:
    """Fit all models to `history` and predict `candidates`; None without any score.

    Args:
        candidates: Must contain every scored point of the history.
        workload: Buckets and weights of the score; without it the round model is not used.
    """
    scored = history.scored
    if not scored:
        return None
    scores = [outcome.score for outcome in scored if outcome.score is not None]
    scale = Scale.of(scores)
    rows = [candidates.rows[outcome.key] for outcome in scored]
    plain = [_Part(scale.forward(scores), np.zeros(len(candidates.points)), _PLAIN)]
    parts, processes = plain, _fitted(plain, candidates, rows)
    if workload is not None and scale.logarithmic:
        physical = _physical_parts(space, history, candidates, rows, workload, aggregate)
        fits = _fitted(physical, candidates, rows)
        few = len(rows) < _COMPARABLE
        if physical and (few or _missed(fits) <= _WORSE * _missed(processes)):
            parts, processes = physical, fits
    waiting = [candidates.rows[key] for key in history.pending if key in candidates.rows]
    mean = np.zeros(len(candidates.points))
    variance, informed, noise = np.zeros_like(mean), np.zeros_like(mean), 0.0
    for part, process in zip(parts, processes, strict=True):
        conditioned = process.believing(candidates.encoded[waiting])
        expected, deviation = conditioned.predict(candidates.encoded)
        mean += expected + part.trend
        variance += deviation**2
        informed += informed_deviation(deviation, process.noise) ** 2
        noise += process.noise**2
    tested = tuple(sorted(set(rows)))
    return Belief(
        scale=scale,
        mean=mean,
        deviation=np.sqrt(variance),
        informed=np.sqrt(informed),
        log_feasible=log_feasible(space, history, candidates),
        noise=math.sqrt(noise),
        best=float(mean[list(tested)].max()),
        tested=tested,
        physics=parts is not plain,
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """A summand of the log score with a process of its own.

    Attributes:
        y: Observations, shape (n,).
        trend: Mean before the data, at every candidate, shape (m,).
    """

    y: FloatArray
    trend: FloatArray
    prior: Prior


def _fitted(
    parts: Sequence[_Part], candidates: Candidates, rows: Sequence[int]
) -> list[GaussianProcess]:
    x = candidates.encoded[list(rows)]
    return [
        GaussianProcess.fit(x, part.y - part.trend[list(rows)], prior=part.prior) for part in parts
    ]


def _missed(processes: Sequence[GaussianProcess]) -> float:
    """Root mean square of what the sum of the processes misses each left-out score by."""
    together = sum((process.leave_one_out() for process in processes), np.zeros(1))
    return float(np.sqrt(np.mean(together**2)))


def _physical_parts(
    space: SearchSpace,
    history: History,
    candidates: Candidates,
    rows: Sequence[int],
    workload: Workload,
    aggregate: Aggregate,
) -> list[_Part]:
    """The log score as accept length, the rest of throughput, and the gate; each round its physics.

    Empty where the round model cannot be fitted.  The accept length is counted, not timed: it
    repeats within one percent where throughput has the noise of the whole start.  So what it
    contributes is learned from few trials, and only the duration of a round, which is smoother,
    carries the noise.  The gate of the coding answers knows no throughput noise either.
    """
    data = _round_data(space, history, workload)
    physics = DraftVerifyModel.fit(workload, data) if data is not None else None
    if physics is None or candidates.shape is None:
        return []
    scored = history.scored
    speeds = _host_speeds(history, space.key(space.deployed()))
    y = np.log([outcome.score for outcome in scored if outcome.score is not None])
    buckets = physics.workload.buckets
    throughput = physics.throughput(candidates.shape)
    accept = np.log(physics.accept_length(candidates.shape))
    shares = np.array([bucket.weight for bucket in buckets])
    if aggregate is Aggregate.ARITHMETIC:
        shares = shares * np.exp(np.log(throughput[list(rows)]).mean(0))
    shares = shares / shares.sum()
    expected = _log_score(throughput, physics.workload, aggregate)
    tokens = accept[list(rows)].copy()
    speed = throughput[list(rows)].copy()
    for row, outcome in enumerate(scored):
        for column, bucket in enumerate(buckets):
            figures = outcome.buckets.get(bucket.key)
            if figures is not None:
                speed[row, column] = figures.output_tok_per_s / speeds.get(outcome.host, 1.0)
                if figures.accept_length is not None:
                    tokens[row, column] = math.log(max(1.0, figures.accept_length))
    brought = tokens @ shares
    timed = _log_score(speed, physics.workload, aggregate)
    gate = BreakageModel.fit(candidates.shape[np.array(rows)], y - timed - np.mean(y - timed))
    return [
        _Part(brought, accept @ shares, _ACCEPT),
        _Part(timed - brought, expected - accept @ shares, _RESIDUAL),
        _Part(y - timed, gate.log_gate(candidates.shape), _GATE),
    ]


def log_feasible(space: SearchSpace, history: History, candidates: Candidates) -> FloatArray:
    if all(outcome.feasible for outcome in history.outcomes):
        return np.zeros(len(candidates.points))
    x = np.array([space.encode(outcome.values) for outcome in history.outcomes])
    feasible = np.array([outcome.feasible for outcome in history.outcomes])
    return FeasibilityModel.fit(x, feasible).log_probability(candidates.encoded)


def _round_data(space: SearchSpace, history: History, workload: Workload) -> RoundData | None:
    measured = [outcome for outcome in history.outcomes if outcome.buckets]
    if len(measured) < _PHYSICS_TRIALS:
        return None
    shape = round_shape([outcome.values for outcome in measured])
    if shape is None:
        return None
    missing = math.nan
    throughput = np.full((len(measured), len(workload.buckets)), missing)
    accept = np.full_like(throughput, missing)
    for row, outcome in enumerate(measured):
        for column, bucket in enumerate(workload.buckets):
            figures = outcome.buckets.get(bucket.key)
            if figures is not None:
                throughput[row, column] = figures.output_tok_per_s
                if figures.accept_length is not None:
                    accept[row, column] = figures.accept_length
    speeds = _host_speeds(history, space.key(space.deployed()))
    throughput /= np.array([[speeds.get(outcome.host, 1.0)] for outcome in measured])
    return RoundData(shape, throughput, accept)


def _host_speeds(history: History, reference: str) -> Mapping[str, float]:
    """How fast each host runs the reference against the mean of all hosts; 1 where unknown."""
    logs: dict[str, list[FloatArray]] = defaultdict(list)
    full = max((len(outcome.buckets) for outcome in history.outcomes), default=0)
    for outcome in history.outcomes:
        if outcome.key == reference and outcome.buckets and len(outcome.buckets) == full:
            ordered = [outcome.buckets[key].output_tok_per_s for key in sorted(outcome.buckets)]
            logs[outcome.host].append(np.log(ordered))
    if len(logs) < 2:
        return {}
    means = {host: float(np.mean(values)) for host, values in logs.items()}
    middle = float(np.mean(list(means.values())))
    return {host: math.exp(mean - middle) for host, mean in means.items()}


def _log_score(throughput: FloatArray, workload: Workload, aggregate: Aggregate) -> FloatArray:
    weights = np.array([bucket.weight for bucket in workload.buckets])
    if aggregate is Aggregate.GEOMETRIC:
        return np.asarray(np.log(throughput) @ weights)
    return np.asarray(np.log(throughput @ weights))
