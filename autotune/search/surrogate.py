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
import numpy.typing as npt

from autotune.parameter import FloatArray
from autotune.search.breakage import BreakageModel
from autotune.search.candidates import Candidates
from autotune.search.feasible import log_feasible
from autotune.search.history import History
from autotune.search.model import GaussianProcess, Prior
from autotune.search.physics import DraftVerifyModel, RoundData, round_shape
from autotune.space import SearchSpace
from autotune.workload import Workload

__all__ = [
    "Aggregate",
    "Belief",
    "BelievedPart",
    "Scale",
    "believe",
]

_FLOOR = 1.5  # logarithms below the best are cut here: how bad a very bad point is tells nothing
_WORSE = 1.2  # the round model is dropped when it predicts left-out scores so much worse
_OUTCOMES = 300  # that the models are fitted to; a suggestion takes a second with so many
_COMPARABLE = 6  # with fewer scores, what one misses says little
_SHORTLIST = 600  # points that each ranking keeps in question
_PHYSICS_TRIALS = 2  # the fewest trials with buckets that the round model is fitted to
_DOUBT = 1.5  # the round's form is simpler than the truth: its constants are known less than fitted
_PLAIN = Prior()
_RESIDUAL = Prior(signal=0.06, constant=0.2)
_GATE = Prior(signal=0.02, constant=0.2, noise=0.015, noise_sd=0.8)
_ACCEPT = Prior(signal=0.05, constant=0.1, noise=0.005)


class Aggregate(StrEnum):
    """How a score is made of the buckets' throughputs."""

    ARITHMETIC = "arithmetic"
    GEOMETRIC = "geometric"
    OTHER = "other"
    """A plug-in's: the model of the rounds does not know it, scores are learned as they are."""

    @classmethod
    def called(cls, name: str) -> Aggregate:
        """Of a name in an objective."""
        return cls(name) if name in (cls.ARITHMETIC, cls.GEOMETRIC) else cls.OTHER


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
class BelievedPart:
    """One summand of the score after the data.

    Attributes:
        features: At every candidate, shape (m, q).
    """

    process: GaussianProcess
    features: FloatArray


@dataclass(frozen=True, slots=True)
class Belief:
    """The posterior over the candidates that are left in question.

    Attributes:
        candidates: All that were scored or wait, and those that any model likes.
        mean, deviation: Of the noise-free score in the unit of `Scale`, shape (m,).
        log_feasible: Log of the probability that the server runs, shape (m,).
        noise: Standard deviation of one trial's score.
        best: Largest posterior mean among the points that were scored.
        tested: Rows of points with a score.
        physics: Whether the round model is the mean.
        parts: What the score is the sum of.
    """

    candidates: Candidates
    scale: Scale
    mean: FloatArray
    deviation: FloatArray
    log_feasible: FloatArray
    noise: float
    best: float
    tested: tuple[int, ...]
    physics: bool
    parts: tuple[BelievedPart, ...]


def believe(
    space: SearchSpace,
    history: History,
    candidates: Candidates,
    *,
    workload: Workload | None = None,
    aggregate: Aggregate = Aggregate.ARITHMETIC,
    everything: bool = False,
) -> Belief | None:
    """Fit all models to `history` and predict `candidates`; None without any score.

    Args:
        candidates: Must contain every scored point of the history.
        workload: Buckets and weights of the score; without it the round model is not used.
        everything: Keep all candidates in question, also those that no model likes.
    """
    history = history.within(_OUTCOMES, reference=space.key(space.deployed()))
    scored = history.scored
    if not scored:
        return None
    scores = [outcome.score for outcome in scored if outcome.score is not None]
    scale = Scale.of(scores)
    rows = [candidates.rows[outcome.key] for outcome in scored]
    runs = log_feasible(space, history, candidates, workload=workload)
    vague = history.vagueness(scored)
    size = len(candidates.points)
    plain = [_Part(scale.forward(scores), np.zeros(size), np.zeros((size, 0)), _PLAIN)]
    parts, processes = plain, _fitted(plain, candidates, rows, vague)
    round_ = None
    if workload is not None and scale.logarithmic:
        round_ = _fitted_round(space, history, candidates, rows, workload, aggregate)
    if round_ is not None:
        # What is left to decide is decided among the points that either model likes.
        hope = processes[0].predict(candidates.encoded)
        likes = [round_.trend + runs, hope[0] + hope[1] + runs]
        kept = np.arange(size) if everything else _shortlist(history, candidates, likes)
        candidates, runs = candidates.some(kept), runs[kept]
        rows = [candidates.rows[outcome.key] for outcome in scored]
        plain = [_Part(part.y, part.trend[kept], part.features[kept], part.prior) for part in plain]
        parts = plain
        physical = _physical_parts(round_, candidates, rows)
        fits = _fitted(physical, candidates, rows, vague)
        few = len(rows) < _COMPARABLE
        if few or _missed(fits) <= _WORSE * _missed(processes):
            parts, processes = physical, fits
    waiting = [candidates.rows[key] for key in history.pending if key in candidates.rows]
    mean = np.zeros(len(candidates.points))
    variance, noise = np.zeros_like(mean), 0.0
    believed = []
    for part, process in zip(parts, processes, strict=True):
        conditioned = process.believing(candidates.encoded[waiting], part.features[waiting])
        expected, deviation = conditioned.predict(candidates.encoded, part.features)
        mean += expected + part.trend
        variance += deviation**2
        noise += process.noise**2
        believed.append(BelievedPart(conditioned, part.features))
    tested = tuple(sorted(set(rows)))
    return Belief(
        candidates=candidates,
        scale=scale,
        mean=mean,
        deviation=np.sqrt(variance),
        log_feasible=runs,
        noise=math.sqrt(noise),
        best=float(mean[list(tested)].max()),
        tested=tested,
        physics=parts is not plain,
        parts=tuple(believed),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """A summand of the log score with a process of its own.

    Attributes:
        y: Observations, shape (n,).
        trend: Mean before the data, at every candidate, shape (m,).
        features: What is not known of the trend, shape (m, q).
    """

    y: FloatArray
    trend: FloatArray
    features: FloatArray
    prior: Prior


def _fitted(
    parts: Sequence[_Part], candidates: Candidates, rows: Sequence[int], vague: FloatArray
) -> list[GaussianProcess]:
    x = candidates.encoded[list(rows)]
    return [
        GaussianProcess.fit(
            x,
            part.y - part.trend[list(rows)],
            prior=part.prior,
            features=part.features[list(rows)],
            vagueness=vague,
        )
        for part in parts
    ]


def _missed(processes: Sequence[GaussianProcess]) -> float:
    """Root mean square of what the sum of the processes misses each left-out score by."""
    together = sum((process.leave_one_out() for process in processes), np.zeros(1))
    return float(np.sqrt(np.mean(together**2)))


def _shortlist(
    history: History, candidates: Candidates, likes: Sequence[FloatArray]
) -> npt.NDArray[np.int_]:
    """Rows of the points that any of several rankings puts first, and of all that are known."""
    known = [outcome.key for outcome in history.outcomes] + list(history.pending)
    rows = [np.array([candidates.rows[key] for key in known if key in candidates.rows])]
    rows += [np.argsort(-like, kind="stable")[:_SHORTLIST] for like in likes]
    return np.unique(np.concatenate(rows).astype(np.int_))


@dataclass(frozen=True, slots=True)
class _FittedRound:
    """The round model with what each trial showed of its summands.

    Attributes:
        trend: ln score of every candidate, shape (m,).
        shares: Weight of each bucket in the logarithm of the score, near the trials.
        brought, timed, gated: Observed parts of ln score, shape (n,); the first two and the gate
            sum to it.
    """

    model: DraftVerifyModel
    gate: BreakageModel
    aggregate: Aggregate
    trend: FloatArray
    shares: FloatArray
    brought: FloatArray
    timed: FloatArray
    gated: FloatArray


def _fitted_round(
    space: SearchSpace,
    history: History,
    candidates: Candidates,
    rows: Sequence[int],
    workload: Workload,
    aggregate: Aggregate,
) -> _FittedRound | None:
    """The round model and what it explains; None where it cannot be fitted."""
    if aggregate is Aggregate.OTHER:
        return None
    data = _round_data(space, history, workload)
    physics = DraftVerifyModel.fit(workload, data) if data is not None else None
    if physics is None or candidates.shape is None:
        return None
    scored = history.scored
    speeds = _host_speeds(history, space.key(space.deployed()))
    y = np.log([outcome.score for outcome in scored if outcome.score is not None])
    buckets = physics.workload.buckets
    throughput = physics.throughput(candidates.shape)
    here = np.array(rows)
    tokens = np.log(physics.accept_length(candidates.shape[here]))
    speed = throughput[here].copy()
    shares = np.array([bucket.weight for bucket in buckets])
    if aggregate is Aggregate.ARITHMETIC:
        shares = shares * np.exp(np.log(speed).mean(0))
    shares = shares / shares.sum()
    for row, outcome in enumerate(scored):
        for column, bucket in enumerate(buckets):
            figures = outcome.buckets.get(bucket.key)
            if figures is not None:
                speed[row, column] = figures.output_tok_per_s / speeds.get(outcome.host, 1.0)
                if figures.accept_length is not None:
                    tokens[row, column] = math.log(max(1.0, figures.accept_length))
    timed = _log_score(speed, physics.workload, aggregate)
    gate = BreakageModel.fit(candidates.shape[here], y - timed - np.mean(y - timed))
    expected = _log_score(throughput, physics.workload, aggregate)
    return _FittedRound(
        model=physics,
        gate=gate,
        aggregate=aggregate,
        trend=expected + gate.log_gate(candidates.shape),
        shares=shares,
        brought=tokens @ shares,
        timed=timed,
        gated=y - timed,
    )


def _physical_parts(
    round_: _FittedRound, candidates: Candidates, rows: Sequence[int]
) -> list[_Part]:
    """The log score as accept length, the rest of throughput, and the gate; each round its physics.

    The accept length is counted, not timed: it repeats within one percent where throughput has
    the noise of the whole start.  So what it contributes is learned from few trials, and only the
    duration of a round, which is smoother, carries the noise.  The gate of the coding answers
    knows no throughput noise either.  What the fits do not know of their own constants are
    features of the processes, so that a direction no trial has shown stays in doubt.
    """
    shape = candidates.shape
    assert shape is not None
    physics, shares = round_.model, round_.shares
    throughput = physics.throughput(shape)
    accept = np.log(physics.accept_length(shape)) @ shares
    doubted, slower = physics.doubts(shape)
    parts_of = throughput * np.array([bucket.weight for bucket in physics.workload.buckets])
    if round_.aggregate is Aggregate.GEOMETRIC:
        parts_of = np.broadcast_to(shares, throughput.shape)
    parts_of = parts_of / parts_of.sum(1, keepdims=True)
    expected = _log_score(throughput, physics.workload, round_.aggregate)
    return [
        _Part(round_.brought, accept, _DOUBT * np.einsum("mbq,b->mq", doubted, shares), _ACCEPT),
        _Part(
            round_.timed - round_.brought,
            expected - accept,
            _DOUBT * np.einsum("mbq,mb->mq", slower, parts_of),
            _RESIDUAL,
        ),
        _Part(round_.gated, round_.gate.log_gate(shape), round_.gate.doubts(shape), _GATE),
    ]


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
    return RoundData(shape, throughput, accept, history.vagueness(measured))


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
